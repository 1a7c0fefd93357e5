"""A gateway over a real embedded engine, both in this process and reached over sockets; and real
vLLMs, started as they must be and otherwise."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from transformers import PreTrainedTokenizerFast

from daemon.cli.methods import bind_chooser
from daemon.config.settings import Serving
from events.blobs import BlobStore
from events.codec import Event, arrays_of, decode
from events.log import Record
from events.privacy.keys import KeyStore
from events.rollouts import CallEnded, CallStarted
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from producers.gateway.capture.recorder import Recorder
from producers.gateway.privacy.keys import ClientKey, ClientKeys
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.routing.upstreams import Upstream, Upstreams
from producers.gateway.server import Gateway, Options
from tests.daemon.engine.conftest import (
    Live,
    base,
    checkpoint,
    live,
    recite,
    served_chat,
    shop_tokens,
)
from tests.daemon.listening import at_a_port
from tests.daemon.vllms import RecitingVllm, serve_reciting

__all__ = ["base", "checkpoint", "live", "recite", "served_chat", "shop_tokens"]


@dataclass(frozen=True)
class Fronted:
    """A gateway that answers on a port of its own."""

    gateway: Gateway
    upstreams: Upstreams
    log: SqliteLog
    url: str

    def records(self) -> list[Record]:
        """Everything that was recorded, partition by partition."""
        ends = self.log.end(ROLLOUTS.name)
        return [
            record
            for partition in range(len(ends))
            for record in self.log.read(ROLLOUTS.name, partition, 0)
        ]

    def events(self) -> list[Event]:
        """The same, decoded, in order of time."""
        found = [decode(record) for record in self.records()]
        return sorted(found, key=lambda event: event.envelope.id)

    def started(self) -> list[CallStarted]:
        return [e.data for e in self.events() if isinstance(e.data, CallStarted)]

    def ended(self) -> list[CallEnded]:
        return [e.data for e in self.events() if isinstance(e.data, CallEnded)]

    def arrays(self, call: str) -> dict[str, list[float]]:
        """The token arrays of a call."""
        for record in self.records():
            data = decode(record).data
            if isinstance(data, CallEnded) and data.call == call:
                return {name: list(values) for name, values in arrays_of(record.value).items()}
        raise AssertionError(f"call {call} has no end")

    def unproven(self) -> str:
        """Why calls cannot be trained on."""
        return " ".join(filter(None, (one.unproven for one in self.upstreams.all)))

    def wait_for(self, true: Callable[[], bool], patience: float = 20) -> bool:
        """Whether it becomes true within some seconds."""
        deadline = time.monotonic() + patience
        while not true() and time.monotonic() < deadline:
            time.sleep(0.01)
        return true()


@contextmanager
def fronting(
    folder: Path,
    urls: Sequence[str],
    keys: Sequence[ClientKey] = (),
    proven: bool = True,
    log: SqliteLog | None = None,
    patience: float = 20,
    redaction: Redaction | None = None,
    people: KeyStore | None = None,
    **options: object,
) -> Iterator[Fronted]:
    """A gateway over engines, in a thread of this process; with `people`, their keys, it seals.
    `options` are those of the gateway, and settings of `[serving]` for choosing members."""
    opened = log or SqliteLog(folder / "log.db")
    upstreams = Upstreams([Upstream(f"{url}/v1") for url in urls])
    choosing = {name: options.pop(name) for name in Serving.model_fields.keys() & options.keys()}
    made = Gateway(
        Recorder(opened, BlobStore(folder / "blobs"), people),
        upstreams,
        ClientKeys(keys),
        Options(**options),  # type: ignore[arg-type]
        bind_chooser(Serving.model_validate(choosing)),
        redaction,
    )
    try:
        with at_a_port(made.app, lifespan="on") as url:
            fronted = Fronted(made, upstreams, opened, url)
            ready = lambda: not fronted.unproven()  # noqa: E731
            assert not proven or fronted.wait_for(ready, patience), fronted.unproven()
            yield fronted
    finally:
        opened.close()


@pytest.fixture
def front(live: Live, tmp_path: Path) -> Iterator[Fronted]:
    """A gateway over the module's engine, with a log of its own."""
    with fronting(tmp_path, [live.url]) as found:
        yield found


Front = Callable[..., Fronted]


@pytest.fixture
def front_over(tmp_path: Path) -> Iterator[Front]:
    """Make a gateway over engines."""
    with ExitStack() as stack:

        def make(*urls: str, **options: object) -> Fronted:
            folder = tmp_path / f"gateway-{len(list(tmp_path.glob('gateway-*')))}"
            folder.mkdir()
            return stack.enter_context(fronting(folder, urls, **options))  # type: ignore[arg-type]

        yield make


def post(url: str, path: str = "/v1/chat/completions", /, **body: Any) -> httpx2.Response:
    """A request as plain HTTP."""
    return httpx2.post(f"{url}{path}", json=body, timeout=60)


@pytest.fixture(scope="session")
def vllm(reciting_vllm: RecitingVllm) -> str:
    """Started as it must be."""
    return reciting_vllm.root


@pytest.fixture(scope="package")
def raw_vllm(shop_tokens: PreTrainedTokenizerFast) -> Iterator[str]:
    """With the wrong log-probabilities, too little room for adapters, and another tool parser."""
    with serve_reciting(
        shop_tokens,
        "--logprobs-mode=raw_logprobs",
        "--max-loras=1",
        "--max-lora-rank=8",
        "--tool-call-parser=pythonic",
    ) as server:
        yield server.root


@pytest.fixture(scope="module")
def strict_vllm(shop_tokens: PreTrainedTokenizerFast) -> Iterator[str]:
    """As it must be, but that it makes a grammar of the tools of every chat."""
    with serve_reciting(shop_tokens, "--tool-strict-level=function") as server:
        yield server.root


@pytest.fixture(scope="module")
def bare_vllm(shop_tokens: PreTrainedTokenizerFast) -> Iterator[str]:
    """Without adapters and tools, and with the checkpoint's sampling parameters."""
    with serve_reciting(
        shop_tokens,
        "--no-enable-lora",
        "--no-enable-auto-tool-choice",
        "--generation-config=auto",
        temperature=0.5,
    ) as server:
        yield server.root
