"""Account for a cycle's canary: the live sessions of candidate and incumbent. Pure."""

from dataclasses import dataclass

from daemon.cycle.account.balance import describe_points, is_refuted, measure_live
from daemon.cycle.account.facts import CycleFacts, PassCount
from envs.statistics import Interval


@dataclass(frozen=True, slots=True)
class Canary:
    """The figures of a canary: judged live sessions of candidate and incumbent."""

    minutes: float | None
    canary: PassCount
    incumbent: PassCount
    difference: Interval | None
    """The canary's success minus the incumbent's, in points; None if one has no judged session."""
    shares: tuple[float, ...]
    refuted: bool
    """Whether live traffic shows the candidate to be worse."""


def describe_canary(facts: CycleFacts) -> Canary:
    """Return a canary's figures; `minutes` is None if there was no canary."""
    canary = facts.canary
    if canary is None:
        return Canary(None, PassCount(0, 0), PassCount(0, 0), None, (), refuted=False)
    return Canary(
        minutes=canary.minutes,
        canary=canary.canary,
        incumbent=canary.incumbent,
        difference=measure_live(canary),
        shares=canary.shares,
        refuted=is_refuted(facts),
    )


def explain_canary(facts: CycleFacts, figures: Canary) -> str:
    """Return a sentence on the canary's outcome."""
    if facts.canary is None:
        return "it had none"
    live = "nothing" if figures.difference is None else describe_points(figures.difference)
    count = figures.canary.attempts + figures.incumbent.attempts
    return f"{facts.row.outcome} after {figures.minutes:.0f} min, {count} judged sessions: {live}"
