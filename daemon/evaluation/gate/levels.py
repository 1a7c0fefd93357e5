"""The error levels of the gate's tests, and the bounds and tests that keep them."""

from collections.abc import Callable, Mapping, Sequence
from math import pi
from typing import Final

from daemon.evaluation.binomial import conditional_binomial
from envs import statistics
from events.gate import Rate

LEVEL: Final = 0.05
"""One-sided error of every check except the target's, over all looks together."""
BEST_LEVEL: Final = 0.01
"""The same of comparisons with a slice's best policy, shared equally by the looks. A chain of
promotions repeats it: at 0.05, 9 of 100 chains of 20 end below the margin (ADR 0051)."""
_LEVELS: Final = (0.05, 0.03036, 0.02181, 0.01693, 0.01379, 0.01159, 0.00998, 0.00874)
"""Level of one look, by the number of looks, that keeps `LEVEL` over all: normal tests of sums
whose tasks double from look to look (correlations sqrt(n_i / n_j)), by numerical integration.
Closer looks err less often together."""
_INTERVAL: Final = 0.025
"""Error level on each side of a rate's 95 % interval."""


def spend_alpha(alpha: float, attempt: int) -> float:
    """Return the part of `alpha` for the `attempt`-th candidate (from 1) on a gate set:
    6 / (pi^2 attempt^2) of it, so that all parts sum to `alpha`."""
    return alpha * 6 / (pi * attempt) ** 2


def level_of(looks: int) -> float:
    """Return the level of each of several looks, for an error of at most `LEVEL` over all looks."""
    return _LEVELS[looks - 1] if looks <= len(_LEVELS) else LEVEL / looks


def bound(values: Sequence[float], level: float = LEVEL) -> float:
    """Return the one-sided lower bound of a mean of values in [-1, 1], with error `level`."""
    halves = [(value + 1) / 2 for value in values]
    return 2 * statistics.mean(halves, level=1 - 2 * level).low - 1


def holm(p_values: Mapping[str, float], level: float) -> set[str]:
    """Return the hypotheses that Holm's method (1979) rejects, with error `level` over all."""
    rejected: set[str] = set()
    for name, adjusted in holm_levels(p_values, level).items():
        if p_values[name] > adjusted:
            break
        rejected.add(name)
    return rejected


def holm_levels(p_values: Mapping[str, float], level: float) -> dict[str, float]:
    """Return name -> Holm's level, smallest p-value first; a rejection needs all before it."""
    ranked = sorted(p_values, key=lambda name: p_values[name])
    return {name: level / (len(ranked) - place) for place, name in enumerate(ranked)}


def rate(count: int, whole: int) -> Rate | None:
    """Return a share with its 95 % interval (Clopper and Pearson 1934); None for a total of 0."""
    if not whole:
        return None
    count = min(count, whole)
    low = 0.0 if count == 0 else _root(lambda p: conditional_binomial(count, whole - count, p))
    high = 1.0
    if count < whole:
        # Of the others the lower bound: both tails are one function.
        high = 1 - _root(lambda p: conditional_binomial(whole - count, count, p))
    return Rate(value=count / whole, low=low, high=high)


def _root(tail: Callable[[float], float]) -> float:
    """Return the argument at which an increasing probability from 0 to 1 equals `_INTERVAL`."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < _INTERVAL else (low, middle)
    return low
