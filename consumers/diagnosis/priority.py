"""The training priority of failure patterns: pure arithmetic over closed rounds.

Source of every formula and constant: docs/patterns.md (after SENTINEL, arXiv 2606.12908).
Guarantee: no clock, no randomness, and no dependence on the order in which patterns are given. The
fold counts the failures and attempts of a pattern and round.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final, Literal

Override = Literal["pinned", "muted"]
"""An operator's decision about a pattern."""


class Status(StrEnum):
    """Status of a pattern after a round; name and value are equal."""

    RESOLVED = "RESOLVED"
    REGRESSED = "REGRESSED"
    PERSISTENT = "PERSISTENT"
    IMPROVING = "IMPROVING"
    NEW = "NEW"
    ACTIVE = "ACTIVE"


RESOLVED_ABSENT: Final = 2
RESOLVED_ATTEMPTS: Final = 16
RESOLVED_PASS_RATE: Final = 0.85
PERSISTENT_STREAK: Final = 3
IMPROVING_GAIN: Final = 0.10
BROKEN_FACTOR: Final = 0.25
STREAK_CAP: Final = 4
REGRESSED_FACTOR: Final = 1.5
PINNED_ALONE: Final = 0.5
"""Priority of a pinned pattern if neither it nor any other pattern has a priority above 0."""

_ROUNDING: Final = 1e-9
"""Rates are floats: 0.6 - 0.5 is below 0.1."""


@dataclass(frozen=True, slots=True)
class PatternState:
    """The state of a pattern after a closed round."""

    recurrence: float
    """e: exponential mean of the pattern's share of all failures; the last round counts half."""
    streak: int
    """Number of rounds in a row with failures, up to this round."""
    absent: int
    """Number of rounds in a row without failures, up to this round."""
    pass_rate: float
    """ρ: smoothed pass rate of the rollouts similar to its failures (RoundEvidence.pass_rate)."""
    attempts: int
    passes: int
    status: Status
    learnability: float = 1.0
    """λ: 1 − ¾ · the share of its failures on tasks with many attempts and no pass. Such tasks are
    probably at fault themselves."""

    @property
    def priority(self) -> float:
        """Return P = [not RESOLVED] · e · (1 + ½ min(streak, 4)) · (1 − ρ) · λ · (1.5 if
        REGRESSED)."""
        if self.status is Status.RESOLVED:
            return 0.0
        regressed = REGRESSED_FACTOR if self.status is Status.REGRESSED else 1.0
        urgency = 1 + 0.5 * min(self.streak, STREAK_CAP)
        return self.recurrence * urgency * (1 - self.pass_rate) * self.learnability * regressed


@dataclass(frozen=True, slots=True)
class RoundEvidence:
    """The evidence of a round about one pattern."""

    failures: int
    """Deduplicated failures attributed to the pattern."""
    failed_total: int
    """Deduplicated failures of the round."""
    attempts: int
    """Rollouts that are similar to the pattern's failures (neighbourhood.py)."""
    passes: int
    share: float
    """Mean pass rate of the rollouts similar to a failure of the pattern, in [0, 1]."""
    weight: float
    """Number of attempts for which `share` counts, at most `attempts`."""
    broken: int = 0
    """Failures on tasks that no policy passes."""

    def __post_init__(self) -> None:
        parts = (
            (self.failures, self.failed_total, "failures"),
            (self.passes, self.attempts, "passes"),
            (self.broken, self.failures, "failures on tasks that nobody passes"),
        )
        for part, whole, name in parts:
            if not 0 <= part <= whole:
                raise ValueError(
                    f"{part} of {whole} {name} cannot be; a part counts at most its whole"
                )
        if not 0 <= self.share <= 1:
            raise ValueError(f"a pass rate of {self.share} cannot be; it lies between 0 and 1")
        if not 0 <= self.weight <= self.attempts:
            raise ValueError(
                f"{self.attempts} attempts cannot be worth {self.weight}; at most as many"
            )

    @property
    def pass_rate(self) -> float:
        """Return ρ = (share · weight + 1) / (weight + 2)."""
        return (self.share * self.weight + 1) / (self.weight + 2)

    @property
    def learnability(self) -> float:
        """Return λ = 1 - ¾ · broken / failures."""
        return 1 - (1 - BROKEN_FACTOR) * self.broken / max(1, self.failures)


