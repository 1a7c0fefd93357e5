"""What tracing costs the gateway: calls per second with the role `trace` and without it.

    python -m ops.bench.gateway.tracing [--rounds 40] [--seconds 4] [--clients 16] [--folder DIR]

Method. One engine, one gateway and one fold, as in the other benches, and a receiver of spans in a
process of its own. In each round the same load runs twice for `seconds`, in an order that changes:
while `trace` sends, and while it is stopped (SIGSTOP). It looks every two seconds, so shorter
halves would be over before it has sent anything. Before either, the fold has caught up, and
`trace` has sent what it missed, so that it never works off in one half what the other half left it.

`throughput` is calls per second with tracing over those without, `cpu` the gateway's processor time
per call likewise, each with its interval (pairs.py); `met` says whether the whole interval of
`throughput` lies above ALLOWED_RATIO. All of it runs on one machine, so fold, `trace`, receiver and
clients compete with the gateway for its cores; where `trace` has a core of its own, less is left of
its cost. `trace` gives way (niceness 19), so where no core is free it works off between the halves
what it lacks. `kept_up` says what part of the events of the halves with tracing it sent within
them, and `trace_ms` what it takes, wherever that is: of processor time, per event sent. Linux only.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.tracing.exporter import POSITION
from events.streams import ROLLOUTS
from ops.bench.gateway.load import Load
from ops.bench.gateway.pairs import alternate, ratio
from ops.bench.gateway.sides import Home, Side, Syncs, engine, ours, role

ALLOWED_RATIO: Final = 0.95
"""Least throughput allowed, as a share of that without tracing."""
_LOOK_SECONDS: Final = 0.1
"""Between two looks at the spans that were sent."""
_PATIENCE: Final = 120.0
_WARM_CALLS: Final = 100
_TAKEN: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Half:
    """Half of a round: the load with tracing, or without."""

    rate: float
    """Calls per second."""
    cpu_seconds: float
    """Processor seconds of the gateway per call."""
    sent: int
    """Events whose spans were sent meanwhile."""
    made: int
    """Events recorded meanwhile."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What takes part."""

    gateway: Side
    tracer: "subprocess.Popen[str]"
    home: Home
    position: Path
    fold: Callable[[], int]
    """How far the rollouts were folded, summed over partitions."""

    def half(self, on: bool, clients: int, seconds: float) -> Half:
        """A load while the role runs, or is held."""
        self.catch_up()
        self.trace(on)
        sent, events = self.export_count, self.home.events
        begin, used = time.perf_counter(), self.gateway.cpu_seconds()
        deadline = begin + seconds
        calls = _run_load(self.gateway, clients, lambda _: time.perf_counter() > deadline)
        took = time.perf_counter() - begin
        cost = (self.gateway.cpu_seconds() - used) / calls
        return Half(calls / took, cost, self.export_count - sent, self.home.events - events)

    def trace(self, on: bool) -> None:
        """Let the role run, or hold it."""
        os.kill(self.tracer.pid, signal.SIGCONT if on else signal.SIGSTOP)

    def catch_up(self) -> None:
        """Wait until everything was folded and sent."""
        self.trace(True)
        deadline = time.monotonic() + _PATIENCE
        while self.fold() < self.home.events or self.export_count < self.home.events:
            if time.monotonic() > deadline or self.tracer.poll() is not None:
                raise RuntimeError(f"{self.export_count} of {self.home.events} events were sent")
            time.sleep(_LOOK_SECONDS)

    def tracer_seconds(self) -> float:
        """Processor time of the role so far."""
        return Side("trace", self.gateway.target, self.tracer).cpu_seconds()

    @property
    def export_count(self) -> int:
        """Events of `rollouts` whose spans were sent."""
        if not self.position.exists():
            return 0
        positions: dict[str, int] = json.loads(self.position.read_text())
        return sum(n for name, n in positions.items() if name.startswith(ROLLOUTS.name))


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    """Everything started and warm."""
    with ExitStack() as stack:
        home, syncs = Home(folder), Syncs(folder)
        gateway = stack.enter_context(
            ours(folder, home, syncs, stack.enter_context(engine(folder)))
        )
        _run_load(gateway, 4, lambda done: done > _WARM_CALLS)
        app = stack.enter_context(App(Settings(home=home.folder)))
        app.settle()
        receiver = stack.enter_context(_receiver())
        variables = {"KINTSUGI_TRACING__ENDPOINT": f"http://127.0.0.1:{receiver}/v1/traces"}
        stack.enter_context(role("consume", folder, home, {}))
        tracer = stack.enter_context(role("trace", folder, home, variables))
        yield Stage(gateway, tracer, home, home.folder / POSITION, lambda: _fold_position(app))


def _run_load(gateway: Side, clients: int, until: Callable[[int], bool]) -> int:
    """How many calls were answered."""

    async def load() -> int:
        return len(await Load(gateway.target, False).run_clients(clients, until))

    return asyncio.run(load())


def _fold_position(app: App) -> int:
    from consumers.position import offsets

    with app.reading() as connection:
        positions = offsets(connection)
    return sum(offset for (stream, _), offset in positions.items() if stream == ROLLOUTS.name)


@contextmanager
def _receiver() -> Iterator[int]:
    command = [sys.executable, "-m", "ops.bench.gateway.tracing", "--receive"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "opened as a pipe"
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def receive() -> None:
    """Take every request and read none: what a receiver does with spans is no cost of ours."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = (
                    int(line.partition(b":")[2])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                )
                await reader.readexactly(length)
                writer.write(_TAKEN)
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The benchmark as one document."""
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-bench-", dir=options.folder) as name,
        open_stage(Path(name)) as stage,
    ):
        stage.catch_up()
        before, used = stage.export_count, stage.tracer_seconds()
        pairs = [_round(stage, number, options) for number in range(1, options.rounds + 1)]
        stage.catch_up()
        sent, used = stage.export_count - before, stage.tracer_seconds() - used
    throughput = ratio([(on.rate, off.rate) for on, off in pairs])
    return {
        "benchmark": "gateway tracing", "rounds": options.rounds, "seconds": options.seconds,
        "clients": options.clients, "cores": os.cpu_count(),
        "calls_per_second": {
            "on": round(statistics.median(on.rate for on, _ in pairs), 1),
            "off": round(statistics.median(off.rate for _, off in pairs), 1),
        },
        "throughput": throughput,
        "cpu": ratio([(on.cpu_seconds, off.cpu_seconds) for on, off in pairs]),
        "trace_ms": round(1000 * used / sent, 3), "events_sent": sent,
        "kept_up": round(sum(on.sent for on, _ in pairs) / sum(on.made for on, _ in pairs), 3),
        "goal": {
            "what": "throughput with tracing over without", "limit": ALLOWED_RATIO,
            "met": throughput["low"] > ALLOWED_RATIO,
        },
    }  # fmt: skip


def _round(stage: Stage, number: int, options: argparse.Namespace) -> tuple[Half, Half]:
    """Run a round; return its half with tracing and its half without."""

    def half(on: bool) -> Half:
        return stage.half(on, options.clients, options.seconds)

    halves = alternate(number, lambda: half(True), lambda: half(False))
    print(f"round {number}: {halves[0].rate / halves[1].rate:.3f}", file=sys.stderr, flush=True)
    return halves


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=4.0, help="per half of a round")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: TMPDIR")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        asyncio.run(receive())
    else:
        print(json.dumps(measure(options), indent=2))


if __name__ == "__main__":
    main()
