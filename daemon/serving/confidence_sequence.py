"""Confidence sequence for the mean success probability of an arm's sessions: counts in, bounds out.

    low, high = bound_mean(successes, trials, error)

The sessions of an arm, in the order in which they began, have success probabilities `p_1, p_2, ...`
that may drift and may depend on all outcomes before. For every `e` (a log odds ratio),
`product of exp(e * x_i) / (1 - p_i + p_i * exp(e))` over outcomes `x_i` in {0, 1} is a nonnegative
martingale that begins at 1. The logarithm of its denominator is concave in `p_i`, so with the mean
`m` of `p_1 ... p_n` (Hoeffding 1963, theorem 1)

    exp(e * successes) / (1 - m + m * exp(e)) ** n

is never larger than the martingale. The same holds for a mean over fixed `e`, and by Ville's
inequality it reaches `1 / error` at any `n` with a probability of at most `error`: the
sub-Bernoulli mixture of Howard, Ramdas, McAuliffe and Sekhon (arXiv 1810.08240). The bounds are the
smallest and the largest `m` at which it does not: a likelihood-ratio test inverted.

Guarantee: with a probability of at least `1 - error` the mean of the probabilities of the first `n`
sessions lies within the bounds for all `n` at once, so they may be read at any time, and at an `n`
that is chosen after the outcomes were seen. A function of counts: the order of sessions does not
matter. Pure. Not covered: sessions whose outcome is left out because of what it is.
"""

from math import exp, fsum, log, log1p
from typing import Final

_FIRST: Final = 4.0
_ALTERNATIVES: Final = 10
_LOG_ODDS: Final = tuple(
    sign * _FIRST / 2.0**step for step in range(_ALTERNATIVES) for sign in (1, -1)
)
"""Log odds ratios of the alternatives to the mean that is tested: from 4, which few sessions show,
to 0.008, which a million show. One between two of them costs 6 % of the width at most."""

_HALVINGS: Final = 24
"""Bisection steps: bounds are wider than exact ones by 1e-7 at most."""


def bound_mean(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Return the lower and the upper bound of the mean success probability.

    `error`, above 0 and below 1, is the probability that any of the bounds, over all numbers of
    trials, is wrong. Without trials the bounds are 0 and 1. Raises ValueError.
    """
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
    """Return where the evidence against a mean passes `enough`, between `outside` and the
    observed mean; the evidence is convex in the mean, and at most 1 at the observed one."""
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
