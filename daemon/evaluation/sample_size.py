"""Plan the numbers of tasks that candidate and incumbent play before the gate decides. Pure.

A trial of a task passes with some probability p. The difference of two equal players on one trial
has the variance 2 p (1 - p), which the incumbent's pilot estimates for each kind. The true
differences of a kind's tasks are assumed to have a standard deviation of 0.1. A target's number of
tasks finds the wanted gain with a power of 80 %, at Holm's first level for all targets. Targets
with a common kind share its tasks. Every other kind gets enough tasks to show that an equal player
is within the margin, also if both always pass. A target's number is fixed before the candidate
plays, since a second look would be a second chance. Other kinds may be looked at again with twice
the tasks, at most as often as `looks_of` says; the gate's levels depend on this number (gate/).
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
"""Assumed variance of the true differences of candidate and incumbent over a kind's tasks."""
_SIBLING_SHARE: Final = 0.5
"""Share of the usual number of tasks that a kind gets if it decides nothing."""
_GROWTH: Final = 2
"""Factor by which the number of a kind's tasks grows from look to look."""
_DRAWN: Final = 0.9
"""Part of its level at which a bound by random draws (envs/statistics.py) may really act."""

Verdicts = Mapping[str, Sequence[Sequence[bool]]]
"""Kind -> for each of its tasks, whether each trial passed."""


class Sizes(StrictModel):
    """The numbers of tasks that a look needs, in total per kind."""

    tasks: dict[str, int]
    targets: tuple[PlannedTarget, ...]
    held: tuple[str, ...] = ()
    """Kinds that are also compared with the policy that was best at them."""
    siblings: tuple[str, ...] = ()
    """Kinds that are played at the first look only and decide nothing (gate/)."""
    first: dict[str, int] | None = None
    """Kind -> number of tasks at the first look; None if this is the first look."""
    look: int = 1

    @property
    def only_target(self) -> str | None:
        """Return the kind of the only target, if it has one; the gate tests it as no slice."""
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
    """Return the sizes for the first look, planned from the incumbent's `pilot`. At the kinds
    `held`, another policy than the incumbent was best. The kinds `siblings` decide nothing and get
    `_SIBLING_SHARE` of the tasks."""
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
    """Return `count`, raised until a kind in which both always pass is within `margin` at its first
    look: the lower bound of n differences of 0 is level^(1/n) - 1 (envs/statistics.py)."""
    if not 0 < margin < 1:
        return count

    def find_minimum(first: int) -> int:
        return ceil(log(_DRAWN * level_of(_looks(first, most))) / log(1 - margin))

    # More tasks leave fewer looks, each of which may spend more.
    while count < min(find_minimum(count), most):
        count += 1
    return count


def _looks(first: int, most: int) -> int:
    """Return the number of looks at a kind whose tasks grow from `first` to `most`."""
    looks, count = 1, first
    while count < most:
        looks, count = looks + 1, count * _GROWTH
    return looks


def looks_of(sizes: Sizes, trial: "Trial") -> Looks:
    """Return the largest numbers of looks, overall and per kind, if open kinds always grow."""
    first = sizes.tasks if sizes.first is None else sizes.first
    of_slice = {
        kind: _looks(count, trial.most_tasks)
        for kind, count in first.items()
        if kind not in sizes.siblings and (kind != sizes.only_target or kind in sizes.held)
    }
    return Looks(max(of_slice.values(), default=1), of_slice)


def within(tasks: Sequence[Sequence[bool]]) -> float:
    """Return an unbiased estimate of the variance of the difference of two equal players' trials,
    2 p (1 - p). A task with k of r trials passed estimates p (1 - p) by k (r - k) / (r (r - 1))."""
    estimates = [
        sum(trials) * (len(trials) - sum(trials)) / (len(trials) * (len(trials) - 1))
        for trials in tasks
    ]
    return 2 * mean(estimates)


def extend_sizes(sizes: Sizes, report: GateReport, trial: "Trial") -> Sizes | None:
    """Return the next look's sizes; None if no open kind can grow, or no look is left."""
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
        # A kind that was decided before catches up, so that its last look has the largest number.
        return min(first[kind] * int(_GROWTH**sizes.look), max(count, trial.most_tasks))

    tasks = {kind: grow(kind, count) for kind, count in sizes.tasks.items()}
    if tasks == sizes.tasks:
        return None
    return sizes.model_copy(update={"tasks": tasks, "first": first, "look": sizes.look + 1})
