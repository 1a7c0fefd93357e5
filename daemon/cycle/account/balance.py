"""Compute each stage's loss in a cycle, in points of pass^1 over all traffic, and the limit.

    potential   all failures of the round's traffic
    directed    failures of kinds in the directive (a whole task at least) or in the job's pools
    aimed       failures of kinds in the job's pools
    learnt      the gain that the gate measured, kinds weighted by the round's traffic
    accepted    learnt, if the gate let the candidate pass
    kept        learnt, if the candidate was promoted

Each stage (diagnosis, tasks, learner, gate, canary) loses the difference between two neighbours of
this list. A negative gain counts as none. A failure without a kind is counted by its pattern. If
live traffic shows an unpromoted candidate to be worse, nothing was learnt and the canary lost
nothing. The limit is the stage that lost most, if the 95 % interval of its loss lies above `LEAST`
points and above the unmeasured points. The interval of its difference from each other loss must
also lie above 0. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

from consumers.reads.cycle_account import TrafficCount
from daemon.cycle.account.estimates import (
    clip_to_gain,
    estimate_gain,
    estimate_share,
    subtract,
    to_points,
)
from daemon.cycle.account.facts import CanaryFacts, CycleFacts
from daemon.evaluation.gate.levels import LEVEL as GATE_LEVEL
from envs.statistics import Interval
from events.gate import Check

Stage = Literal["diagnosis", "tasks", "learner", "gate", "canary"]
STAGES: Final[tuple[Stage, ...]] = ("diagnosis", "tasks", "learner", "gate", "canary")

LEAST: Final = 0.5
"""Least loss, in points, for a stage to count as the limit."""

_NORMAL: Final = NormalDist()
_NONE: Final = Interval(0.0, 0.0, 0.0)

LimitVerdict = Literal["shown", "not_shown", "nothing_lost", "not_measured"]
StageVerdict = Literal[
    "limits", "lost", "not_shown", "nothing_lost", "not_measured", "not_reached"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Balance:
    """Points of pass^1 at each stage of a cycle; None if not measured or not reached."""

    potential: Interval | None
    directed: Interval | None
    aimed: Interval | None
    learnt: Interval | None
    accepted: Interval | None
    kept: Interval | None
    lost: Mapping[Stage, Interval | None]
    unmeasured: float
    """Points that reached a stage whose loss was not measured."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The stage that limits a cycle's gain, and why."""

    stage: Stage | None
    """None if no stage is shown to be the limit."""
    verdict: LimitVerdict
    because: str


def measure_balance(facts: CycleFacts) -> Balance:
    """Return the points of pass^1 of a finished cycle, and the loss of each stage."""
    counted = facts.judged > 0
    potential = _count_points(facts, lambda _: True) if counted else None
    directed = aimed = None
    if counted and facts.row.directive is not None:
        directed = _count_points(facts, lambda count: is_directed(facts, count))
        if facts.job is not None or facts.row.outcome != "cancelled":
            aimed = _count_points(facts, lambda count: is_aimed(facts, count))
    learnt = measure_learnt(facts)
    accepted, kept = _pass_on(facts, learnt)
    lost: dict[Stage, Interval | None] = {
        "diagnosis": _count_loss(facts, directed, lambda count: not is_directed(facts, count)),
        "tasks": _count_loss(
            facts, aimed, lambda count: is_directed(facts, count) and not is_aimed(facts, count)
        ),
        "learner": None if aimed is None or learnt is None else subtract(aimed, learnt),
        "gate": None if learnt is None or accepted is None else _lose(learnt, accepted),
        "canary": None if accepted is None or kept is None else _lose(accepted, kept),
    }
    return Balance(
        potential, directed, aimed, learnt, accepted, kept, lost, _count_unmeasured(
            potential, directed, aimed, learnt, facts.row.outcome == "cancelled"
        )
    )  # fmt: skip


def is_directed(facts: CycleFacts, count: TrafficCount) -> bool:
    """Return whether the directive has a whole task for the rollouts' kind, or the job's pools hold
    that kind. Rollouts without a kind are judged by their pattern."""
    if is_aimed(facts, count):
        return True
    if count.kind is None:
        return count.pattern in facts.quotas
    # The shares of a whole task may add up to slightly less than one.
    return facts.quota_by_kind.get(count.kind, 0.0) >= 1 - 1e-9


def is_aimed(facts: CycleFacts, count: TrafficCount) -> bool:
    """Return whether the job's pools hold the rollouts' kind; without a kind, their pattern."""
    if count.kind is None:
        return count.pattern in facts.job_patterns
    return count.kind in facts.job_kinds


def measure_learnt(facts: CycleFacts) -> Interval | None:
    """Return the candidate's gain in points, at least 0. It is 0 if the job left no adapter, or if
    live traffic refutes the gate. Return None if it was not measured."""
    job = facts.job
    if job is None:
        return None if facts.row.outcome == "cancelled" else _NONE
    if job.outcome in ("competence_gap", "failed"):
        return _NONE
    if is_refuted(facts):
        return _NONE
    gain = measure_gate_gain(facts)
    return None if gain is None else clip_to_gain(gain)


def is_refuted(facts: CycleFacts) -> bool:
    """Return whether live traffic shows an unpromoted candidate to be worse."""
    live = None if facts.canary is None else measure_live(facts.canary)
    return facts.row.outcome != "promoted" and live is not None and live.high < 0


