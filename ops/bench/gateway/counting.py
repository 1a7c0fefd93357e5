"""Measure the processor time that a gateway's metrics take per call.

    python -m ops.bench.gateway.counting [--calls 20000] [--rounds 9]

Method. Each method of `Metrics` that a call uses runs `calls` times; the time of an empty loop is
subtracted. The fastest of `rounds` counts, because other work of the machine only adds time. `us`
is the time of each method, `call_us` their sum. `scan_us` is the time to search bodies of agents'
calls for control tokens, by size in KiB, and `read_us` the time to parse them. No request is
answered: compare with `cpu_ms` of `python -m ops.bench.gateway`, which measures whole gateways.
`asked_ms` is the time of one answer to Prometheus. The counts are checked afterwards.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from events.rollouts import CallEnded, CallStarted
from ops.command_line import run_command
from producers.gateway.http.control_strings import FAMILIES, ControlStrings, list_control_strings
from producers.gateway.http.wire import parse_request
from producers.gateway.metrics.registry import Metrics

_KILOBYTES: Final = (1, 8, 64, 512)
_ASKED: Final = 20


def steps(metrics: Metrics) -> dict[str, Callable[[], None]]:
    """Return name -> function, for each metric update that a successful call makes."""

    def in_flight() -> None:
        with metrics.in_flight():
            pass

    def append_start() -> None:
        with metrics.time_append(CallStarted.STREAM, CallStarted.TYPE):
            pass

    def append_end() -> None:
        with metrics.time_append(CallEnded.STREAM, CallEnded.TYPE):
            pass

    return {
        "in_flight": in_flight,
        "appending, CallStarted": append_start,
        "first_byte": lambda: metrics.time_first_byte("chat", 0.03),
        "appending, CallEnded": append_end,
        "ended": lambda: metrics.count_call("chat", "completed", recorded=True, seconds=0.06),
        "overhead": lambda: metrics.time_overhead("chat", 0.004),
    }


def make_body(kilobytes: int) -> bytes:
    """Return a request body of this size: half human text, half JSON results of tools."""
    record = json.dumps({"items": [{"id": number, "price": "1.50"} for number in range(8)]})
    pair = [
        {"role": "user", "content": "Where is my order? I have waited for 3 days. " * 6},
        {"role": "tool", "content": record, "tool_call_id": "call_1"},
    ]
    size = len(json.dumps(pair))
    messages = pair * max(kilobytes * 1024 // size, 1)
    return json.dumps({"model": "agent", "messages": messages}).encode()


def time_scan(kilobytes: int, rounds: int) -> tuple[float, float]:
    """Return the seconds to search a body for control tokens, and those to parse it."""
    body = make_body(kilobytes)
    strings = ControlStrings(list_control_strings(FAMILIES))
    request = parse_request("chat", body)
    if strings.find(body, request) is not None:
        raise RuntimeError("a body without control tokens is taken for one with them")
    scan = cheapest(lambda: strings.find(body, request), 200, rounds)
    return scan, cheapest(lambda: parse_request("chat", body), 200, rounds)


def cheapest(what: Callable[[], object], times: int, rounds: int) -> float:
    """Return the processor seconds of one call of `what`, in the fastest of `rounds`."""
    return min(_processor_seconds(what, times) for _ in range(rounds)) / times


def _processor_seconds(what: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        what()
    return time.process_time() - began


def measure(folder: Path, calls: int, rounds: int) -> dict[str, Any]:
    """Return the figures of the benchmark."""
    metrics = Metrics()
    parts = steps(metrics)
    scans = {size: time_scan(size, rounds) for size in _KILOBYTES}
    loop = cheapest(lambda: None, calls, rounds)
    alone = {name: cheapest(part, calls, rounds) - loop for name, part in parts.items()}
    asked = cheapest(lambda: metrics.exposition(""), 1, _ASKED)
    counted = metrics.value(
        "kintsugi_gateway_calls_total", endpoint="chat", outcome="completed", recorded="yes"
    )
    if counted != calls * rounds:
        raise RuntimeError(f"{calls * rounds} calls were counted as {counted:g}")
    return {
        "benchmark": "gateway, counting", "calls": calls, "rounds": rounds,
        "call_us": round(sum(alone.values()) * 1e6, 2),
        "us": {name: round(seconds * 1e6, 2) for name, seconds in alone.items()},
        "scan_us": {size: round(scan * 1e6, 2) for size, (scan, _) in scans.items()},
        "read_us": {size: round(read * 1e6, 2) for size, (_, read) in scans.items()},
        "asked_ms": round(asked * 1e3, 2),
    }  # fmt: skip


if __name__ == "__main__":
    run_command(__doc__, measure, indent=2, calls=20_000, rounds=9)
