"""How often the gate is wrong: its tests on simulated evaluations. (Of the live guard: guard.py.)

    python -m ops.bench.gate [--count 2000] [--rows looks] [--checkpoint FILE]

Method. Evaluations are drawn with the spread of tasks and trials that ALGORITHMS 6.3 plans with
(simulation.py), `--count` for each row; 20,000 is the nightly size. `rate` is how often the gate
let the candidate pass, `low` and `high` its 95 % interval (Wilson). A row is `met` where the
interval does not contradict the plan: a candidate that is no better passes in no more than
`planned` of the cases, one that is better in no fewer but for 0.05. `planned` is then the power of
a normal test at the variances of these draws; a test by steps, exact and over few tasks, has less;
`table` is what ALGORITHMS 6.3 says, which takes the variances not to grow with the gain.

    sign_flip          at the size planned for +5 points, and at others of the table
    group_sequential   four looks with a stop for futility, which costs power
    e_process          at any time; `tasks_50` and `tasks_80`: by when so many per cent had passed
    kinds              three kinds that a candidate does not change, so many tasks each, beside a
                       target that it masters: `rate` of rejections
    looks              one other kind at all looks that may be taken at it (looks.py): `rate` of
                       those that pass, where the candidate is worse by the margin, and is not
    targets            several targets (targets.py): `rate` of candidates that are said to lift one
                       that they do not, of those that lift one of several, and of those that pass
                       though they cost the kind of another target the margin
    cycles             20 candidates, each of which may change one kind (cycles.py): `rate` of
                       chains that end below the margin of the best policy that ever served it, and
                       of candidates that are promoted; the rule of earlier versions beside it
    violations         `rate` of equal candidates that fail by theirs

Exit code 1 where a row is not met. Pure arithmetic: the figures are the same on every machine.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Final

from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.measurements import Conduct, Evaluation
from daemon.evaluation.gate.pairs import Pair
from daemon.evaluation.gate.target_tests import verdict_of
from daemon.evaluation.targets import PlannedTarget
from events.gate import Decision, GateSettings, Test
from ops.bench.cycles import count_promotions, simulate_chains
from ops.bench.intervals import wilson
from ops.bench.looks import simulate_looks, simulate_violations
from ops.bench.pieces import Json, Pieces
from ops.bench.simulation import many, pairs, spread
from ops.bench.targets import (
    power_of_first,
    simulate_harm,
    simulate_lifts,
    simulate_targets,
)

ALPHA: Final = 0.05
PIECE: Final = 500
STEPS: Final = 0.05
"""How far a power may lie below that of a normal test: sums of few differences have steps."""
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of evaluation."""

    name: str
    planned: float
    """How often the candidate may pass at most, or has to at least."""
    at_most: bool
    work: Callable[[int, int], Json]
    """Simulates so many with a seed; `passed`, and `stops` where it may stop early."""
    table: float | None = None
    """Power stated in ALGORITHMS 6.3."""

    def document(self, pieces: Sequence[Json]) -> Json:
        """The row, from all pieces."""
        count = sum(piece["count"] for piece in pieces)
        passed = sum(piece["passed"] for piece in pieces)
        low, high = wilson(passed, count)
        met = low <= self.planned if self.at_most else high >= self.planned - STEPS
        figures: Json = {
            "row": self.name, "count": count, "rate": round(passed / count, 4),
            "low": round(low, 4), "high": round(high, 4), "planned": self.planned,
            "wanted": "at most" if self.at_most else "at least", "table": self.table, "met": met,
        }  # fmt: skip
        stops = sorted(stop for piece in pieces for stop in piece.get("stops", ()))
        if stops:
            figures |= {"tasks_50": _by(stops, count, 0.5), "tasks_80": _by(stops, count, 0.8)}
        return figures


def _by(stops: Sequence[int], count: int, share: float) -> int | None:
    """After how many tasks this share of all had passed; None where fewer ever did."""
    place = round(share * count) - 1
    return stops[place] if place < len(stops) else None