def measure_gate_gain(facts: CycleFacts) -> Interval | None:
    """Return the gain in points that the gate measured, kinds weighted by the round's traffic. If
    no kind is known, return the mean gain of all its tasks. Return None without a gate."""
    if facts.adapter is None or facts.adapter.gate is None:
        return None
    differences: dict[str, list[float]] = {}
    for pair in facts.pairs:
        if pair.kind is not None:
            differences.setdefault(pair.kind, []).append(pair.candidate - pair.incumbent)
    gain = estimate_gain(facts.by_kind, differences)
    if gain is not None:
        return to_points(gain)
    for check in facts.adapter.gate.checks:
        if check.name == "overall":
            return None if check.low is None else to_points(_widen(check, check.low))
    return None


def measure_live(canary: CanaryFacts) -> Interval | None:
    """Return the canary's success minus the incumbent's, in points; None if one is unjudged."""
    first = estimate_share(canary.canary.passed, canary.canary.attempts)
    second = estimate_share(canary.incumbent.passed, canary.incumbent.attempts)
    return None if first is None or second is None else to_points(subtract(first, second))


def find_limit(balance: Balance) -> Limit:
    """Return the stage that lost most, if the figures show that it did."""
    if balance.potential is None:
        return Limit(None, "not_measured", "the round has no judged rollout of the agent's traffic")
    losses = {stage: loss for stage, loss in balance.lost.items() if loss is not None}
    ranked = sorted(losses, key=lambda stage: (-losses[stage].value, STAGES.index(stage)))
    if all(losses[stage].value <= LEAST for stage in ranked) and balance.unmeasured <= LEAST:
        return Limit(None, "nothing_lost", f"no stage lost more than {LEAST:g} points")
    if balance.unmeasured > LEAST and (
        not ranked or losses[ranked[0]].low <= max(balance.unmeasured, LEAST)
    ):
        return Limit(
            None, "not_measured",
            f"{balance.unmeasured:.1f} points came to a stage where the cycle was not measured",
        )  # fmt: skip
    first = losses[ranked[0]]
    text = f"{ranked[0]} lost {describe_points(first)}"
    if first.low <= LEAST:
        return Limit(None, "not_shown", f"{text}: too few rollouts to show that it lost any")
    rivals = [stage for stage in ranked[1:] if subtract(first, losses[stage]).low <= 0]
    if rivals:
        others = ", ".join(f"{stage} {describe_points(losses[stage])}" for stage in rivals)
        return Limit(None, "not_shown", f"{text}, which is not shown to be more than {others}")
    return Limit(ranked[0], "shown", f"{text}, more than any other stage")


def judge_stage(stage: Stage, balance: Balance, limit: Limit, *, reached: bool) -> StageVerdict:
    """Return the verdict on a stage; `reached` tells whether the cycle came as far."""
    loss = balance.lost[stage]
    if not reached:
        return "not_reached"
    if loss is None:
        return "not_measured"
    if limit.stage == stage:
        return "limits"
    if loss.value <= LEAST:
        return "nothing_lost"
    return "lost" if loss.low > LEAST else "not_shown"


def describe_points(points: Interval) -> str:
    """Return a text with the points and their interval."""
    return f"{points.value:.1f} points [{points.low:.1f}, {points.high:.1f}]"


def _widen(check: Check, low: float) -> Interval:
    """Return the two-sided 95 % interval of a check whose one-sided bound is `low`."""
    level = GATE_LEVEL if check.level is None else check.level
    half = (check.value - low) * _NORMAL.inv_cdf(0.975) / _NORMAL.inv_cdf(1 - level)
    return Interval(check.value, check.value - half, check.value + half)


def _count_points(facts: CycleFacts, holds: Callable[[TrafficCount], bool]) -> Interval:
    failed = sum(count.rollouts for count in facts.traffic if not count.success and holds(count))
    share = estimate_share(failed, facts.judged)
    assert share is not None, "only a round with judged rollouts is counted"
    return to_points(share)


def _count_loss(
    facts: CycleFacts, passed_on: Interval | None, holds: Callable[[TrafficCount], bool]
) -> Interval | None:
    """Return the failures that a stage did not pass on (exactly 0 if none); None if unmeasured."""
    if passed_on is None:
        return None
    loss = _count_points(facts, holds)
    return loss if loss.value else _NONE


def _pass_on(facts: CycleFacts, learnt: Interval | None) -> tuple[Interval | None, Interval | None]:
    """Return the gain that the gate passed on, and the gain that the canary passed on."""
    match facts.row.outcome:
        case "promoted":
            return learnt, learnt
        case "rolled_back" | "inconclusive":
            return learnt, _NONE
        case "rejected" | "nothing_learnable" | "failed":
            return (None if learnt is None else _NONE), (None if learnt is None else _NONE)
        case _:
            return None, None


def _lose(before: Interval, after: Interval) -> Interval:
    """Return the loss of a stage that passes on either all or nothing of a gain."""
    return before if after.value < before.value else _NONE


def _count_unmeasured(
    potential: Interval | None,
    directed: Interval | None,
    aimed: Interval | None,
    learnt: Interval | None,
    cancelled: bool,
) -> float:
    """Return the points that came to the first stage whose loss is unknown."""
    if potential is None:
        return 0.0
    if directed is None:
        return potential.value
    if aimed is None:
        return directed.value
    if learnt is None:
        return aimed.value
    return learnt.value if cancelled else 0.0
