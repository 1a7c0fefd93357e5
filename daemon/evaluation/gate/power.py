"""Numbers of tasks that show a gain, and gains that they show."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, stdev
from typing import Final

POWER: Final = 0.8
_NORMAL: Final = NormalDist()


def detectable(values: Sequence[float], alpha: float) -> float | None:
    """Return the mean that a one-sided test of so many values finds with a power of 80 %:
    (z_alpha + z_beta) s / sqrt(n), with their standard deviation s; None for fewer than two."""
    if len(values) < 2:
        return None
    z = _NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(POWER)
    return z * stdev(values) / sqrt(len(values))


def tasks_for(gain: float, between: float, within: float, trials: int, alpha: float = 0.05) -> int:
    """Return how many tasks show a gain with a power of 80 %, one-sided:
    n = (z_alpha + z_beta)^2 (between + within / trials) / gain^2, with the variances of the true
    difference between tasks and of one trial's difference."""
    z = _NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(POWER)
    needed = z**2 * (between + within / trials) / gain**2
    return int(needed) + (needed > int(needed))


def power_of(
    tasks: int, gain: float, between: float, within: float, trials: int, alpha: float = 0.05
) -> float:
    """Return the chance that so many tasks show a gain: `tasks_for`, solved for the power."""
    variance = between + within / trials
    if variance == 0:
        return 1.0
    return _NORMAL.cdf(gain * sqrt(tasks / variance) - _NORMAL.inv_cdf(1 - alpha))
