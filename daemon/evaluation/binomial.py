"""Test whether one count is higher than another beyond chance (pure).

Two Poisson counts have exposures in the ratio share : 1 - share. With the same rate, given their
sum, the first is Binomial(sum, share), whatever the rate (Przyborowski and Wilenski 1940).
"""

from math import exp, lgamma, log, log1p


def conditional_binomial(after: int, before: int, share: float) -> float:
    """Return the p-value of a higher rate: the chance that `after` or more of `after + before`
    events fall to the candidate, each with the chance `share`, its part of the exposure.

    Exact but for rounding; the time grows with the root of the counts. Raises ValueError for a
    negative count, or a share outside of (0, 1).
    """
    if min(after, before) < 0:
        raise ValueError(f"counts are 0 or more, not {after} and {before}")
    if not 0 < share < 1:
        raise ValueError(f"share is {share:g}; both need a part of the exposure: 0 < share < 1")
    total = after + before
    if after > total * share:
        return _tail(after, total, share)
    # Below the middle, sum the other tail, whose terms fall: `before` or more of the other events.
    return 1.0 - _tail(before + 1, total, 1.0 - share)


def bound_share(count: int, whole: int, level: float) -> float:
    """Return the one-sided upper bound of a share with `count` of `whole` seen, with error `level`:
    the share at which `count` or fewer have that chance (Clopper and Pearson 1934). Exact to 1e-12.
    Raises ValueError for counts that are no share."""
    if not 0 <= count <= whole or not whole:
        raise ValueError(f"{count} of {whole} is no share; give 0 to as many, of 1 or more")
    low, high = count / whole, 1.0
    if count == whole:
        return high
    while high - low > 1e-12:
        middle = (low + high) / 2
        # At most `count` hits means that at least the rest are no hits.
        hit = conditional_binomial(whole - count, count, 1 - middle) if middle else 1.0
        low, high = (middle, high) if hit > level else (low, middle)
    return high


def _tail(least: int, total: int, share: float) -> float:
    """Return P(X >= least) of X ~ Binomial(total, share), for a `least` at or above the middle."""
    if least > total:
        return 0.0
    term = exp(
        lgamma(total + 1) - lgamma(least + 1) - lgamma(total - least + 1)
        + least * log(share) + (total - least) * log1p(-share)
    )  # fmt: skip
    odds, tail = share / (1.0 - share), 0.0
    for count in range(least, total + 1):
        tail += term
        term *= (total - count) / (count + 1) * odds
        if term < tail * 1e-17:
            break
    return min(1.0, tail)
