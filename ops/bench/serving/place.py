"""An engine, a gateway before it and a home, with a publisher of that home in this process.

    with place(folder, "vllm") as here:
        name = here.bring(directory)        pushed and staged
        here.flip(name)                     its alias is answered by it
        here.settle()                       what drained is unloaded and collected

Engine and gateway are processes of their own; everything is as it is by default, except that files
are deleted without a grace and one former version is kept.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import httpx2

from daemon.config.settings import Serving, Settings, Upstream
from daemon.core.app import App
from daemon.core.decision_log import Act
from daemon.core.serving_lock import hold_serving_lock
from daemon.engine.reference.weights import CHECKPOINT
from daemon.serving.fleet import Fleet, open_fleet
from daemon.serving.publisher import Publisher
from daemon.serving.push import push
from daemon.serving.reconciler import Reconciler
from daemon.serving.replica import Replica
from ops.faults.gateway_scene import Gateway
from ops.faults.gateway_upstream_kill import RealEngine
from ops.vllm.server import Vllm

Kind = Literal["vllm", "embedded"]

ALIAS: Final = "agent"
BASE: Final = "reference"
SLOTS: Final = 4
MEMORY: Final = 8
"""Adapters that vLLM holds; ops/vllm starts it so."""
RANK: Final = 16
CONTEXT: Final = 640
WHO: Final = Act("bench", "a number is taken")
PATIENCE_SECONDS: Final = 120.0

_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Everything started."""

    engine: str
    """Its URL."""
    gateway: Gateway
    app: App
    fleet: Fleet
    publisher: Publisher
    reconciler: Reconciler

    @property
    def replica(self) -> Replica:
        """The engine as those see it who load adapters."""
        return self.fleet.engines[self.engine].replica

    def push(self, directory: Path, name: str | None = None) -> str:
        """Bring a directory into the home; the adapter's name."""
        pushed = push(self.app, self.fleet, directory, WHO, alias=ALIAS, base=BASE, name=name)
        return pushed.adapter.adapter

    def bring(self, directory: Path, name: str | None = None) -> str:
        """Push and stage."""
        called = self.push(directory, name)
        self.publisher.stage(called, WHO)
        return called

    def flip(self, name: str) -> None:
        """Have it answer alone, without a gate."""
        self.publisher.promote(name, WHO, override=True)

    def follow(self, name: str) -> None:
        """Until the gateway lets an adapter answer. Raises TimeoutError, HTTPError."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        body = {"model": ALIAS, "prompt": "Hello", "max_tokens": 1}
        while True:
            answer = httpx2.post(f"{self.gateway.url}/completions", json=body, timeout=60)
            if answer.raise_for_status().headers["x-kintsugi-adapter"] == name:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} does not answer; see {self.gateway.output}")
            time.sleep(_LOOK_SECONDS)

    def resident(self) -> int:
        """Adapters that the engine holds now."""
        return len(self.replica.list_models().adapters)

    def settle(self, at_most: int = 2) -> None:
        """Until no more are held: who answers, and who did before. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with hold_serving_lock(self.app.home):
                done = self.reconciler.tick()
            if done.troubles:
                raise RuntimeError("; ".join(done.troubles))
            if self.resident() <= at_most:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.resident()} adapters stay loaded; see {self.app.home}")
            time.sleep(_LOOK_SECONDS)

    def metric(self, name: str) -> float:
        """A counter of the engine's /metrics; its labels are added up."""
        text = httpx2.get(self.engine.removesuffix("/v1") + "/metrics", timeout=30).text
        rows = [row for row in text.splitlines() if row.startswith((f"{name}{{", f"{name} "))]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


@contextmanager
def place(folder: Path, kind: Kind) -> Iterator[Place]:
    """Start everything, and end it whatever happens. Raises InstallError without vLLM."""
    with ExitStack() as stack:
        url = _engine(folder, kind, stack)
        settings = Settings(
            home=folder / "home",
            upstreams=(_upstream(url),),
            serving=Serving(grace_seconds=0, kept_versions=1),
        )
        app = App(settings)
        stack.callback(app.close)
        fleet = stack.enter_context(open_fleet(settings))
        gateway = Gateway(folder, [url], {})
        stack.callback(gateway.kill)
        gateway.start()
        yield Place(url, gateway, app, fleet, Publisher(app, fleet), Reconciler(app, fleet))


def _engine(folder: Path, kind: Kind, stack: ExitStack) -> str:
    if kind == "vllm":
        flags = (f"--max-model-len={CONTEXT}",)
        vllm = Vllm(CHECKPOINT, BASE, folder, flags=flags)
        stack.callback(vllm.stop)
        return vllm.start().url
    engine = RealEngine(folder / "engine.log", name=BASE)
    stack.callback(engine.kill)
    engine.start()
    return engine.url


def _upstream(url: str) -> Upstream:
    return Upstream(
        url=url, checkpoint=CHECKPOINT, max_loras=SLOTS, max_cpu_loras=MEMORY, max_lora_rank=RANK
    )
