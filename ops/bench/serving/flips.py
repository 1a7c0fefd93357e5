"""Measure how soon an adapter answers after it passed the gate (place, count -> figures).

The adapter is staged. Then the clock runs: `GateDecided` is appended and folded, the publisher
promotes, `RouteChanged` is appended and folded, the gateway follows, and a client that asks again
and again reads the first token that the new adapter wrote. Once without other clients, once while
eight clients stream.
"""

import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Final, Self
from uuid import uuid4

import httpx2

from daemon.core.decision_log import Decisions
from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.measurements import Conduct, Evaluation
from daemon.evaluation.targets import PlannedTarget
from events.gate import GateReport, GateSettings
from events.serving import AdapterEvaluated, GateDecided, PassRates
from ops.bench.pieces import Json
from ops.bench.serving.place import ALIAS, BASE, PATIENCE_SECONDS, WHO, Place
from ops.bench.serving.publishes import directories, run_clients
from ops.bench.simulation import pairs
from ops.random_adapters import Maker

GOAL_SECONDS: Final = 1.0
LOADS: Final = {"alone": 0, "loaded": 8}
"""Clients beside the one that looks."""

_TASKS, _TRIALS, _GAIN = 60, 4, 0.4
_LOOK_SECONDS: Final = 0.001
"""Between two looks for a first token; its own time is taken where it is read."""
_CALM: Final = Conduct(rollouts=240, violations=0, tool_calls=1, malformed=0, tokens=1)


def build_report() -> GateReport:
    """What the gate says of a candidate that is clearly better."""
    tried = pairs(Random(1), _TASKS, _TRIALS, _GAIN)
    target = PlannedTarget.of_count("target", _TASKS)
    report = decide(Evaluation([target], tried, _CALM, _CALM), GateSettings())
    assert report.decision == "PROMOTE", report
    return report


class Looker:
    """A client that asks again and again, and notes when it first reads of each adapter."""

    def __init__(self, url: str) -> None:
        self.first: dict[str, float] = {}
        """Adapter -> when its first token was read."""
        self.failures: list[str] = []
        self._client = httpx2.Client(base_url=url, timeout=60, trust_env=False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    def wait(self, adapter: str) -> float:
        """When an adapter's first token was read. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while adapter not in self.first:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{adapter} never answered; {self.failures[:3]}")
            time.sleep(_LOOK_SECONDS)
        return self.first[adapter]

    def _look(self) -> None:
        while not self._over.is_set():
            try:
                self._ask()
            except (httpx2.HTTPError, ValueError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def _ask(self) -> None:
        session = uuid4().hex
        body = {
            "model": ALIAS, "messages": [{"role": "user", "content": "Hello"}], "stream": True,
            "max_tokens": 1, "ignore_eos": True,
        }  # fmt: skip
        headers = {"x-kintsugi-session": session}
        asked = self._client.stream("POST", "/chat/completions", json=body, headers=headers)
        with asked as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if _is_text(line):
                    name = answer.headers["x-kintsugi-adapter"]
                    self.first.setdefault(name, time.perf_counter())
        self._client.post(f"/sessions/{session}/end").raise_for_status()


def _is_text(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return any(choice["delta"].get("content") for choice in choices)


def flip(here: Place, directory: Path, looker: Looker) -> tuple[float, float]:
    """Seconds from before `GateDecided` to the turned route, and to the adapter's first token."""
    name = here.bring(directory)
    incumbent = here.publisher.route(ALIAS, BASE).incumbent
    decisions, report = Decisions(here.app), build_report()
    cause = decisions.act(WHO, "adapters evaluate", {"adapter": name})
    rates = PassRates(incumbent=0.4, candidate=0.8)
    measured = AdapterEvaluated(
        adapter=name, incumbent=incumbent, environment="simulated", tasks=_TASKS, trials=_TRIALS,
        pass_hat_1=rates,
    )  # fmt: skip
    decisions.take(measured, "evaluated", cause)
    decided = GateDecided(adapter=name, alias=ALIAS, incumbent=incumbent, report=report)
    began = time.perf_counter()
    decisions.take(decided, "gate", cause)
    here.publisher.promote(name, WHO)
    turned = time.perf_counter()
    first = looker.wait(name)
    here.settle()
    return turned - began, first - began


def piece(here: Place, maker: Maker, folder: Path, count: int, seed: int) -> Json:
    """`count` flips alone, and as many under load."""
    results: Json = {"flips": count}
    for number, (load, clients) in enumerate(LOADS.items()):
        # Numbers that no publish has.
        first = 2 * 10**7 + 2 * seed + number * count
        adapters = directories(maker, folder / f"flips-{load}-{seed}", count, first)
        with _beside(here, clients), Looker(here.gateway.url) as looker:
            took = [flip(here, directory, looker) for directory in adapters]
        results[load] = {
            "turned": [value for value, _ in took],
            "first_token": [value for _, value in took],
            "failed": len(looker.failures),
        }
    return results


@contextmanager
def _beside(here: Place, clients: int) -> Iterator[None]:
    with run_clients(here.gateway.url, clients) if clients else nullcontext():
        yield


def document(pieces: Sequence[Json]) -> Json:
    """All pieces as one. Seconds."""
    results: Json = {"flips": sum(part["flips"] for part in pieces), "goal_seconds": GOAL_SECONDS}
    for load in LOADS:
        sides = [part[load] for part in pieces]
        results[load] = {
            "failed": sum(side["failed"] for side in sides),
            **{
                what: _quantiles([value for side in sides for value in side[what]])
                for what in ("turned", "first_token")
            },
        }
    results["met"] = all(
        results[load]["first_token"]["longest"] < GOAL_SECONDS and not results[load]["failed"]
        for load in LOADS
    )
    return results


def _quantiles(values: Sequence[float]) -> Json:
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 3),
        "p95": round(ordered[int(0.95 * len(ordered))], 3),
        "longest": round(ordered[-1], 3),
    }
