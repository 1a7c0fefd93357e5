"""How often the interval of the cumulative lift is wrong, on simulated traffic.

    python -m ops.bench.lift [--runs N] [--rows TEXT]

Method. Sessions begin as a Poisson process, ten a minute, until `Traffic.sessions` have begun. Each
is held out with a probability of `share`, and succeeds with its arm's probability at that moment:
the holdout with `success`, drifting as `drift` says, the loop with `lift` more (at most .999). Its
verdict comes after exponential minutes with the mean of its outcome, some verdicts hours later, and
some never. At `LOOKS` moments, spread evenly over the logarithm of the number of sessions, the
product's own functions (`daemon.serving.lift`) say the interval from the verdicts that are there.

    {"benchmark": "lift", "rows": [{"row", "runs", "miscovered", "false_claim", "found",
      "width", "alarms", ...}], "passed"}

`miscovered`: share of the runs in which some look's interval does not hold the difference of the
arms' mean success probabilities over the sessions that it counts. `false_claim`: share in which
some look's interval leaves out 0 where both policies are equal. `found`: share in which the last
interval lies above 0. `width`: mean width of the last interval. `alarms`: share of the runs in
which the shares, or the judged shares, were said to be off. A row is met unless the 95 % interval
(Wilson) of `miscovered` or `false_claim` lies above 5 %, that of `alarms` above 2 % where nothing
is off, or `found` or `alarms` is below the row's bound. Exit code 1 where a row is not met. Runs
are seeded by their number.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from daemon.serving.confidence_sequence import bound_mean
from daemon.serving.lift import ERROR
from daemon.serving.sequential_test import UNEQUAL, longest_wait, measure_share_mismatch
from ops.bench.intervals import wilson

Columns = NDArray[Any]

LOOKS: Final = 30
_FIRST_LOOK: Final = 20
RATE: Final = 10.0
"""Sessions per minute."""
_LATE_MINUTES: Final = 300.0
_ALARMS: Final = 0.02


def _constant(places: Columns) -> Columns:
    return np.zeros_like(places)


def _decline(places: Columns) -> Columns:
    return -0.4 * places


def _step(places: Columns) -> Columns:
    return np.where(places < 0.3, 0.0, -0.35)


def _wave(places: Columns) -> Columns:
    return 0.15 * np.sin(12 * np.pi * places)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What sessions are like."""

    success: float = 0.8
    """Success probability of the holdout, before drift."""
    lift: float = 0.0
    share: float = 0.02
    drift: Callable[[Columns], Columns] = _constant
    """Part of the traffic that is past (0 to 1) -> what is added to the success probability."""
    minutes_pass: float = 10.0
    minutes_fail: float = 10.0
    judged: tuple[float, float] = (1.0, 1.0)
    """Shares of the holdout's and of the loop's sessions that are judged."""
    late: float = 0.0
    """Share of the verdicts that come hours after the end."""
    drawn: float | None = None
    """Share with which sessions are held out in truth; None for `share`."""
    sessions: int = 10_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of a run as columns, in the order in which they begin; times in minutes."""

    held_out: Columns
    probability: Columns
    success: Columns
    began: Columns
    ended: Columns
    judged: Columns
    """When the verdict comes; infinite for never."""


def simulate(traffic: Traffic, seed: int) -> Sessions:
    """Return the sessions of a run."""
    chance = np.random.default_rng(seed)
    count = traffic.sessions
    began = np.cumsum(chance.exponential(1 / RATE, count))
    share = traffic.share if traffic.drawn is None else traffic.drawn
    held_out = chance.random(count) < share
    places = np.arange(count) / count
    base = np.clip(traffic.success + traffic.drift(places), 0.001, 0.999)
    loop = np.clip(base + traffic.lift, 0.001, 0.999)
    probability = np.where(held_out, base, loop)
    success = chance.random(count) < probability
    minutes = np.where(success, traffic.minutes_pass, traffic.minutes_fail)
    ended = began + chance.exponential(1.0, count) * minutes
    late = np.where(chance.random(count) < traffic.late, _LATE_MINUTES, 0.0)
    known = chance.random(count) < np.where(held_out, *traffic.judged)
    judged = np.where(known, ended + late, np.inf)
    return Sessions(held_out, probability, success, began, ended, judged)


@dataclass(frozen=True, slots=True)
class Look:
    """The interval at a moment, and the truth."""

    low: float
    high: float
    truth: float | None
    """Difference of the arms' mean success probabilities; None while one has no verdict."""
    alarm: bool


