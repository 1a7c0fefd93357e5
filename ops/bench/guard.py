"""Measure how often the product's live guard is wrong, on simulated sessions.

    python -m ops.bench.guard [--runs N] [--rate PER_MIN] [--share X] [--incumbent P] [--canary P]
        [--minutes-pass M] [--minutes-fail M] [--harder-after MIN:P_FACTOR] [--table]

Method. Sessions begin as a Poisson process. Each is drawn by the share in force, succeeds with its
arm's probability (`--incumbent`, `--canary`), and its verdict comes after so many minutes on
average (exponential; `--minutes-pass`, `--minutes-fail`). After `MIN` minutes both probabilities
are multiplied by `P_FACTOR` (at most .99). Each minute of a day the verdicts that are there are
given to a guard, and `canaries.decide`, as in `kintsugi work`, rolls the canary back, promotes it,
raises its share, or lets it expire. `--share` is its share throughout; without it, shares are the
product's default steps. Further: `--risk-ratio` has the canary fail so many times as often as the
incumbent at every moment, in place of `--canary`; `--judged` is the part of the sessions that is
judged (`I:C` for each arm); `--late` the part of the verdicts that comes hours late; `--burst` so
many times the rate in every sixth ten minutes; `--slow-canary` multiplies the canary's minutes to
a failure; `--kinds` splits traffic into so many kinds of task, and `--harmed` is the canary's
probability at the last of them.

    {"runs", "rolled_back", "promoted", "undecided", "median_minutes", "low", "high", ...}

`rolled_back`, `promoted` and `undecided` are shares of all runs; `median_minutes` and
`median_verdicts` are of those that were decided, null where none was. `--table` measures every row
of `ROWS`: where a row has a bound, it is `met` unless the 95 % interval (Wilson) of the rate lies
above it (below it, where it is the power). Exit code 1 where a row is not met. Runs are seeded by
their number: the figures are the same on every machine.
"""

import heapq
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from math import inf, sqrt
from random import Random
from statistics import median
from typing import Any, Final, Protocol

from consumers.folds.routing import RouteState
from consumers.reads.serving import AdapterRow, RouteRow
from daemon.config.settings import Canary
from daemon.serving.canary_monitor import CanaryEvidence, decide
from daemon.serving.sequential_test import (
    Arm,
    ArmSession,
    LiveGuard,
    longest_wait,
    measure_final_evidence,
)
from events.envelope import timestamp
from events.lifecycle import State
from events.serving import RouteShare, Why
from ops.command_line import build_parser

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_LATE_MINUTES: Final = 240.0
_BURST_MINUTES: Final = 10
_MOST: Final = 0.99
_Z: Final = 1.96


@dataclass(frozen=True, slots=True)
class Traffic:
    """Properties of simulated sessions."""

    rate: float = 10.0
    """Sessions per minute."""
    shares: tuple[float, ...] = Canary().shares
    incumbent: float = 0.6
    canary: float = 0.6
    minutes_pass: float = 10.0
    minutes_fail: float = 10.0
    harder_after: tuple[float, float] | None = None
    """(minute, factor): from this minute on, success probabilities are multiplied by the factor."""
    risk_ratio: float | None = None
    judged: tuple[float, float] = (1.0, 1.0)
    """Shares of the incumbent's and the canary's sessions that are judged."""
    late: float = 0.0
    burst: float = 1.0
    slow_canary: float = 1.0
    kinds: int = 1
    harmed: float | None = None
    """The canary's success probability for the last kind of task; None if as for others."""

    def success(self, arm: Arm, kind: int, minute: float) -> float:
        """Return the success probability of a session that begins at `minute`."""
        harder, factor = self.harder_after or (0.0, 1.0)
        factor = factor if minute >= harder else 1.0
        incumbent = min(_MOST, self.incumbent * factor)
        if arm == "incumbent":
            return incumbent
        if self.harmed is not None and kind == self.kinds - 1:
            return min(_MOST, self.harmed * factor)
        if self.risk_ratio is not None:
            return max(0.0, 1 - self.risk_ratio * (1 - incumbent))
        return min(_MOST, self.canary * factor)

    def arrivals(self, chance: Random) -> Iterator[float]:
        """Yield the times at which sessions begin, in minutes."""
        minute = 0.0
        while True:
            busy = self.burst if minute // _BURST_MINUTES % 6 == 0 else 1.0
            minute += chance.expovariate(self.rate * busy)
            yield minute


