"""How many tasks a candidate and the incumbent are to play before the gate decides (pure).

    sizes = sizes_of(pilot, target, trial, gate)      kind -> tasks, and the plan of the target
    more = extend_sizes(sizes, report, target, trial)     with more where nothing was shown yet

A task's trials are drawn from its own chance p to be passed, so one trial's difference of two like
players has the variance 2 p (1 - p); the incumbent's pilot says what that is for each kind. How
much true differences vary between tasks is unknown beforehand: they are taken to have a
standard deviation of 0.1. Of the target so many tasks are planned that the wanted
gain is found with a power of 80 %; of every other kind so many that one which is no worse is shown
to be within the margin, and no fewer than it takes to show that of one in which both always pass.
The target's number is fixed before the candidate has played: to look again at more would be a
second chance. The others are looked at again, with twice the tasks each time and at most so often
as `looks_of` says, which the gate's levels rest on (gate.py).
"""

from collections.abc import Mapping, Sequence
from math import ceil, log
from statistics import mean
from typing import TYPE_CHECKING, Final

from daemon.evaluation.gate import Looks, level_of, power_of, tasks_for
from events.gate import GatePlan, GateReport, GateSettings
from events.messages import StrictModel

if TYPE_CHECKING:
    from daemon.config.settings import Trial

BETWEEN: Final = 0.01
"""Variance of the true difference between tasks of one kind."""
_GROWTH: Final = 2
"""Factor by which a kind's tasks grow where nothing was shown."""
_DRAWN: Final = 0.9
"""A bound by draws (envs/statistics.py) may be as if its level were this part of it."""

Verdicts = Mapping[str, Sequence[Sequence[bool]]]
"""Kind -> each of its tasks -> whether each trial passed."""


class Sizes(StrictModel):
    """How many tasks of each kind."""

    tasks: dict[str, int]
    """Kind -> tasks."""
    plan: GatePlan
    """Plan of the target."""
    first: dict[str, int] | None = None
    """Kind -> tasks at the first look; None where these are the first."""
    look: int = 1
    """Number of the look for which these are played."""

    def words(self, target: str) -> str:
        """Return the sizes as a sentence for a person."""
        plan, others = self.plan, sum(self.tasks.values()) - self.tasks[target]
        return (
            f"{plan.planned} tasks of {target} and {others} of other kinds, {plan.trials} trials "
            f"each: a gain of {plan.gain:g} is found with a chance of {plan.power:.0%}"
        )


def sizes_of(pilot: Verdicts, target: str, trial: "Trial", gate: GateSettings) -> Sizes:
    """The sizes by the spread that the pilot of the incumbent shows. Every kind is in it."""
    spreads = {kind: within(tasks) for kind, tasks in pilot.items()}

    def count_tasks(kind: str, difference: float) -> int:
        needed = tasks_for(difference, BETWEEN, spreads[kind], trial.trials, gate.alpha)
        return min(max(needed, trial.least_tasks), trial.most_tasks)

    tasks = {
        kind: count_tasks(kind, trial.gain)
        if kind == target
        else _showable(count_tasks(kind, gate.slice_margin), gate.slice_margin, trial.most_tasks)
        for kind in pilot
    }
    planned, spread = tasks[target], spreads[target]
    plan = GatePlan(
        gain=trial.gain,
        trials=trial.trials,
        between=BETWEEN,
        within=spread,
        planned=planned,
        power=power_of(planned, trial.gain, BETWEEN, spread, trial.trials, gate.alpha),
    )
    return Sizes(tasks=tasks, plan=plan)


def _showable(count: int, margin: float, most: int) -> int:
    """At least so many tasks that a kind in which both always pass is within the margin at its
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
    """How many numbers of tasks a kind may have, one after the other."""
    looks, count = 1, first
    while count < most:
        looks, count = looks + 1, count * _GROWTH
    return looks


def looks_of(sizes: Sizes, target: str, trial: "Trial") -> Looks:
    """How often the gate may look at these sizes and what they grow to."""
    first = sizes.tasks if sizes.first is None else sizes.first
    of_slice = {
        kind: _looks(count, trial.most_tasks) for kind, count in first.items() if kind != target
    }
    return Looks(max(of_slice.values(), default=1), of_slice)


def within(tasks: Sequence[Sequence[bool]]) -> float:
    """Variance of one trial's difference between two players like this one, without bias.

    Of a task with k of r trials passed, k (r - k) / (r (r - 1)) estimates p (1 - p).
    """
    estimates = [
        sum(trials) * (len(trials) - sum(trials)) / (len(trials) * (len(trials) - 1))
        for trials in tasks
    ]
    return 2 * mean(estimates)


def extend_sizes(sizes: Sizes, report: GateReport, target: str, trial: "Trial") -> Sizes | None:
    """More tasks of the kinds that are open; None where every one of them has the most, or the
    gate has looked as often as it may."""
    if sizes.look >= looks_of(sizes, target, trial).most:
        return None
    open_checks = {check.name for check in report.checks if check.verdict == "EXTEND"}
    overall = "overall" in open_checks
    first = sizes.tasks if sizes.first is None else sizes.first

    def grow(kind: str, count: int) -> int:
        if kind == target or not (overall or f"slice {kind}" in open_checks):
            return count
        # A kind that was not open before catches up, so that the last look is at the most.
        return min(first[kind] * int(_GROWTH**sizes.look), max(count, trial.most_tasks))

    tasks = {kind: grow(kind, count) for kind, count in sizes.tasks.items()}
    if tasks == sizes.tasks:
        return None
    return sizes.model_copy(update={"tasks": tasks, "first": first, "look": sizes.look + 1})
