"""Power of the gate's tests: tasks needed for a gain, and the gain that some tasks can show."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, stdev
from typing import Final

POWER: Final = 0.8
_NORMAL: Final = NormalDist()


def detectable(values: Sequence[float], alpha: float) -> float | None:
    """Return the smallest true mean that a one-sided test of n values finds with a power of 80 %:
    (z_alpha + z_beta) s / sqrt(n), s their standard deviation. None for fewer than two values."""
    if len(values) < 2:
        return None
    z = _NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(POWER)
    return z * stdev(values) / sqrt(len(values))


def tasks_for(gain: float, between: float, within: float, trials: int, alpha: float = 0.05) -> int:
    """Return the number of tasks at which a one-sided test finds `gain` with a power of 80 %:
    n = (z_alpha + z_beta)^2 (between + within / trials) / gain^2. `between` is the variance of the
    true differences of tasks, and `within` that of one trial's difference."""
    z = _NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(POWER)
    needed = z**2 * (between + within / trials) / gain**2
    return int(needed) + (needed > int(needed))


def power_of(
    tasks: int, gain: float, between: float, within: float, trials: int, alpha: float = 0.05
) -> float:
    """Return the power to find `gain` with so many tasks: the formula of `tasks_for`, inverted."""
    variance = between + within / trials
    if variance == 0:
        return 1.0
    return _NORMAL.cdf(gain * sqrt(tasks / variance) - _NORMAL.inv_cdf(1 - alpha))
