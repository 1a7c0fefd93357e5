"""What metrics cost a gateway: with metrics against without, in one run.

    python -m ops.bench.gateway.watched [--rounds 60] [--seconds 1] [--clients 64]

Method. One engine (upstream.py) that costs next to nothing, and two of our gateways in front of it,
each with a home of its own: one as it is, scraped every SCRAPE_SECONDS, three times as often as by
ops/prometheus, and one without metrics (silent.py). Per round each has the same closed load of
`clients` for `seconds`, one after the other, and the order changes from round to round, so that
what else the machine does hits both alike. Calls are those of the gateway's bench (load.py), half
of them streamed.

`throughput` is calls per second with metrics over those without, and `cpu` processor time per call
likewise, each with its interval (pairs.py). Processor time is disturbed less by other programs.
`met` says whether the whole interval of `throughput` lies above ALLOWED_RATIO; with few rounds, or
a busy machine, it is too wide to say so: counting.py measures the counting alone. The counts are
checked: the one has counted every call, the other none.
"""

import argparse
import asyncio
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from ops.bench.gateway.load import Load
from ops.bench.gateway.pairs import alternate, ratio
from ops.bench.gateway.sides import Home, Side, engine, run_gateway

ALLOWED_RATIO: Final = 0.95
"""Least throughput allowed, as a share of that without metrics."""
SCRAPE_SECONDS: Final = 5.0
_WARM_SECONDS: Final = 2.0
_SETTLE_SECONDS: Final = 0.2

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One gateway under load in one round."""

    calls: int
    rate: float
    """Calls per second."""
    cpu_seconds: float
    """Per call."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both gateways in one round."""

    watched: Run
    silent: Run


def run(side: Side, clients: int, seconds: float) -> Run:
    """The load on one of them."""
    time.sleep(_SETTLE_SECONDS)
    cpu, begin = side.cpu_seconds(), time.perf_counter()
    deadline = begin + seconds

    async def load() -> int:
        samples = await Load(side.target, None).run_clients(
            clients, lambda _: time.perf_counter() > deadline
        )
        return len(samples)

    calls = asyncio.run(load())
    elapsed = time.perf_counter() - begin
    return Run(calls, calls / elapsed, (side.cpu_seconds() - cpu) / calls)


def fetch_metrics(side: Side) -> str:
    """What a gateway answers Prometheus."""
    connection = http.client.HTTPConnection("127.0.0.1", side.target.port, timeout=30)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"/metrics of {side.name} answers {answer.status}: {text[:200]}")
    return text


def count_calls(side: Side) -> int:
    """How many calls a gateway says that it answered."""
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(fetch_metrics(side))
        for sample in family.samples
        if sample.name == "kintsugi_gateway_calls_total"
    )


@contextmanager
def scrape(side: Side) -> Iterator[None]:
    """Scrape the metrics every SCRAPE_SECONDS while the context is open."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(SCRAPE_SECONDS):
            fetch_metrics(side)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure(rounds: int, seconds: float, clients: int, folder: Path | None) -> Json:
    """The whole benchmark as one document."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-", dir=folder) as name:
        place = Path(name)
        homes = [Home(place / label) for label in ("watched", "silent")]
        with (
            engine(place) as direct,
            run_gateway("watched", "daemon", place, homes[0], direct) as watched,
            run_gateway("silent", "ops.bench.gateway.silent", place, homes[1], direct) as silent,
        ):
            warm = _round(0, watched, silent, clients, _WARM_SECONDS)
            with scrape(watched):
                pairs = [
                    _round(number, watched, silent, clients, seconds)
                    for number in range(1, rounds + 1)
                ]
            calls = sum(pair.watched.calls for pair in (warm, *pairs))
            counts = count_calls(watched), count_calls(silent)
    if counts != (calls, 0):
        raise RuntimeError(
            f"{calls} calls were counted as {counts[0]}, and as {counts[1]} in silence"
        )
    return document(pairs, seconds, clients)


def _round(number: int, watched: Side, silent: Side, clients: int, seconds: float) -> Pair:
    pair = Pair(
        *alternate(
            number,
            lambda: run(watched, clients, seconds),
            lambda: run(silent, clients, seconds),
        )
    )
    over = pair.watched.rate / pair.silent.rate
    print(f"round {number}: {over:.3f}", file=sys.stderr, flush=True)
    return pair


def document(pairs: Sequence[Pair], seconds: float, clients: int) -> Json:
    """What the rounds come to."""
    throughput = ratio([(pair.watched.rate, pair.silent.rate) for pair in pairs])
    cpu = ratio([(pair.watched.cpu_seconds, pair.silent.cpu_seconds) for pair in pairs])
    return {
        "benchmark": "gateway, watched", "rounds": len(pairs), "seconds": seconds,
        "clients": clients,
        "calls": {
            "watched": sum(pair.watched.calls for pair in pairs),
            "silent": sum(pair.silent.calls for pair in pairs),
        },
        "cpu_ms": {
            "watched": _cpu_ms([pair.watched for pair in pairs]),
            "silent": _cpu_ms([pair.silent for pair in pairs]),
        },
        "throughput": throughput, "cpu": cpu,
        "goal": {
            "what": "throughput with metrics over without", "limit": ALLOWED_RATIO,
            "met": throughput["low"] > ALLOWED_RATIO,
        },
    }  # fmt: skip


def _cpu_ms(runs: Sequence[Run]) -> float:
    return round(statistics.median(run.cpu_seconds for run in runs) * 1000, 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0, help="per gateway and round")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="on the disk to be used; default: TMPDIR")
    options = parser.parse_args()
    print(
        json.dumps(
            measure(options.rounds, options.seconds, options.clients, options.folder), indent=2
        )
    )


if __name__ == "__main__":
    main()
