"""Confidence sequence for the mean success probability of an arm's sessions. Pure.

The sessions, in the order of their starts, have success probabilities `p_1, p_2, ...` that may
drift and depend on earlier outcomes. For every `e` (a log odds ratio) and outcomes `x_i` in {0, 1},
the product of `exp(e * x_i) / (1 - p_i + p_i * exp(e))` is a nonnegative martingale from 1. The log
of its denominator is concave in `p_i`, so with the mean `m` of the `p_i` (Hoeffding 1963, theorem
1)

    exp(e * successes) / (1 - m + m * exp(e)) ** n

never exceeds the martingale, nor does a mean over fixed `e`. By Ville's inequality it reaches `1 /
error` at any `n` with a probability of at most `error`: the sub-Bernoulli mixture of Howard,
Ramdas, McAuliffe and Sekhon (arXiv 1810.08240). The bounds are the smallest and the largest `m` for
which it stays below.

Guarantee: with a probability of at least `1 - error` the mean of the first `n` probabilities lies
within the bounds for all `n` at once, also for an `n` chosen after the outcomes. The order of
sessions does not matter. Not covered: sessions left out because of their outcome.
"""

from math import exp, fsum, log, log1p
from typing import Final

_FIRST: Final = 4.0
_ALTERNATIVES: Final = 10
_LOG_ODDS: Final = tuple(
    sign * _FIRST / 2.0**step for step in range(_ALTERNATIVES) for sign in (1, -1)
)
"""Log odds ratios of the alternatives: from 4, which few sessions can show, to 0.008, which takes a
million. A true ratio between two of them widens the bounds by at most 6 %."""

_HALVINGS: Final = 24
"""Bisection steps: bounds are at most 1e-7 wider than exact ones."""


def bound_mean(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Return the bounds of the mean success probability; 0 and 1 without trials. `error`, between 0
    and 1, is the probability that any bound, over all numbers of trials, is wrong. Raises
    ValueError."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if not 0 < error < 1:
        raise ValueError(f"an error is above 0 and below 1, not {error}")
    if trials == 0:
        return 0.0, 1.0
    mean = successes / trials
    return (
        _find_bound(successes, trials, log(1 / error), 0.0, mean),
        _find_bound(successes, trials, log(1 / error), 1.0, mean),
    )


def _find_bound(successes: int, trials: int, enough: float, outside: float, inside: float) -> float:
    """Return the mean where the evidence against it passes `enough`, between `outside` and the
    observed mean `inside`. The evidence is convex in the mean, and at most 1 at `inside`."""
    if _log_evidence(successes, trials, outside) < enough:
        return outside
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2
        if _log_evidence(successes, trials, middle) < enough:
            inside = middle
        else:
            outside = middle
    return outside


def _log_evidence(successes: int, trials: int, mean: float) -> float:
    """Return the log of the mean likelihood ratio of the alternatives to `mean`."""
    logs = [odds * successes - trials * log1p(mean * (exp(odds) - 1)) for odds in _LOG_ODDS]
    largest = max(logs)
    return largest + log(fsum(exp(value - largest) for value in logs) / len(logs))