@dataclass(frozen=True, slots=True)
class WatchOutcome:
    """The decision about one canary, and when it was made."""

    why: Why
    minutes: float
    verdicts: int


class Watch:
    """Simulation of one canary, from its first session until the guard decides."""

    def __init__(self, traffic: Traffic, settings: Canary, seed: int) -> None:
        self._traffic = traffic
        self._settings = settings
        self._chance = Random(f"guard {seed}")
        self._guard = LiveGuard(settings.risk_ratio)
        self._share = settings.shares[0]
        self._verdicts: list[tuple[float, int, Arm, int, bool, float]] = []
        """Heap of (minute, number, arm, kind, success, share)."""
        self._sessions: list[tuple[ArmSession, float, float]] = []
        """(session, minute of its end, minute of its verdict); infinite for never."""
        self._minute = 0.0

    def end(self) -> WatchOutcome:
        """Run the watch and return its outcome."""
        arrivals = self._traffic.arrivals(self._chance)
        number, begins, minute = 0, next(arrivals), 0
        while True:
            minute += 1
            while begins < minute:
                self._begin(number, begins)
                number, begins = number + 1, next(arrivals)
            self._hear(minute)
            turned = decide(self._read_canary(), self._settings, _START + timedelta(minutes=minute))
            if turned is not None and turned.why != "canary":
                return WatchOutcome(turned.why, minute, self._guard.count_verdicts("canary")
                             + self._guard.count_verdicts("incumbent"))  # fmt: skip
            if turned is not None:
                shares = turned.shares
                self._share = next(part.share for part in shares if part.adapter is not None)

    def _begin(self, number: int, minute: float) -> None:
        traffic, chance, share = self._traffic, self._chance, self._share
        arm: Arm = "canary" if chance.random() < share else "incumbent"
        kind = chance.randrange(traffic.kinds)
        success = chance.random() < traffic.success(arm, kind, minute)
        mean = traffic.minutes_pass if success else traffic.minutes_fail
        if arm == "canary" and not success:
            mean *= traffic.slow_canary
        ends = minute + chance.expovariate(1 / mean)
        judged = inf
        if chance.random() < traffic.judged[arm == "canary"]:
            judged = ends + (_LATE_MINUTES if chance.random() < traffic.late else 0.0)
            heapq.heappush(self._verdicts, (judged, number, arm, kind, success, share))
        begun = ArmSession(f"{minute:012.6f}", arm, share, success)
        self._sessions.append((begun, ends, judged))

    def _hear(self, minute: float) -> None:
        self._minute = minute
        while self._verdicts and self._verdicts[0][0] <= minute:
            when, number, arm, kind, success, share = heapq.heappop(self._verdicts)
            at = (f"{when:012.6f}", str(number))
            self._guard.count(arm, f"kind {kind}", success, share, at)

    def _weigh_evidence(self) -> float:
        """Return the weight of final evidence, computed as in
        `CanaryHistory.measure_final_evidence`."""
        waits: dict[tuple[Arm, bool | None], list[float]] = {}
        for begun, _, judged in self._sessions:
            if judged <= self._minute:
                age = judged - float(begun.began)
                waits.setdefault((begun.arm, begun.success), []).append(age)
        latest = float(self._sessions[-1][0].began) if self._sessions else 0.0
        awaited = f"{max(0.0, latest - longest_wait(waits.values())):012.6f}"
        sessions = [
            begun
            if judged <= self._minute
            else begun._replace(success=None, ended=ends <= self._minute)
            for begun, ends, judged in self._sessions
        ]
        return measure_final_evidence(sessions, self._settings.risk_ratio, awaited)

    def _read_canary(self) -> CanaryEvidence:
        return CanaryEvidence(
            _route(self._share), _CANARY, self._guard, lambda: (),
            self._weigh_evidence, {},
        )  # fmt: skip


