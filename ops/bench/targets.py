"""Simulated evaluations with several targets.

    simulate_targets(gains, shared, tasks, count, seed)     how many lift what they do not
    simulate_lifts(gains, tasks, count, seed)               how many lift any
    simulate_harm(tasks, count, seed)                       how many pass that harm a kind

Each target is a kind of its own; with `shared`, each is a kind in equal shares with the next one,
so that every task belongs to two targets. Verdicts are drawn as in simulation.py, four trials a
task, and judged by the gate's tests (daemon/evaluation/gate/), with the bound of looks.py.
"""

from collections.abc import Sequence
from random import Random
from statistics import NormalDist, mean
from typing import Final

from daemon.evaluation.gate.levels import LEVEL
from daemon.evaluation.gate.pairs import Pair
from daemon.evaluation.gate.target_tests import judge_targets, list_differences
from daemon.evaluation.targets import PlannedTarget
from events.gate import GateSettings
from ops.bench.looks import bound
from ops.bench.pieces import Json
from ops.bench.simulation import pairs, spread

TRIALS: Final = 4
ALPHA: Final = 0.05
_NORMAL: Final = NormalDist()


def simulate_targets(
    gains: Sequence[float], shared: bool, tasks: int, count: int, seed: int
) -> Json:
    """How many of `count` candidates that gain so much on each kind are said to lift a target on
    which they gain nothing."""
    chance = Random(f"targets {gains} {shared} {tasks} {seed}")
    targets = _build_targets(len(gains), shared, tasks)
    false = {
        target.name
        for target in targets
        if sum(gains[int(kind)] * share for kind, share in target.kinds.items()) <= 0
    }
    passed = sum(
        not false.isdisjoint(_find_lifted(chance, gains, targets, tasks)) for _ in range(count)
    )
    return {"count": count, "passed": passed}


def simulate_lifts(gains: Sequence[float], tasks: int, count: int, seed: int) -> Json:
    """How many of `count` candidates are said to lift any target."""
    chance = Random(f"lifts {gains} {tasks} {seed}")
    targets = _build_targets(len(gains), shared=False, tasks=tasks)
    passed = sum(bool(_find_lifted(chance, gains, targets, tasks)) for _ in range(count))
    return {"count": count, "passed": passed}


def simulate_harm(tasks: int, count: int, seed: int) -> Json:
    """How many of `count` candidates are promoted that lift one target by 20 points, and cost the
    kind of another the whole margin."""
    chance = Random(f"harm {tasks} {seed}")
    gains = (0.2, -GateSettings().slice_margin)
    targets = _build_targets(len(gains), shared=False, tasks=tasks)
    margin = GateSettings().slice_margin
    passed = 0
    for _ in range(count):
        drawn = _draw_pairs(chance, gains, tasks)
        lifted = _list_lifted(targets, drawn)
        harmed = tuple(sorted(pair.difference for pair in drawn if pair.slice == "1"))
        passed += "1" in lifted or ("0" in lifted and bound(harmed, LEVEL) > -margin)
    return {"count": count, "passed": passed}


def power_of_first(targets: int, tasks: int, gain: float) -> float:
    """The power of a one-sided normal test at the first level of Holm's method."""
    between, within = spread(gain)
    effect = gain / ((between + within / TRIALS) / tasks) ** 0.5
    return round(_NORMAL.cdf(effect - _NORMAL.inv_cdf(1 - ALPHA / targets)), 3)


def _build_targets(count: int, shared: bool, tasks: int) -> list[PlannedTarget]:
    if not shared:
        return [PlannedTarget.of_count(str(n), tasks) for n in range(count)]
    return [
        PlannedTarget(
            name=f"mixture {n}", kinds={str(n): 0.5, str((n + 1) % count): 0.5}, planned=tasks
        )
        for n in range(count)
    ]


def _find_lifted(
    chance: Random, gains: Sequence[float], targets: Sequence[PlannedTarget], tasks: int
) -> set[str]:
    """The targets that one candidate is said to lift."""
    return _list_lifted(targets, _draw_pairs(chance, gains, tasks))


def _list_lifted(targets: Sequence[PlannedTarget], drawn: Sequence[Pair]) -> set[str]:
    values = {target.name: list_differences(target, drawn) for target in targets}
    results = judge_targets(targets, values, "sign_flip", ALPHA)
    return {
        name
        for name, (result, _) in results.items()
        if result.verdict == "PASS" and mean(values[name]) >= GateSettings().min_gain
    }


def _draw_pairs(chance: Random, gains: Sequence[float], tasks: int) -> list[Pair]:
    """The verdicts of all kinds. A loss is a gain with the sides exchanged, for clipping would make
    a loss of tasks that are hardly passed a smaller one."""
    drawn = []
    for kind, gain in enumerate(gains):
        for pair in pairs(chance, tasks, TRIALS, abs(gain)):
            before, after = pair.incumbent, pair.candidate
            if gain < 0:
                before, after = after, before
            drawn.append(Pair(f"{kind} {pair.task}", str(kind), before, after))
    return drawn
