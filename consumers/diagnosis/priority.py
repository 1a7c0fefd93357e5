"""How much a failure pattern deserves to be trained next: pure arithmetic over closed rounds.

Where it sits: the fold of `PatternsDiagnosed` calls `update` once per pattern and round, and the
Controller writes the directive from `rank_patterns` and `quotas`. Source of every formula and
constant: docs/patterns.md (after SENTINEL, arXiv 2606.12908).

Guarantee: no clock, no randomness, and no dependence on the order in which patterns are given.
Not covered: which failures and attempts belong to a pattern and a round (the fold counts them).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final


class Status(StrEnum):
    """Where a pattern stands after a round; name and value are equal."""

    RESOLVED = "RESOLVED"
    REGRESSED = "REGRESSED"
    PERSISTENT = "PERSISTENT"
    IMPROVING = "IMPROVING"
    NEW = "NEW"
    ACTIVE = "ACTIVE"


RESOLVED_ABSENT: Final = 2
RESOLVED_ATTEMPTS: Final = 16
RESOLVED_PASS_RATE: Final = Fraction(85, 100)
PERSISTENT_STREAK: Final = 3
IMPROVING_GAIN: Final = Fraction(10, 100)
TOO_HARD_ATTEMPTS: Final = 32
TOO_HARD_FACTOR: Final = 0.25
STREAK_CAP: Final = 4
REGRESSED_FACTOR: Final = 1.5


@dataclass(frozen=True, slots=True)
class PatternState:
    """A pattern after its last closed round."""

    recurrence: float
    """e: exponential mean of the pattern's share of failures, half of it from the last round."""
    streak: int
    """Rounds in a row with failures, up to this one."""
    absent: int
    """Rounds in a row without, up to this one."""
    pass_rate: float
    """ρ: of related rollouts of the round, (passes + 1) / (attempts + 2)."""
    attempts: int
    passes: int
    status: Status

    @property
    def learnability(self) -> float:
        """λ: a quarter where many attempts all failed, so probably the task is at fault; else 1."""
        return TOO_HARD_FACTOR if self.attempts >= TOO_HARD_ATTEMPTS and not self.passes else 1.0

    @property
    def priority(self) -> float:
        """P = [not RESOLVED] · e · (1 + ½ min(streak, 4)) · (1 − ρ) · λ · (1.5 if REGRESSED)."""
        if self.status is Status.RESOLVED:
            return 0.0
        regressed = REGRESSED_FACTOR if self.status is Status.REGRESSED else 1.0
        urgency = 1 + 0.5 * min(self.streak, STREAK_CAP)
        return self.recurrence * urgency * (1 - self.pass_rate) * self.learnability * regressed


def update(
    previous: PatternState | None, failures: int, failed_total: int, attempts: int, passes: int
) -> PatternState:
    """The pattern after one more round.

    `failures` are the deduplicated failures attributed to it, `failed_total` all of the round;
    `attempts` and `passes` count the round's rollouts on its tasks. With s = failures / max(1,
    failed_total): e = ½ e + ½ s, from 0; streak and absent count rounds with and without failures.
    """
    if not (0 <= failures <= failed_total and 0 <= passes <= attempts):
        raise ValueError(
            f"{failures} of {failed_total} failures and {passes} of {attempts} passes cannot be; "
            "a part counts at most its whole"
        )
    share = failures / max(1, failed_total)
    streak = (previous.streak if previous else 0) + 1 if failures else 0
    absent = 0 if failures else (previous.absent if previous else 0) + 1
    pass_rate = (passes + 1) / (attempts + 2)
    return PatternState(
        recurrence=0.5 * (previous.recurrence if previous else 0.0) + 0.5 * share,
        streak=streak,
        absent=absent,
        pass_rate=pass_rate,
        attempts=attempts,
        passes=passes,
        status=_status(previous, failures, streak, absent, attempts, passes),
    )


def _status(
    previous: PatternState | None,
    failures: int,
    streak: int,
    absent: int,
    attempts: int,
    passes: int,
) -> Status:
    """The first that fits, in this order. Rates are compared as fractions: as floats 0.6 - 0.5 is
    below 0.1."""
    pass_rate = Fraction(passes + 1, attempts + 2)
    mastered = attempts >= RESOLVED_ATTEMPTS and pass_rate >= RESOLVED_PASS_RATE
    if absent >= RESOLVED_ABSENT or mastered:
        return Status.RESOLVED
    if failures and previous and previous.status is Status.RESOLVED:
        return Status.REGRESSED
    if streak >= PERSISTENT_STREAK:
        return Status.PERSISTENT
    if previous and pass_rate - _exact_pass_rate(previous) >= IMPROVING_GAIN:
        return Status.IMPROVING
    return Status.ACTIVE if previous else Status.NEW


def _exact_pass_rate(state: PatternState) -> Fraction:
    return Fraction(state.passes + 1, state.attempts + 2)


def rank_patterns(states: Mapping[str, PatternState]) -> list[str]:
    """Pattern ids by (−P, −streak, id)."""
    return sorted(states, key=lambda pid: (-states[pid].priority, -states[pid].streak, pid))


def quotas(priorities: Mapping[str, float], q_max: int) -> dict[str, int]:
    """How many of `q_max` new tasks each pattern gets; patterns without priority get none.

    Largest remainder of q_max · P / ΣP, under two rules: no pattern gets more than ⌈q_max / 2⌉,
    and each with P > 0 gets at least 1 while the quota lasts (the highest priority first). What a
    rule takes from a pattern or gives to it is shared by the others in proportion. So the sum is
    q_max with two patterns or more, ⌈q_max / 2⌉ with one, 0 with none: half the budget is never
    one guess.
    """
    wanted = {pid: priority for pid, priority in priorities.items() if priority > 0}
    ranked = sorted(wanted, key=lambda pid: (-wanted[pid], pid))[: max(0, q_max)]
    cap = math.ceil(q_max / 2)
    fixed: dict[str, int] = {}
    while True:
        left = min(q_max, cap * len(ranked)) - sum(fixed.values())
        shares = _shares({pid: wanted[pid] for pid in ranked if pid not in fixed}, left)
        outside = _outside(shares, cap)
        if not outside:
            counts = fixed | _largest_remainder(shares, left)
            return {pid: counts[pid] for pid in ranked}
        fixed |= outside


def _outside(shares: Mapping[str, Fraction], cap: int) -> dict[str, int]:
    """Who must be fixed at a bound first: those above the cap if together they have more too much
    than the others have too little, else those below 1. Fixing the lesser side first could leave
    the rest with less than their bounds ask for, or more than they allow."""
    above = [pid for pid in shares if shares[pid] > cap]
    below = [pid for pid in shares if shares[pid] < 1]
    too_much = sum(shares[pid] - cap for pid in above)
    too_little = sum(1 - shares[pid] for pid in below)
    if too_much > too_little:
        return dict.fromkeys(above, cap)
    return dict.fromkeys(below, 1)


def _shares(weights: Mapping[str, float], total: int) -> dict[str, Fraction]:
    """Exact proportional parts of `total`."""
    exact = {pid: Fraction(weight) for pid, weight in weights.items()}
    whole = sum(exact.values())
    return {pid: total * weight / whole for pid, weight in exact.items()}


def _largest_remainder(shares: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Whole parts, and one more for the largest remainders (ties: larger share, then id)."""
    counts = {pid: math.floor(share) for pid, share in shares.items()}
    by_remainder = sorted(shares, key=lambda pid: (counts[pid] - shares[pid], -shares[pid], pid))
    for pid in by_remainder[: total - sum(counts.values())]:
        counts[pid] += 1
    return counts