def look_at(sessions: Sessions, number: int, share: float) -> Look:
    """Return the interval when `number` sessions have begun, as `measure_lift` gives it (a test
    compares them)."""
    now = sessions.began[number - 1]
    known = sessions.judged[:number] <= now
    held_out, success = sessions.held_out[:number], sessions.success[:number]
    ages = sessions.judged[:number] - sessions.began[:number]
    waits = [
        ages[known & (held_out == arm) & (success == outcome)].tolist()
        for arm in (True, False)
        for outcome in (True, False)
    ]
    over = (sessions.ended[:number] <= now) & (sessions.began[:number] < now - longest_wait(waits))
    pending = np.flatnonzero(~(known | over))
    due = int(pending[0]) if len(pending) else number
    counted = known[:due]
    arms = [counted & (held_out[:due] == arm) for arm in (True, False)]
    judged = [int(arm.sum()) for arm in arms]
    successes = [int(success[:due][arm].sum()) for arm in arms]
    holdout, loop = (
        bound_mean(passed, count, ERROR / 2)
        for passed, count in zip(successes, judged, strict=True)
    )
    truth = None
    if all(judged):
        held, others = (float(sessions.probability[:due][arm].mean()) for arm in arms)
        truth = others - held
    drawn = int(held_out.sum())
    mismatches = (
        measure_share_mismatch({(share, True): count, (share, False): others})
        for count, others in ((drawn, number - drawn), judged)
    )
    alarm = any(evidence >= UNEQUAL for evidence in mismatches)
    return Look(loop[0] - holdout[1], loop[1] - holdout[0], truth, alarm)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run's intervals came to."""

    miscovered: bool
    false_claim: bool
    alarm: bool
    last: Look


def look_repeatedly(traffic: Traffic, seed: int) -> Run:
    """Return how the intervals of a run compare with the truth."""
    sessions = simulate(traffic, seed)
    ratio = traffic.sessions / _FIRST_LOOK
    numbers = sorted({round(_FIRST_LOOK * ratio ** (look / (LOOKS - 1))) for look in range(LOOKS)})
    looks = [look_at(sessions, number, traffic.share) for number in numbers]
    return Run(
        miscovered=any(
            look.truth is not None and not look.low <= look.truth <= look.high for look in looks
        ),
        false_claim=not traffic.lift and any(not look.low <= 0 <= look.high for look in looks),
        alarm=any(look.alarm for look in looks),
        last=looks[-1],
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of traffic, and what must hold for it."""

    name: str
    traffic: Traffic
    found: float | None = None
    """How often the loop's gain must be shown at the end."""
    alarm: float | None = None
    """How often the alarm must have been raised; None where nothing is off."""

    def document(self, runs: int) -> dict[str, Any]:
        """Return the row measured."""
        results = [look_repeatedly(self.traffic, seed) for seed in range(runs)]
        rates = {
            "miscovered": mean(run.miscovered for run in results),
            "false_claim": mean(run.false_claim for run in results),
            "found": mean(run.last.low > 0 for run in results),
            "alarms": mean(run.alarm for run in results),
        }
        bounds = {"miscovered": ERROR, "false_claim": ERROR}
        if self.alarm is None:
            bounds["alarms"] = _ALARMS
        met = all(
            wilson(round(rates[name] * runs), runs)[0] <= most for name, most in bounds.items()
        )
        met = met and rates["found"] >= (self.found or 0) and rates["alarms"] >= (self.alarm or 0)
        width = mean(run.last.high - run.last.low for run in results)
        rounded = {name: round(rate, 4) for name, rate in rates.items()}
        return {"row": self.name, "runs": runs, **rounded, "width": round(width, 4), "met": met}


def _rows() -> Iterator[Row]:
    weathers: dict[str, dict[str, Any]] = {
        "steady": {},
        "declining": {"drift": _decline},
        "harder at once, slow failures": {"drift": _step, "minutes_fail": 60.0},
        "waves, slow successes": {"drift": _wave, "minutes_pass": 60.0},
    }
    for share in (0.02, 0.1):
        for name, changes in weathers.items():
            traffic = Traffic(share=share, **changes)
            yield Row(f"equal at .8, share {share:g}, {name}", traffic)
            yield Row(f".8 to .95, share {share:g}, {name}", replace(traffic, lift=0.15))
    tenth = Traffic(share=0.1)
    yield Row("equal at .5, share .1", replace(tenth, success=0.5))
    yield Row("equal at .95, share .1", replace(tenth, success=0.95))
    yield Row("equal at .99, share .1", replace(tenth, success=0.99))
    yield Row("equal at .99, share .02", Traffic(success=0.99))
    yield Row(".5 to .8, share .02", Traffic(success=0.5, lift=0.3), found=0.95)
    yield Row(".8 to .9, share .1", replace(tenth, lift=0.1), found=0.9)
    yield Row(".8 to .7, share .1", replace(tenth, lift=-0.1))
    yield Row("a third judged, a third of it late, slow failures",
              replace(tenth, judged=(0.3, 0.3), late=0.3, minutes_fail=60.0))  # fmt: skip
    yield Row("held out .015 where it should be .02, 50,000 sessions",
              Traffic(drawn=0.015, sessions=50_000), alarm=0.5)  # fmt: skip
    yield Row("held out .05 where it should be .1", replace(tenth, drawn=0.05), alarm=0.99)
    yield Row("half of the holdout's judged, all of the loop's",
              replace(tenth, judged=(0.5, 1.0)), alarm=0.99)  # fmt: skip


ROWS: Final = tuple(_rows())
"""What holds: errors of at most 5 % over all looks, and what is shown beside them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--rows", default="", help="only those whose name has this text")
    options = parser.parse_args(arguments)
    rows = list[dict[str, Any]]()
    for row in ROWS:
        if options.rows in row.name:
            rows.append(row.document(options.runs))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    passed = all(row["met"] for row in rows)
    print(json.dumps({"benchmark": "lift", "rows": rows, "passed": passed}, indent=2))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
