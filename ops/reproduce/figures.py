"""Paired differences between policies, their ratio, and the format of figures.

Intervals are over tasks. A run has one training seed, so no interval includes the spread between
trainings.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np

from envs import statistics
from envs.statistics import LEVEL, RESAMPLES, Interval

_SEED: Final = 0


def measure_difference(own: Sequence[float], other: Sequence[float]) -> Interval:
    """Return the mean of `own` minus `other`, with its interval (envs/statistics.py). The values
    are paired and lie in [0, 1]."""
    gains = [first - second for first, second in zip(own, other, strict=True)]
    # The estimator takes values between 0 and 1.
    scaled = statistics.mean([(gain + 1) / 2 for gain in gains])
    value, low, high = (2 * part - 1 for part in (scaled.value, scaled.low, scaled.high))
    return Interval(value, low, high)


def compare_tasks(
    own: Mapping[str, Sequence[bool]], other: Mapping[str, Sequence[bool]]
) -> tuple[int, Interval] | None:
    """Return (number of common tasks, mean difference); None without a common task."""
    common = sorted(set(own) & set(other))
    if not common:
        return None
    values = [[fmean(part[task]) for task in common] for part in (own, other)]
    return len(common), measure_difference(*values)


def measure_ratio(own: Sequence[float], other: Sequence[float], base: Sequence[float]) -> Interval:
    """Return `own`'s gain over `base` divided by `other`'s, bootstrapped over tasks. `other` must
    gain."""
    gains = np.subtract([own, other], base)
    chance = np.random.default_rng(_SEED)
    count = gains.shape[1]
    drawn = chance.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) @ gains.T
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw may have no gain at all
        times = drawn[:, 0] / drawn[:, 1]
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(times, [tail, 1 - tail])
    value = gains[0].mean() / gains[1].mean()
    return Interval(float(value), float(low), float(high))


def format_interval(estimate: Interval) -> str:
    """Format a figure with its bounds."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def format_change(estimate: Interval) -> str:
    """Format a difference with its bounds, each with its sign."""
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a Markdown table; the first row is its head."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])
