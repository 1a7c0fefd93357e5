"""Numbers of tasks that candidate and incumbent play before the gate decides. Pure.

A trial of a task passes with the task's chance p, so the difference of two like players has the
variance 2 p (1 - p), which the incumbent's pilot estimates for each kind. True differences between
tasks are taken to have a standard deviation of 0.1. A target's plan finds the wanted gain with a
power of 80 %, at the level of the first of so many targets (Holm); targets share the tasks of a
common kind. Every other kind gets enough tasks to show that an equal player is within the margin,
and at least those that show it if both always pass. A target's number is fixed before the candidate
plays, since a second look would be a second chance. Kinds are looked at again with doubled tasks,
at most as often as `looks_of` allows, on which the gate's levels rest (gate/).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil, log
from statistics import mean
from typing import TYPE_CHECKING, Final

from daemon.evaluation.gate.levels import level_of
from daemon.evaluation.gate.measurements import Looks
from daemon.evaluation.gate.power import power_of, tasks_for
from daemon.evaluation.targets import PlannedTarget, Target
from events.gate import AFTER_ERROR, RISES, GatePlan, GateReport, GateSettings
from events.messages import StrictModel

if TYPE_CHECKING:
    from daemon.config.settings import Trial

BETWEEN: Final = 0.01
"""Variance of true differences between tasks of a kind."""
_SIBLING_SHARE: Final = 0.5
"""Share of the tasks that a kind without a decision gets."""
_GROWTH: Final = 2
"""Growth of a kind's tasks per look."""
_DRAWN: Final = 0.9
"""A bound by draws (envs/statistics.py) may act at this part of its level."""

Verdicts = Mapping[str, Sequence[Sequence[bool]]]
"""Kind -> each of its tasks -> whether each trial passed."""


class Sizes(StrictModel):
    """Numbers of tasks of each kind."""

    tasks: dict[str, int]
    targets: tuple[PlannedTarget, ...]
    held: tuple[str, ...] = ()
    """Kinds that are also compared with their best policy."""
    siblings: tuple[str, ...] = ()
    """Kinds that are played once and decide nothing (gate/)."""
    first: dict[str, int] | None = None
    """Kind -> tasks at the first look; None if this is the first."""
    look: int = 1

    @property
    def only_target(self) -> str | None:
        """Return the kind of the one target, which is no slice of the gate."""
        return self.targets[0].only_kind if len(self.targets) == 1 else None

    def words(self) -> str:
        """Return the sizes as a sentence for a person."""
        counts: dict[str, int] = {}
        for target in self.targets:
            for kind, count in target.task_counts.items():
                counts[kind] = max(count, counts.get(kind, 0))
        others = sum(self.tasks.values()) - sum(counts.values())
        named = ", ".join(f"{target.planned} tasks of {target.name}" for target in self.targets)
        plans = [target.plan for target in self.targets if target.plan is not None]
        power = " and ".join(f"{plan.power:.0%}" for plan in plans)
        return (
            f"{named} and {others} of other kinds, {plans[0].trials} trials each: a gain of "
            f"{plans[0].gain:g} is found with a chance of {power}"
        )


def sizes_of(
    pilot: Verdicts, targets: Sequence[Target], trial: "Trial", gate: GateSettings,
    held: Collection[str] = (), siblings: Collection[str] = (),
) -> Sizes:  # fmt: skip
    """Return the sizes of every kind by the incumbent's pilot. `held` kinds have another best
    policy than the incumbent; `siblings` decide nothing and get `_SIBLING_SHARE` of the tasks at
    their first look."""
    spreads = {kind: within(tasks) for kind, tasks in pilot.items()}

    def count_tasks(difference: float, spread: float, level: float) -> int:
        needed = tasks_for(difference, BETWEEN, spread, trial.trials, level)
        return min(max(needed, trial.least_tasks), trial.most_tasks)

    planned = tuple(
        _plan_target(target, spreads, count_tasks, trial, gate.alpha / len(targets))
        for target in targets
    )
    sizes = Sizes(tasks={}, targets=planned, held=tuple(held), siblings=tuple(siblings))
    tasks = {
        kind: 0
        if kind == sizes.only_target
        else _showable(
            count_tasks(gate.slice_margin, spreads[kind], gate.alpha),
            gate.slice_margin,
            trial.most_tasks,
        )
        for kind in pilot
    }
    tasks |= {kind: ceil(_SIBLING_SHARE * tasks[kind]) for kind in siblings if kind in tasks}
    for target in planned:
        for kind, count in target.task_counts.items():
            tasks[kind] = max(count, tasks[kind])
    return sizes.model_copy(update={"tasks": tasks})


