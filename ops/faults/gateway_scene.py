"""A gateway process on a home, and traffic through it, for the gateway's drivers.

    with scene(folder) as stage:             # a scripted engine, a gateway, a ledger
        with stage.run_talkers(6):           # clients of all kinds
            stage.gateway.kill(); stage.gateway.start()
        found = stage.stop_and_audit()       # stops the gateway, reads the log

The gateway keeps its port over restarts, because an agent's base URL stays the same.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from ops.faults.gateway_audit import Audit, audit
from ops.faults.gateway_engine import Engine
from ops.faults.gateway_load import Client, Ledger, Talker
from ops.processes import Program, find_ports, read_end
from ops.waits import run_threads, until

START_SECONDS: Final = 120.0


class Gateway(Program):
    """`kintsugi gateway` with its own home and port."""

    def __init__(self, folder: Path, upstreams: Sequence[str], settings: Mapping[str, str]) -> None:
        self.home = folder / "home"
        (self.port,) = find_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/v1"
        named = [word for url in upstreams for word in ("--upstream", url)]
        arguments = ("daemon", "gateway", "--port", str(self.port), *named)
        home = {"KINTSUGI_HOME": str(self.home)}
        super().__init__(folder / "gateway.log", *arguments, **{**home, **settings})

    def start(self, ready: bool = True) -> None:
        """Start it and wait until it answers; with `ready`, wait until /readyz succeeds too."""
        self.launch()
        self.wait_until("readyz" if ready else "livez", 200)

    def relaunch(self) -> None:
        """Kill and start it; return when it answers."""
        self.kill()
        self.start(ready=False)

    def wait_until(self, path: str, status: int) -> None:
        """Wait until `path` answers with `status`. Raise RuntimeError or TimeoutError."""
        self.wait_for_answer(f"http://127.0.0.1:{self.port}/{path}", START_SECONDS, status)

    def metric(self, name: str) -> float:
        """Return the value of a counter or gauge in its /metrics."""
        text = httpx2.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30).text
        (value,) = [row.split()[1] for row in text.splitlines() if row.startswith(f"{name} ")]
        return float(value)


@dataclass
class Scene:
    """A gateway over a scripted engine, and its clients' ledger."""

    engine: Engine
    gateway: Gateway
    ledger: Ledger = field(default_factory=Ledger)

    @contextmanager
    def run_talkers(self, clients: int, seed: int = 0, **options: Any) -> Iterator[list[Talker]]:
        """Run clients until the block ends; `seed` must differ between rounds on one home."""
        stop = threading.Event()
        talkers = [
            Talker(self.gateway.url, self.ledger, 1_000 * seed + number, stop, **options)
            for number in range(clients)
        ]
        with run_threads(talkers):
            try:
                yield talkers
            finally:
                stop.set()
        for talker in talkers:
            talker.finish()

    @contextmanager
    def client(self, timeout_seconds: float = 60) -> Iterator[Client]:
        """Yield a client of the gateway."""
        client = Client(self.gateway.url, self.ledger, timeout_seconds)
        try:
            yield client
        finally:
            client.close()

    def wait_for(self, acknowledged: int) -> None:
        """Wait until `acknowledged` calls are acknowledged."""
        until(
            lambda: len(self.ledger.list_acks()) >= acknowledged,
            f"{acknowledged} calls are acknowledged; see {self.gateway.output}",
            every=0.05,
        )

    def stop_and_audit(self) -> Audit:
        """Stop the gateway and compare its log with the ledger."""
        if self.gateway.runs():
            status = self.gateway.stop()
            if status != 0:
                raise RuntimeError(
                    f"the gateway ended with {status}:\n{read_end(self.gateway.output)}"
                )
        return audit(self.gateway.home, self.ledger)


@contextmanager
def scene(folder: Path, upstreams: Sequence[str] = (), **settings: str) -> Iterator[Scene]:
    """Run engine and gateway until the block ends. `settings` are KINTSUGI_* variables."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        engine = stack.enter_context(Engine())
        gateway = Gateway(folder, upstreams or [engine.url], settings)
        stack.callback(gateway.kill)
        gateway.start()
        yield Scene(engine, gateway)
