"""What an evaluation comes to: pass^k, Repair@n, and how far they can be trusted.

The unit is the task, never the trial: trials of one task are no independent evidence about others,
so intervals come from drawing tasks again, each with all of its trials.

    pass^k    = mean over tasks of C(c, k) / C(n, k)          c successes of n judged trials
    Repair@n  = mean over tasks of 1 - C(n - c, n') / C(n, n')

pass^k is tau-bench's estimator (Yao et al. 2024), unbiased for the chance that k trials of a task
all succeed; Repair@n is that of pass@k (Chen et al. 2021), the chance that one of n' does.
Verdicts that nobody could reach (None) are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from random import Random
from typing import Final

Outcomes = Mapping[str, Sequence[bool | None]]
"""Task id -> the verdict of each trial."""

RESAMPLES: Final = 4_000
"""Draws of a bootstrap: the 2.5 % quantile is then known to about a twentieth of the width."""

LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided interval."""

    value: float
    low: float
    high: float


def most_trials(outcomes: Outcomes) -> int:
    """The largest k that every task can count for: the fewest judged trials of any; 0 without."""
    return min((_judged(verdicts)[1] for verdicts in outcomes.values()), default=0)


def pass_hat(outcomes: Outcomes, k: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """pass^k with a bootstrap over tasks.

    Raises ValueError where a task has fewer than k judged trials: to leave it out would select.
    """
    return mean([_all_of(c, n, k) for c, n in _counts(outcomes, k)], resamples=resamples, seed=seed)


def repair_at(outcomes: Outcomes, n: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Repair@n with a bootstrap over tasks; raises as `pass_hat` does."""
    return mean(
        [1 - _all_of(trials - c, trials, n) for c, trials in _counts(outcomes, n)],
        resamples=resamples,
        seed=seed,
    )


def mean(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The mean of one value per task, each in [0, 1], with a percentile bootstrap.

    Where all values are 0, or all are 1, drawing again shows no spread at all; then the open side
    is the exact bound of Clopper and Pearson for that many tasks. Raises ValueError for none.
    """
    if not values:
        raise ValueError("no task has a judged trial; there is nothing to estimate")
    value = sum(values) / len(values)
    unseen = 1 - ((1 - LEVEL) / 2) ** (1 / len(values))
    if max(values) <= 0:
        return Interval(value, 0.0, unseen)
    if min(values) >= 1:
        return Interval(value, 1 - unseen, 1.0)
    chance = Random(f"bootstrap {seed}")
    drawn = sorted(sum(chance.choices(values, k=len(values))) for _ in range(resamples))
    tail = round(resamples * (1 - LEVEL) / 2)
    return Interval(value, drawn[tail] / len(values), drawn[-1 - tail] / len(values))


def _counts(outcomes: Outcomes, at_least: int) -> list[tuple[int, int]]:
    """(successes, judged trials) of each task."""
    counts = []
    for task, verdicts in outcomes.items():
        successes, judged = _judged(verdicts)
        if judged < at_least:
            raise ValueError(
                f"task {task} has {judged} judged trials, fewer than the {at_least} asked for; "
                "run more trials or ask for fewer"
            )
        counts.append((successes, judged))
    return counts


def _judged(verdicts: Sequence[bool | None]) -> tuple[int, int]:
    judged = [verdict for verdict in verdicts if verdict is not None]
    return sum(judged), len(judged)


def _all_of(c: int, n: int, k: int) -> float:
    """The chance that k of n trials, drawn without replacement, are among c."""
    return comb(c, k) / comb(n, k)
