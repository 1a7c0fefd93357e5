"""Measure the cost of the gateway per call, compared with direct access and LiteLLM's proxy.

    python -m ops.bench.gateway [--rounds 5] [--seconds 3] [--folder DIR]

Method. One engine (upstream.py): 20 ms to the first token, 15 more at 2 ms each, whole or streamed.
There are three ways to it: direct; our gateway as a process with its defaults (tokens captured, two
events per call, fsync); LiteLLM's proxy with one worker, no database and no logs. Calls are those
of an agent: a system prompt, three tools, a conversation of eight turns.

In every round, each way gets the same load for `seconds`, one after the other. The order changes,
so that other work of the machine affects all ways alike:

    clients N     N clients ask again as soon as they are answered
    rate R        R calls per second at random moments; lateness counts

`added_ms` is a way's percentile minus that of direct access in the same round, `first` to the
first byte of the body and `last` to its end; medians of the rounds. `requests_over_*` are ratios of
calls per second, medians of the rounds' own ratios. `cpu_ms` is processor time per call of the way
alone, which other programs disturb less than time. `bare_ms` is one append and fdatasync, in the
same folder and round, of the bytes of the event that an answer waits for. `syncs` counts calls of
fsync and fdatasync by a library preloaded into our gateway, `events` what its log holds more
afterwards; every call must have two, and those looked at must hold tokens, or the bench ends.
Linux only.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from events.codec import decode
from events.rollouts import CallEnded
from events.streams import ROLLOUTS
from ops.bench.gateway.load import Load, Sample
from ops.bench.gateway.sides import PUBLIC, Home, Side, Syncs, engine, ours, public
from ops.command_line import run_command

CLIENTS: Final = (1, 16, 64)
RATE: Final = 50.0
_BARE_APPENDS: Final = 60
_BARE_GAP_SECONDS: Final = 0.02
_SETTLE_SECONDS: Final = 0.2

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of load: concurrent clients, or calls at a fixed rate."""

    stream: bool
    clients: int | None
    """Number of concurrent clients; None for calls at the rate RATE."""

    @property
    def name(self) -> str:
        load = f"rate {RATE:g}" if self.clients is None else f"clients {self.clients}"
        return f"{'streamed' if self.stream else 'whole'}, {load}"


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one side under one load in one round."""

    calls: int
    rate: float
    """Calls per second."""
    cpu_ms: float
    """Milliseconds of processor time per call."""
    percentiles: dict[str, float]
    """Name of a percentile, such as `first_p50` -> milliseconds."""
    syncs: int
    events: int


@dataclass(frozen=True, slots=True)
class Bench:
    """The running processes and open files of the benchmark."""

    sides: Sequence[Side]
    home: Home
    syncs: Syncs
    bare: int
    """File descriptor of the file for bare appends."""
    seconds: float

    def round(self, number: int) -> tuple[list[float], dict[Cell, dict[str, Run]]]:
        """Run one round. Return the seconds of bare appends, and load -> side -> figures."""
        bare: list[float] = []
        runs: dict[Cell, dict[str, Run]] = {}
        for cell in _cells():
            bare += self._bare()
            turn = (number + len(runs)) % len(self.sides)
            order = [*self.sides[turn:], *self.sides[:turn]]
            runs[cell] = {side.name: self._run(side, cell, number) for side in order}
        return bare, runs

    def _bare(self) -> list[float]:
        values = read_call_values(self.home, _BARE_APPENDS // len(_cells()) + 1)
        return time_appends(self.bare, values)

    def _run(self, side: Side, cell: Cell, seed: int) -> Run:
        time.sleep(_SETTLE_SECONDS)
        syncs, events, cpu = self.syncs.count, self.home.events, side.cpu_seconds()
        begin = time.perf_counter()
        samples = asyncio.run(_run_load(side, cell, self.seconds, seed))
        elapsed = time.perf_counter() - begin
        added = self.home.events - events
        if side.name == "ours" and added != 2 * len(samples):
            raise RuntimeError(f"{len(samples)} calls left {added} events in the log, not two each")
        return Run(
            calls=len(samples),
            rate=len(samples) / elapsed,
            cpu_ms=(side.cpu_seconds() - cpu) * 1000 / len(samples),
            percentiles=percentiles(samples),
            syncs=self.syncs.count - syncs,
            events=added,
        )


def _cells() -> list[Cell]:
    return [Cell(stream, clients) for clients in (*CLIENTS, None) for stream in (False, True)]


async def _run_load(side: Side, cell: Cell, seconds: float, seed: int) -> list[Sample]:
    load = Load(side.target, cell.stream)
    if cell.clients is None:
        return await load.run_at_rate(RATE, seconds, seed)
    deadline = time.perf_counter() + seconds
    return await load.run_clients(cell.clients, lambda _: time.perf_counter() > deadline)


def percentiles(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the 50th and 99th percentile of the times to first and last byte, in milliseconds."""
    figures: dict[str, float] = {}
    for name, values in (
        ("first", sorted(sample.first for sample in samples)),
        ("last", sorted(sample.last for sample in samples)),
    ):
        figures[f"{name}_p50"] = values[len(values) // 2] * 1000
        figures[f"{name}_p99"] = values[min(len(values) - 1, len(values) * 99 // 100)] * 1000
    return figures


def read_call_values(home: Home, number: int) -> list[bytes]:
    """Return the values of the newest events on which answers waited. Raise RuntimeError if one has
    no tokens, because a gateway without capture does less work."""
    ends = home.log.end(ROLLOUTS.name)
    partition = max(range(len(ends)), key=ends.__getitem__)
    begin = max(0, ends[partition] - 4 * number)
    records = home.log.read(ROLLOUTS.name, partition, begin, 4 * number)
    values: list[bytes] = []
    for record in records:
        data = decode(record).data
        if isinstance(data, CallEnded):
            if not data.trainable:
                raise RuntimeError(f"a call was not captured: {data.untrainable_because}")
            values.append(record.value)
    return [values[place % len(values)] for place in range(number)]


def cell_document(cell: Cell, rounds: Sequence[dict[str, Run]]) -> Json:
    """Return the report's figures of one kind of load over all rounds."""

    def ratio(side: str, other: str) -> float:
        return round(statistics.median(run[side].rate / run[other].rate for run in rounds), 2)

    def extra_latency(name: str) -> dict[str, float]:
        return {
            key: round(
                statistics.median(
                    run[name].percentiles[key] - run["direct"].percentiles[key] for run in rounds
                ),
                2,
            )
            for key in rounds[0][name].percentiles
        }

    calls = sum(run["ours"].calls for run in rounds)
    document: Json = {
        "load": cell.name,
        "added_ms": {"ours": extra_latency("ours"), "public": extra_latency("public")},
        "cpu_ms": {
            name: round(statistics.median(run[name].cpu_ms for run in rounds), 2)
            for name in rounds[0]
        },
        "calls": calls,
        "events": sum(run["ours"].events for run in rounds),
        "syncs": sum(run["ours"].syncs for run in rounds),
    }
    if cell.clients is not None:
        document["requests_over_public"] = ratio("ours", "public")
        document["requests_over_direct"] = ratio("ours", "direct")
        document["public_over_direct"] = ratio("public", "direct")
    return document


@contextmanager
def open_bare(folder: Path) -> Iterator[int]:
    """Yield the file descriptor of an empty file for bare appends."""
    path = folder / "bare"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def time_appends(descriptor: int, values: Sequence[bytes]) -> list[float]:
    """Return the seconds of each append with fdatasync, with pauses as between calls."""
    seconds: list[float] = []
    for value in values:
        time.sleep(_BARE_GAP_SECONDS)
        begin = time.perf_counter()
        os.write(descriptor, value)
        os.fdatasync(descriptor)
        seconds.append(time.perf_counter() - begin)
    return seconds


@contextmanager
def open_bench(folder: Path, seconds: float) -> Iterator[Bench]:
    """Yield the benchmark with all processes started and warmed up."""
    with ExitStack() as stack:
        home, syncs = Home(folder), Syncs(folder)
        direct = stack.enter_context(engine(folder))
        sides = [
            direct,
            stack.enter_context(ours(folder, home, syncs, direct)),
            stack.enter_context(public(folder, direct)),
        ]
        bare = stack.enter_context(open_bare(folder))
        for side in sides:
            for stream in (False, True):
                asyncio.run(_run_load(side, Cell(stream, 4), 1.0, 0))
        yield Bench(sides, home, syncs, bare, seconds)


def measure(folder: Path, rounds: int, seconds: float) -> Json:
    """Return the figures of the whole benchmark."""
    bare: list[float] = []
    results: list[dict[Cell, dict[str, Run]]] = []
    with tempfile.TemporaryDirectory(dir=folder) as name, open_bench(Path(name), seconds) as bench:
        for number in range(rounds):
            appends, runs = bench.round(number)
            bare += appends
            results.append(runs)
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    bare.sort()
    bare_p50 = round(statistics.median(bare) * 1000, 2)
    cells = [cell_document(cell, [runs[cell] for runs in results]) for cell in _cells()]
    return {
        "benchmark": "gateway", "public": PUBLIC, "rounds": rounds,
        "seconds": seconds, "bare_ms": {
            "p50": bare_p50, "p99": round(bare[len(bare) * 99 // 100] * 1000, 2),
        },
        "loads": cells,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(__doc__, measure, indent=2, rounds=5, seconds=3.0)
