"""Pair the trials of two players whose users may err: a trial with a user's fault has no verdict.

`users` names the model that plays the users; None means that they cannot err (ADR 0076).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from daemon.evaluation.binomial import conditional_binomial
from daemon.evaluation.gate.pairs import Pair, TooFewTrials, fail_surplus, pair_outcomes
from daemon.evaluation.gate.target_tests import list_differences
from daemon.evaluation.targets import PlannedTarget
from envs.statistics import Outcomes

_UNLIKELY: Final = 0.05
"""Probability below which a difference between two players' user faults is reported."""


def pair_judged(
    both: tuple[Outcomes, Outcomes], slices: Mapping[str, str], trials: int, users: str | None
) -> list[Pair]:
    """Return the pairs of two players' outcomes in the order of `slices`. If `users` may err, only
    trials with both verdicts count, and tasks without one are left out. The candidate's surplus of
    unjudged trials counts as failed. Raises TooFewTrials."""
    first, second = both
    if users is None:
        return pair_outcomes(first, second, slices, trials)
    second = fail_surplus(first, second, list(slices))
    judged = {
        task: name
        for task, name in slices.items()
        if any(None not in trial for trial in zip(first[task], second[task], strict=True))
    }
    if lost := sorted(set(slices.values()) - set(judged.values())):
        raise TooFewTrials(
            f"no task of {lost[0]} has a trial with a verdict of both: the users that "
            f"{users} played erred; let the script play, or a better model"
        )
    return pair_outcomes(first, second, judged, 1)


def shrink_target(target: PlannedTarget, pairs: Sequence[Pair]) -> PlannedTarget:
    """Return a target with fewer planned tasks, if `pairs` has too few of its kinds."""
    while (count := len(list_differences(target, pairs))) < target.planned:
        target = target.model_copy(update={"planned": count})
    return target


@dataclass(frozen=True, slots=True)
class FaultCount:
    """Number of a player's rollouts, and of those in which the user made a fault."""

    player: str
    faults: int
    rollouts: int


def describe_faults(
    users: str, incumbent: FaultCount, candidate: FaultCount, surplus: int
) -> str | None:
    """Return a sentence on the users' errors with each player, the `surplus` of the candidate's
    trials that count as failed, and the difference if it is unlikely. Return None without
    errors."""
    if not (incumbent.faults or candidate.faults):
        return None
    share = candidate.rollouts / (incumbent.rollouts + candidate.rollouts)
    tails = (
        conditional_binomial(candidate.faults, incumbent.faults, share),
        conditional_binomial(incumbent.faults, candidate.faults, 1 - share),
    )
    chance = min(1.0, 2 * min(tails))
    doubt = (
        f"; as large a difference has a chance of {chance:.2g}, so a part of what the gate "
        "measured may be the users'"
        if chance < _UNLIKELY
        else ""
    )
    failed = f"; {surplus} of the latter count as failed" if surplus > 0 else ""
    return (
        f"the users that {users} played erred in "
        f"{incumbent.faults} of {incumbent.rollouts} rollouts of {incumbent.player} and in "
        f"{candidate.faults} of {candidate.rollouts} of the candidate, which have no "
        f"verdict{failed}{doubt}"
    )