def _plan_target(
    target: Target, spreads: Mapping[str, float], count_tasks: Callable[[float, float, float], int],
    trial: "Trial", level: float,
) -> PlannedTarget:  # fmt: skip
    spread = sum(share * spreads[kind] for kind, share in target.kinds.items())
    planned = count_tasks(trial.gain, spread, level)
    plan = GatePlan(
        gain=trial.gain,
        trials=trial.trials,
        between=BETWEEN,
        within=spread,
        planned=planned,
        power=power_of(planned, trial.gain, BETWEEN, spread, trial.trials, level),
    )
    return PlannedTarget(**target.model_dump(), planned=planned, plan=plan)


def _showable(count: int, margin: float, most: int) -> int:
    """Return a count, raised until a kind in which both always pass is within the margin at its
    first look: n values of 0 have the lower bound level^(1/n) - 1 (envs/statistics.py)."""
    if not 0 < margin < 1:
        return count

    def find_minimum(first: int) -> int:
        return ceil(log(_DRAWN * level_of(_looks(first, most))) / log(1 - margin))

    # More tasks leave fewer looks, each of which may spend more.
    while count < min(find_minimum(count), most):
        count += 1
    return count


def _looks(first: int, most: int) -> int:
    """Return the number of sizes that a kind may have in turn."""
    looks, count = 1, first
    while count < most:
        looks, count = looks + 1, count * _GROWTH
    return looks


def looks_of(sizes: Sizes, trial: "Trial") -> Looks:
    """Return the number of looks at these and grown sizes."""
    first = sizes.tasks if sizes.first is None else sizes.first
    of_slice = {
        kind: _looks(count, trial.most_tasks)
        for kind, count in first.items()
        if kind not in sizes.siblings and (kind != sizes.only_target or kind in sizes.held)
    }
    return Looks(max(of_slice.values(), default=1), of_slice)


def within(tasks: Sequence[Sequence[bool]]) -> float:
    """Return the unbiased variance of one trial's difference between two players like this one: a
    task with k of r trials passed estimates p (1 - p) by k (r - k) / (r (r - 1))."""
    estimates = [
        sum(trials) * (len(trials) - sum(trials)) / (len(trials) * (len(trials) - 1))
        for trials in tasks
    ]
    return 2 * mean(estimates)


def extend_sizes(sizes: Sizes, report: GateReport, trial: "Trial") -> Sizes | None:
    """Return more tasks of the open kinds; None if all have the most, or no look is left."""
    if sizes.look >= looks_of(sizes, trial).most:
        return None
    open_checks = {check.name for check in report.checks if check.verdict == "EXTEND"}
    overall = not open_checks.isdisjoint(("overall", *RISES))
    first = sizes.tasks if sizes.first is None else sizes.first

    def grow(kind: str, count: int) -> int:
        undecided = not open_checks.isdisjoint((f"slice {kind}", f"best {kind}"))
        fixed = (sizes.only_target, AFTER_ERROR, *sizes.siblings)
        if not (undecided or (overall and kind not in fixed)):
            return count
        # A kind that was not open before catches up, so that the last look is at the most.
        return min(first[kind] * int(_GROWTH**sizes.look), max(count, trial.most_tasks))

    tasks = {kind: grow(kind, count) for kind, count in sizes.tasks.items()}
    if tasks == sizes.tasks:
        return None
    return sizes.model_copy(update={"tasks": tasks, "first": first, "look": sizes.look + 1})