def simulate_test(test: Test, tasks: int, trials: int, gain: float, count: int, seed: int) -> Json:
    """How many of `count` evaluations passed a test, and after how many tasks."""
    # Another row must not see the same candidates.
    start = Random(f"{test} {tasks} {trials} {gain} {seed}").getrandbits(32)
    results = [verdict_of(d, tasks, test, ALPHA) for d in many(start, count, tasks, trials, gain)]
    stops = [result.tasks for result in results if result.verdict == "PASS"]
    early = {} if test == "sign_flip" else {"stops": stops}
    return {"count": count, "passed": len(stops), **early}


def count_rejections(tasks: int, trials: int, count: int, seed: int) -> Json:
    """How many of `count` candidates that change nothing but the target, for the better, are
    rejected for one of three other kinds."""
    chance = Random(f"kinds {tasks} {trials} {seed}")
    decisions = [_decide_harmless(chance, tasks, trials) for _ in range(count)]
    return {"count": count, "passed": decisions.count("REJECT")}


def _decide_harmless(chance: Random, tasks: int, trials: int) -> Decision:
    mastered = [Pair(f"m{n}", "target", (False,) * trials, (True,) * trials) for n in range(tasks)]
    kinds = [
        replace(pair, task=f"{kind} {pair.task}", slice=kind)
        for kind in ("a", "b", "c")
        for pair in pairs(chance, tasks, trials, 0.0)
    ]
    same = Conduct(rollouts=1, violations=0, tool_calls=1, malformed=0, tokens=1)
    target = PlannedTarget.of_count("target", tasks)
    evaluation = Evaluation([target], [*mastered, *kinds], same, same)
    return decide(evaluation, GateSettings()).decision


def power(tasks: int, trials: int, gain: float) -> float:
    """Return the power of a one-sided normal test, at the variances that are drawn with."""
    between, within = spread(gain)
    effect = gain / sqrt((between + within / trials) / tasks)
    return round(_NORMAL.cdf(effect - _NORMAL.inv_cdf(1 - ALPHA)), 3)


def _level(test: Test, tasks: int, trials: int, planned: float = ALPHA) -> Row:
    """Return the row of a test on candidates that are no better."""
    name = f"{test}, R={trials}, {tasks} tasks, no gain"
    return Row(name, planned, at_most=True, work=partial(simulate_test, test, tasks, trials, 0.0))


def _power(test: Test, tasks: int, trials: int, gain: float, table: float | None = None) -> Row:
    name = f"{test}, R={trials}, {tasks} tasks, +{100 * gain:g} points"
    work = partial(simulate_test, test, tasks, trials, gain)
    return Row(name, power(tasks, trials, gain), at_most=False, work=work, table=table)


def _kinds(tasks: int) -> Row:
    """Rejected by chance: Holm spends a tenth on all kinds together."""
    name = f"kinds, R=4, {tasks} tasks each, no change: rejected"
    return Row(name, 0.1, at_most=True, work=partial(count_rejections, tasks, 4))


def _looks(trials: int, rate: float, change: float, planned: float) -> Row:
    """A kind that the incumbent passes so often, at up to 512 tasks."""
    label = "worse by the margin" if change else "no change"
    name = f"looks, R={trials}, passed {rate:g}, {label}: passes at any"
    work = partial(simulate_looks, 512, trials, change, rate)
    return Row(name, planned, at_most=change < 0, work=work)


def _violations(expected: float) -> Row:
    name = f"violations, {expected:g} expected of each: equals fail"
    return Row(name, ALPHA, at_most=True, work=partial(simulate_violations, expected))


def _targets(gains: tuple[float, ...], shared: bool = False) -> Row:
    """Targets of 100 tasks, of which a candidate lifts some."""
    lifted = sum(gain > 0 for gain in gains)
    tasks = ", tasks shared" if shared else ""
    name = f"targets, {len(gains)}, {lifted} lifted{tasks}: said of another"
    return Row(name, ALPHA, at_most=True, work=partial(simulate_targets, gains, shared, 100))