def update(
    previous: PatternState | None, evidence: RoundEvidence, *, pinned: bool = False
) -> PatternState:
    """Return the pattern after one more round. A pinned pattern is never RESOLVED. e begins at 0
    and becomes ½ e + ½ s, with s = failures / max(1, failed_total). `streak` and `absent` count
    rounds in a row with and without failures."""
    share = evidence.failures / max(1, evidence.failed_total)
    streak = (previous.streak if previous else 0) + 1 if evidence.failures else 0
    absent = 0 if evidence.failures else (previous.absent if previous else 0) + 1
    return PatternState(
        recurrence=0.5 * (previous.recurrence if previous else 0.0) + 0.5 * share,
        streak=streak,
        absent=absent,
        pass_rate=evidence.pass_rate,
        attempts=evidence.attempts,
        passes=evidence.passes,
        status=_status(previous, evidence, streak, absent, pinned),
        learnability=evidence.learnability,
    )


def _status(
    previous: PatternState | None, evidence: RoundEvidence, streak: int, absent: int, pinned: bool
) -> Status:
    mastered = (
        evidence.weight >= RESOLVED_ATTEMPTS - _ROUNDING
        and evidence.pass_rate >= RESOLVED_PASS_RATE - _ROUNDING
    )
    if (absent >= RESOLVED_ABSENT or mastered) and not pinned:
        return Status.RESOLVED
    if evidence.failures and previous and previous.status is Status.RESOLVED:
        return Status.REGRESSED
    if streak >= PERSISTENT_STREAK:
        return Status.PERSISTENT
    if previous and evidence.pass_rate - previous.pass_rate >= IMPROVING_GAIN - _ROUNDING:
        return Status.IMPROVING
    return Status.ACTIVE if previous else Status.NEW


def apply_overrides(
    priorities: Mapping[str, float], overrides: Mapping[str, Override]
) -> dict[str, float]:
    """Return the priorities of one agent's patterns after the operator's overrides. A muted pattern
    gets 0, a pinned one at least the highest priority of the others."""
    others = (priority for pattern, priority in priorities.items() if pattern not in overrides)
    highest = max(others, default=0.0)
    return {
        pattern: _override(priority, overrides.get(pattern), highest)
        for pattern, priority in priorities.items()
    }


def _override(priority: float, override: Override | None, highest: float) -> float:
    if override == "muted":
        return 0.0
    if override == "pinned":
        return max(priority, highest) or PINNED_ALONE
    return priority


def quotas(priorities: Mapping[str, float], q_max: int) -> dict[str, int]:
    """Return how many of `q_max` new tasks each pattern gets; patterns without priority get none.

    It is the largest remainder of q_max · P / ΣP, under two rules: no pattern gets more than ⌈q_max
    / 2⌉, and each with P > 0 gets at least 1 while the quota lasts (the highest priority first).
    When a rule adds or removes tasks, the other patterns share the difference in proportion to P.
    The sum is q_max with two patterns or more, ⌈q_max / 2⌉ with one, 0 with none.
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
    """Return the counts of the patterns to fix next: all above `cap` get `cap`, or all below 1 get
    1. The group that is further from its bound in total goes first. In the other order, the
    remaining patterns could no longer keep their bounds."""
    above = [pid for pid in shares if shares[pid] > cap]
    below = [pid for pid in shares if shares[pid] < 1]
    too_much = sum(shares[pid] - cap for pid in above)
    too_little = sum(1 - shares[pid] for pid in below)
    if too_much > too_little:
        return dict.fromkeys(above, cap)
    return dict.fromkeys(below, 1)


def _shares(weights: Mapping[str, float], total: int) -> dict[str, Fraction]:
    exact = {pid: Fraction(weight) for pid, weight in weights.items()}
    whole = sum(exact.values())
    return {pid: total * weight / whole for pid, weight in exact.items()}


def _largest_remainder(shares: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Round the shares down, and add 1 to the largest remainders until the sum is `total`. Ties go
    to the larger share, then to the smaller id."""
    counts = {pid: math.floor(share) for pid, share in shares.items()}
    by_remainder = sorted(shares, key=lambda pid: (counts[pid] - shares[pid], -shares[pid], pid))
    for pid in by_remainder[: total - sum(counts.values())]:
        counts[pid] += 1
    return counts
