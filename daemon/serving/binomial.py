"""A test of two counts of rare events, each with its own exposure (calls, sessions, tokens)."""

from math import exp, inf, lgamma, log


def conditional_binomial(after: int, before: int, share: float) -> float:
    """The one-sided p-value of `after` against `before`: how probable so many are, or more.

    `share` is the part of the whole exposure that belongs to `after`, above 0 and below 1. Where
    both rates are equal, each of the `after + before` events is one of `after` with that
    probability, whatever the rate is: the count is binomial, and the rate need not be known
    (Przyborowski and Wilenski 1940). Raises ValueError for counts below 0 or a share outside.
    """
    if after < 0 or before < 0:
        raise ValueError(f"counts are not negative: {after} and {before}")
    if not 0 < share < 1:
        raise ValueError(f"the share is above 0 and below 1, not {share}")
    if after == 0:
        return 1.0
    total = after + before
    logs = [_log_mass(count, total, share) for count in range(after, total + 1)]
    largest = max(logs, default=-inf)
    return min(1.0, exp(largest) * sum(exp(value - largest) for value in logs))


def _log_mass(count: int, total: int, share: float) -> float:
    """Of a binomial variable."""
    ways = lgamma(total + 1) - lgamma(count + 1) - lgamma(total - count + 1)
    return ways + count * log(share) + (total - count) * log(1 - share)