def _lifts(targets: int, tasks: int) -> Row:
    """One of several targets lifted by 10 points."""
    gains = (0.1, *(0.0,) * (targets - 1))
    name = f"targets, {targets} of {tasks} tasks, one +10 points: lifted"
    planned = power_of_first(targets, tasks, 0.1)
    return Row(name, planned, at_most=False, work=partial(simulate_lifts, gains, tasks))


def _cycles(label: str, change: tuple[float, float], planned: float, *, best: bool = True) -> Row:
    name = f"cycles, {label}{'' if best else ', incumbent alone'}: below the margin"
    return Row(name, planned, at_most=best, work=partial(simulate_chains, change, best=best))


def _promotions(label: str, change: tuple[float, float], planned: float, best: bool) -> Row:
    name = f"cycles, {label}{'' if best else ', incumbent alone'}: promoted"
    return Row(name, planned, at_most=False, work=partial(count_promotions, change, best=best))


COSTS: Final = (-0.04, -0.01)
ROWS: Final = (
    *(_level("sign_flip", n, r) for r, n in ((1, 700), (4, 191), (8, 106))),
    *(_power("sign_flip", n, r, 0.05, 0.8) for r, n in ((1, 700), (4, 191), (8, 106))),
    *(_power("sign_flip", 164, r, 0.05, p) for r, p in ((1, 0.28), (4, 0.77), (8, 0.94))),
    *(_power("sign_flip", 50, r, 0.1, p) for r, p in ((4, 0.8), (8, 0.95))),
    _level("group_sequential", 191, 4, planned=0.0506),
    _power("group_sequential", 191, 4, 0.05),
    *(_level("e_process", 1500, r) for r in (4, 8)),
    *(_power("e_process", 1500, r, gain) for gain in (0.05, 0.1) for r in (4, 8)),
    *(_kinds(tasks) for tasks in (10, 25, 50, 106)),
    *(_looks(r, rate, -0.05, ALPHA) for rate in (0.45, 0.985, 1.0) for r in (1, 2, 4, 8)),
    *(_looks(r, 0.45, 0.0, p) for r, p in ((1, 0.65), (2, 0.85), (4, 0.95), (8, 0.99))),
    *(_looks(r, 0.985, 0.0, 0.99) for r in (1, 2, 4, 8)),
    *(_targets((0.0,) * n) for n in (1, 2, 3, 4)),
    *(_targets((0.0,) * n, shared=True) for n in (3, 4)),
    _targets((0.2, 0.0, 0.0, 0.0)),
    _targets((0.2, 0.2, 0.0, 0.0)),
    *(_lifts(n, 100) for n in (1, 2, 4)),
    Row(
        "targets, one lifted, the kind of the other worse by the margin: promoted",
        ALPHA,
        at_most=True,
        work=partial(simulate_harm, 100),
    ),
    _cycles("1 to 4 points less each", COSTS, ALPHA),
    _cycles("1 to 4 points less each", COSTS, 0.95, best=False),
    _cycles("4 points either way", (-0.04, 0.04), ALPHA),
    _promotions("no change", (0.0, 0.0), 0.9, best=True),
    _promotions("no change", (0.0, 0.0), 0.9, best=False),
    *(_violations(expected) for expected in (0.3, 1, 3, 10)),
)
"""The sizes of ALGORITHMS 6.3 and 6.4."""


def measure(count: int, pieces: Pieces, rows: Sequence[Row] = ROWS) -> Json:
    """Every row at `count` evaluations."""
    results = [row.document(pieces.of(row.name, count, PIECE, row.work)) for row in rows]
    return {"benchmark": "gate", "rows": results, "passed": all(row["met"] for row in results)}


def main() -> int:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2_000, help="evaluations of each row")
    parser.add_argument("--checkpoint", type=Path, help="goes on where this file ends")
    parser.add_argument("--rows", default="", metavar="WORD", help="only those that begin so")
    options = parser.parse_args()
    rows = [row for row in ROWS if row.name.startswith(options.rows)]
    document = measure(options.count, Pieces(options.checkpoint), rows)
    print(json.dumps(document, indent=2))
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
