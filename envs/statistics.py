"""Statistics of an evaluation: pass^k, Repair@n, and their intervals.

The unit is the task and not the trial. Trials of one task are no independent evidence about others,
so intervals come from resampling tasks, each with all of its trials.

    pass^k    = mean over tasks of C(c, k) / C(n, k)          c successes of n judged trials
    Repair@m  = mean over tasks of 1 - C(n - c, m) / C(n, m)

pass^k is tau-bench's estimator (Yao et al. 2024), unbiased for the chance that k trials of a task
all succeed. Repair@m is that of pass@k (Chen et al. 2021), for the chance that one of m does.
Trials without a verdict (None) are left out.

Intervals are Gaffke's (2005; Learned-Miller and Thomas 2020): a Bayesian bootstrap over the tasks
and one imagined task, worth 0 for the lower bound and 1 for the upper. A plain percentile bootstrap
gives [1, 1] for 16 tasks that all pass. Its "95 %" held the truth in 53 % of our simulated suites
of 16 tasks. For one trial per task the bounds are those of Clopper and Pearson (16 of 16: [.79,
1]). No distribution is known for which they hold less often than promised. With 50 tasks they are 5
to 40 % wider than the percentile's. All tasks must be drawn from one population: a bound says
nothing about a capability without tasks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from random import Random
from typing import Final

Outcomes = Mapping[str, Sequence[bool | None]]
"""Task id -> the verdict of each trial."""

RESAMPLES: Final = 10_000
"""Number of draws of a bootstrap. Chance then moves a bound by about a hundredth of the width."""

LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided interval."""

    value: float
    low: float
    high: float


def most_trials(outcomes: Outcomes) -> int:
    """Return the largest k possible for every task: the fewest judged trials; 0 without tasks."""
    return min((_count_verdicts(verdicts)[1] for verdicts in outcomes.values()), default=0)


def pass_hat(
    outcomes: Outcomes,
    k: int,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """Return pass^k with its interval over tasks. Raise ValueError if a task has fewer than k
    judged trials, because leaving it out would bias the result."""
    values = [_all_of(c, n, k) for c, n in _counts(outcomes, k)]
    return mean(values, resamples=resamples, seed=seed, level=level)


def repair_at(
    outcomes: Outcomes,
    m: int,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """Return Repair@m with its interval over tasks. Raise ValueError as `pass_hat` does."""
    values = [1 - _all_of(n - c, n, m) for c, n in _counts(outcomes, m)]
    return mean(values, resamples=resamples, seed=seed, level=level)


def mean(
    values: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """Return the mean of one value per task, each in [0, 1], with its interval. Raise ValueError
    without values. Equal values share one gamma draw (a sum of exponentials)."""
    if not values:
        raise ValueError("no task has a judged trial; there is nothing to estimate")
    return _estimate(tuple(sorted(Counter(values).items())), resamples, seed, level)


# A gate asks for the same counts at each look, and a simulation of gates does so many times.
@lru_cache(maxsize=1024)
def _estimate(
    counts: tuple[tuple[float, int], ...], resamples: int, seed: int, level: float
) -> Interval:
    """Return the mean of values with their counts, and its interval. Pure."""
    chance = Random(f"bootstrap {seed}")
    lows, highs = [], []
    for _ in range(resamples):
        weights = [chance.gammavariate(count, 1) for _, count in counts]
        worth = sum(w * value for w, (value, _) in zip(weights, counts, strict=True))
        imagined = chance.expovariate(1)
        whole = sum(weights) + imagined
        lows.append(worth / whole)
        highs.append((worth + imagined) / whole)
    tail = int(resamples * (1 - level) / 2)
    value = sum(value * count for value, count in counts) / sum(count for _, count in counts)
    # A mean of 0 or 1 is its own bound, in spite of rounding and few draws.
    low = 0.0 if value <= 0 else min(value, sorted(lows)[tail])
    high = 1.0 if value >= 1 else max(value, sorted(highs)[-1 - tail])
    return Interval(value, low, high)


def _counts(outcomes: Outcomes, at_least: int) -> list[tuple[int, int]]:
    """Return (successes, judged trials) of each task. Raise ValueError if a task has too few."""
    if at_least < 1:
        raise ValueError(f"{at_least} trials cannot be asked for; ask for 1 or more")
    counts = []
    for task, verdicts in outcomes.items():
        successes, judged = _count_verdicts(verdicts)
        if judged < at_least:
            raise ValueError(
                f"task {task} has {judged} judged trials, fewer than the {at_least} asked for; "
                "run more trials or ask for fewer"
            )
        counts.append((successes, judged))
    return counts


def _count_verdicts(verdicts: Sequence[bool | None]) -> tuple[int, int]:
    judged = [verdict for verdict in verdicts if verdict is not None]
    return sum(judged), len(judged)


def _all_of(c: int, n: int, k: int) -> float:
    return comb(c, k) / comb(n, k)