_CANARY: Final = AdapterRow(
    adapter="canary", alias="agent", base="base", sha256="", path="", capability=None, job=None,
    origin="push", state=State.CANARY, reason="", replicas=(), distance=None, from_base=None,
    incumbent=None, gate=None, since=timestamp(_START), cause="canary", offset=0,
)  # fmt: skip


def _route(share: float) -> RouteRow:
    shares = (RouteShare(adapter="canary", share=share), RouteShare(share=1 - share))
    standing = RouteState("base", shares, None, None, ())
    return RouteRow("agent", standing, "canary", "", timestamp(_START), "canary", 0)


def measure(traffic: Traffic, runs: int) -> dict[str, Any]:
    """Return the statistics of `runs` simulated canaries."""
    settings = Canary(shares=traffic.shares)
    ends = [Watch(traffic, settings, seed).end() for seed in range(runs)]
    whys = Counter(end.why for end in ends)
    decided = [end for end in ends if end.why != "expired"]
    return {
        "runs": runs,
        "rolled_back": round(whys["rollback"] / runs, 4),
        "promoted": round(whys["promoted"] / runs, 4),
        "undecided": round(whys["expired"] / runs, 4),
        "median_minutes": median(end.minutes for end in decided) if decided else None,
        "median_verdicts": median(end.verdicts for end in decided) if decided else None,
    }


def wilson(passed: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval for the share `passed` / `count`."""
    share, square = passed / count, _Z**2 / count
    middle = (share + square / 2) / (1 + square)
    half = _Z * sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return middle - half, middle + half


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a kind of traffic, and bounds on the shares of outcomes."""

    name: str
    traffic: Traffic
    rolled_back: float | None = None
    promoted: float | None = None
    power: tuple[str, float] | None = None
    """(outcome, least probability that it must have)."""

    def document(self, runs: int) -> dict[str, Any]:
        """Measure the row in `runs` simulations and return its figures."""
        figures = measure(self.traffic, runs)
        bounds = {"rolled_back": self.rolled_back, "promoted": self.promoted}
        intervals = {name: wilson(round(figures[name] * runs), runs) for name in bounds}
        met = all(
            bound is None or intervals[name][0] <= bound for name, bound in bounds.items()
        )  # fmt: skip
        if self.power is not None:
            met = met and intervals[self.power[0]][1] >= self.power[1]
        rounded = {name: [round(end, 4) for end in ends] for name, ends in intervals.items()}
        return {
            "row": self.name, **figures, "intervals": rounded, "at_most": bounds,
            "at_least": self.power, "met": met,
        }  # fmt: skip


_SAME: Final = Traffic()
_BOUND: Final = Traffic(risk_ratio=1.25)
_FAST: Final = Traffic(shares=(0.5,))
_SLOW_FAILURES: Final = {"minutes_fail": 40.0}
_SLOW_SUCCESSES: Final = {"minutes_pass": 40.0}


def _rows(name: str, traffic: Traffic, **bounds: Any) -> Iterator[Row]:
    weathers: dict[str, dict[str, Any]] = {
        "steady": {},
        "failures last longer": _SLOW_FAILURES,
        "successes last longer, bursts": {"burst": 10.0, "rate": 5.0, **_SLOW_SUCCESSES},
        "failures last longer, harder": {"harder_after": (120.0, 0.6), **_SLOW_FAILURES},
        "failures last longer, easier": {"harder_after": (120.0, 1.5), **_SLOW_FAILURES},
        "a tenth judged, a third of them late": {"judged": (0.1, 0.1), "late": 0.33},
        "share .01": {"shares": (0.01,), **_SLOW_FAILURES},
        "share .5": {"shares": (0.5,), **_SLOW_FAILURES},
        "shares .01 to .5": {"shares": (0.01, 0.05, 0.2, 0.5), **_SLOW_FAILURES},
        "five kinds": {"kinds": 5},
    }
    for weather, changes in weathers.items():
        yield Row(f"{name}, {weather}", replace(traffic, **changes), **bounds)


ROWS: Final = (
    *_rows("identical at .6", _SAME, rolled_back=0.05),
    Row("identical at .98", replace(_SAME, incumbent=0.98, canary=0.98), rolled_back=0.05),
    Row("identical at .05", replace(_SAME, incumbent=0.05, canary=0.05), rolled_back=0.05),
    *_rows("risk ratio 1.25 at .6", _BOUND, promoted=0.05),
    Row("risk ratio 1.25 at .95", replace(_BOUND, incumbent=0.95, shares=(0.5,)), promoted=0.05),
    Row("risk ratio 1.25 at .22", replace(_BOUND, incumbent=0.22), promoted=0.05),
    Row("worse by .2", replace(_SAME, incumbent=0.5, canary=0.3), promoted=0.05,
        power=("rolled_back", 0.9)),
    Row("worse by .2, easier", replace(_SAME, incumbent=0.5, canary=0.3, minutes_fail=40,
                                       harder_after=(120.0, 1.5)), promoted=0.05,
        power=("rolled_back", 0.9)),
    Row("worse by .1, successes last longer",
        replace(_SAME, incumbent=0.7, canary=0.6, minutes_pass=40), promoted=0.05,
        power=("rolled_back", 0.8)),
    Row("broken", replace(_SAME, incumbent=0.95, canary=0.1), promoted=0.05,
        power=("rolled_back", 0.99)),
    Row("harm at one kind of five", replace(_SAME, incumbent=0.8, canary=0.82, kinds=5, harmed=0.4),
        power=("rolled_back", 0.9)),
    Row("worse, and four times as slow to fail",
        replace(_SAME, incumbent=0.7, canary=0.5, rate=60, slow_canary=4), promoted=0.05),
    Row("risk ratio 1.25, and four times as slow to fail",
        replace(_BOUND, incumbent=0.7, rate=60, slow_canary=4, shares=(0.25,)), promoted=0.05),
    Row("risk ratio 1.25, half as often judged",
        replace(_BOUND, incumbent=0.6, judged=(0.8, 0.4)), promoted=0.05),
    Row("better by .1", replace(_SAME, canary=0.7), rolled_back=0.05, power=("promoted", 0.9)),
    Row("as the demo's: .45 to .85, half of the sessions",
        replace(_FAST, rate=60, incumbent=0.45, canary=0.85, minutes_pass=0.2, minutes_fail=0.3),
        rolled_back=0.05, power=("promoted", 0.99)),
)  # fmt: skip


def _drift(text: str) -> tuple[float, float]:
    minutes, factor = text.split(":")
    return float(minutes), float(factor)


def _of_both(text: str) -> tuple[float, float]:
    parts = [float(part) for part in text.split(":")]
    return parts[0], parts[-1]


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "harder_after": _drift,
    "judged": _of_both,
    "kinds": int,
}


