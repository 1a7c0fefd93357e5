"""Adapters are published one after the other while eight clients stream (place, count -> figures).

Each has a name, a path and weights of its own (rank 8 to 16). One publish is the whole path: files
checked and copied, loaded, proven by its fingerprint, the route turned, the version before the last
one drained, unloaded and its files deleted. Then the same clients talk for the same time without a
publish; `over_quiet` are the ratios.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from ops.bench.pieces import Json
from ops.bench.serving.clients import BEGUN
from ops.bench.serving.place import Place
from ops.faults.gateway_scene import ROOT
from ops.random_adapters import SPREAD, Maker

CLIENTS: Final = 8
GOALS: Final = ("failed", "blocked", "aborted", "truncated", "unrecorded", "not_by_route")
"""Counts that are to be 0."""
RANKS: Final = (8, 16)
_RATIOS: Final = ("longest_gap_ms", "gap_p999_ms", "gap_p50_ms", "longest_first_ms", "first_p50_ms")


@dataclass(slots=True)
class Talk:
    """Clients that talk during a block, and what they saw once it is over."""

    saw: Json = field(default_factory=dict)


@contextmanager
def run_clients(url: str, clients: int = CLIENTS) -> Iterator[Talk]:
    """Clients of a gateway until the end of the block. Raises RuntimeError where they break."""
    command = [sys.executable, "-m", "ops.bench.serving.clients", url, "--clients", str(clients)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    talk = Talk()
    try:
        assert process.stdout is not None, "opened as a pipe"
        if process.stdout.readline().strip() != BEGUN:
            raise RuntimeError(f"the clients ended with {process.wait()}; see above")
        yield talk
        output, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"the clients ended with {process.returncode}; see above")
        talk.saw = json.loads(output)
    finally:
        process.kill()
        process.wait()


def directories(maker: Maker, folder: Path, count: int, seed: int) -> list[Path]:
    """Adapters of random weights and ranks, no two alike."""
    chance = Random(seed)
    return [
        maker.write(
            folder / f"v{seed + number}", SPREAD, seed=seed + number, rank=chance.randint(*RANKS)
        )
        for number in range(count)
    ]


def publish(here: Place, directory: Path, took: dict[str, list[float]]) -> int:
    """The whole path; how many adapters the engine held at most. Seconds go into `took`."""
    began = time.perf_counter()
    name = here.bring(directory)
    staged = time.perf_counter()
    most = here.resident()
    here.flip(name)
    flipped = time.perf_counter()
    here.settle()
    for what, seconds in (
        ("staged", staged - began),
        ("flipped", flipped - staged),
        ("drained", time.perf_counter() - flipped),
    ):
        took.setdefault(what, []).append(seconds)
    return most


def piece(here: Place, maker: Maker, folder: Path, count: int, seed: int) -> Json:
    """Publish `count` adapters under load, then be quiet for as long."""
    adapters = directories(maker, folder / f"made-{seed}", count, seed)
    took: dict[str, list[float]] = {}
    # From here on an adapter answers, so that a call that the base answers is one too many.
    publish(here, maker.write(folder / f"first-{seed}", SPREAD, seed=10**6 + seed), {})
    with run_clients(here.gateway.url):
        publish(here, maker.write(folder / f"second-{seed}", SPREAD, seed=10**7 + seed), {})
    with run_clients(here.gateway.url) as busy:
        began = time.perf_counter()
        most = max(publish(here, directory, took) for directory in adapters)
        seconds = time.perf_counter() - began
    with run_clients(here.gateway.url) as quiet:
        time.sleep(seconds)
    return {
        "publishes": count,
        "resident": most,
        "took": {what: [round(value, 3) for value in values] for what, values in took.items()},
        "publishing": _count_strangers(here, busy.saw),
        "quiet": _count_strangers(here, quiet.saw),
    }


def _count_strangers(here: Place, saw: Json) -> Json:
    """Return what clients saw, with the number of calls not answered by the route's adapters."""
    adapters = saw.pop("adapters")
    base = here.replica.list_models().base
    unknown = sum(n for name, n in adapters.items() if name in ("", base))
    return {**saw, "answered_by": len(adapters), "not_by_route": unknown}


def document(pieces: Sequence[Json]) -> Json:
    """All pieces as one."""
    sides = {name: _total([part[name] for part in pieces]) for name in ("publishing", "quiet")}
    took = {
        what: _spread([value for part in pieces for value in part["took"][what]])
        for what in pieces[0]["took"]
    }
    ratios = {
        name: _median(
            part["publishing"][name] / part["quiet"][name] for part in pieces if part["quiet"][name]
        )
        for name in _RATIOS
    }
    ratios["tokens_per_second"] = _median(
        _rate(part["publishing"]) / _rate(part["quiet"]) for part in pieces
    )
    return {
        "publishes": sum(part["publishes"] for part in pieces),
        "clients": CLIENTS,
        "most_resident": max(part["resident"] for part in pieces),
        "seconds": took,
        **sides,
        "over_quiet": ratios,
        "met": all(sides["publishing"][name] == 0 for name in GOALS),
    }


def _total(sides: Sequence[Json]) -> Json:
    """Counts added up, times at their longest; the median of medians."""
    total: dict[str, Any] = {}
    for name in sides[0]:
        values = [item[name] for item in sides if item[name] is not None]
        if name == "wrong":
            total[name] = [item for value in values for item in value][:10]
        elif "_p" in name:
            total[name] = round(statistics.median(values), 1) if values else None
        elif name.endswith("_ms"):
            total[name] = max(values, default=None)
        else:
            total[name] = round(sum(values), 1)
    return total


def _rate(side: Json) -> float:
    return float(side["tokens"] / side["seconds"])


def _median(values: Iterator[float]) -> float | None:
    numbers = list(values)
    return round(statistics.median(numbers), 2) if numbers else None


def _spread(values: Sequence[float]) -> Json:
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 3),
        "p95": round(ordered[int(0.95 * len(ordered))], 3),
        "longest": round(ordered[-1], 3),
    }