class Measurable(Protocol):
    """A row of a benchmark's table."""

    @property
    def name(self) -> str:
        """Return the row's name."""

    def document(self, runs: int) -> dict[str, Any]:
        """Measure the row in `runs` simulations; `met` says whether its bounds hold."""


def print_rows(benchmark: str, rows: Sequence[Measurable], text: str, runs: int) -> int:
    """Measure and print the rows whose name contains `text`; return 0 if all are met, else 1."""
    documents = list[dict[str, Any]]()
    for row in rows:
        if text in row.name:
            documents.append(row.document(runs))
            print(json.dumps(documents[-1]), file=sys.stderr, flush=True)
    passed = all(document["met"] for document in documents)
    print(json.dumps({"benchmark": benchmark, "rows": documents, "passed": passed}, indent=2))
    return 0 if passed else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document."""
    parser = build_parser(__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--share", type=float)
    own = [item for item in fields(Traffic) if item.name != "shares"]
    for item in own:
        flag, read = f"--{item.name.replace('_', '-')}", _READERS.get(item.name, float)
        parser.add_argument(flag, type=read, default=item.default)
    parser.add_argument("--table", action="store_true", help="measure every row of ROWS")
    parser.add_argument("--rows", default="", help="of the table, those whose name has this")
    options = parser.parse_args(arguments)
    if not options.table:
        changes = {item.name: getattr(options, item.name) for item in own}
        if options.share is not None:
            changes["shares"] = (options.share,)
        print(json.dumps(measure(Traffic(**changes), options.runs)))
        return 0
    return print_rows("guard", ROWS, options.rows, options.runs)


if __name__ == "__main__":
    sys.exit(main())
