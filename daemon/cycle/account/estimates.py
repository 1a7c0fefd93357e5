"""Estimates with 95 % intervals: shares (Clopper and Pearson), differences, and gains weighted by
traffic. Pure.

`subtract` recovers the variances of two independent estimates from their intervals (MOVER; Zou and
Donner, Statistics in Medicine 2008, 27: 1693-1702):
low = a - b - sqrt((a - a_low)^2 + (b_high - b)^2), high likewise.
"""

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from statistics import NormalDist, mean
from typing import Final

from daemon.evaluation.gate.levels import rate
from envs.statistics import Interval

_Z: Final = NormalDist().inv_cdf(0.975)


def estimate_share(count: int, whole: int) -> Interval | None:
    """Return count / whole with its 95 % interval; None if `whole` is 0."""
    share = rate(count, whole)
    return None if share is None else Interval(share.value, share.low, share.high)


def to_points(estimate: Interval) -> Interval:
    """Convert a share of all traffic, with its interval, to points of pass^1 (percent)."""
    return Interval(*(100 * value for value in (estimate.value, estimate.low, estimate.high)))


def subtract(first: Interval, second: Interval) -> Interval:
    """Return the difference of two independent estimates, with its interval."""
    value = first.value - second.value
    return Interval(
        value,
        value - hypot(first.value - first.low, second.high - second.value),
        value + hypot(first.high - first.value, second.value - second.low),
    )


def clip_to_gain(estimate: Interval) -> Interval:
    """Return the estimate with negative values replaced by 0."""
    return Interval(*(max(0.0, value) for value in (estimate.value, estimate.low, estimate.high)))


def estimate_gain(
    traffic: Mapping[str, int], differences: Mapping[str, Sequence[float]]
) -> Interval | None:
    """Return the gain in pass^1 of all traffic, as a share; None if no kind has traffic and tasks.

    `traffic`: kind of task -> rollouts, N in all; `differences`: kind -> candidate minus incumbent
    on each task. A kind without tasks counts as unchanged. The estimate is g = sum_k w_k mean(D_k)
    with w_k the kind's share of traffic. Its variance has two parts: that of the tasks,
    sum_k w_k^2 s_k^2 / n_k, and that of the shares, (sum_k w_k mean(D_k)^2 - g^2) / N. Each s_k^2
    has one imagined value of variance 1/4 among its n_k, since few equal tasks do not show that
    all are equal. Source: stratified sampling with estimated weights (Cochran, Sampling
    Techniques, 1977, 12.2).
    """
    whole = sum(traffic.values())
    shares = {kind: count / whole for kind, count in traffic.items() if differences.get(kind)}
    if not shares:
        return None
    means = {kind: mean(differences[kind]) for kind in shares}
    value = sum(share * means[kind] for kind, share in shares.items())
    of_tasks = sum(
        share**2 * _variance_of_mean(differences[kind]) for kind, share in shares.items()
    )
    of_shares = sum(share * means[kind] ** 2 for kind, share in shares.items()) - value**2
    half = _Z * sqrt(of_tasks + max(0.0, of_shares) / whole)
    return Interval(value, value - half, value + half)


def estimate_mean(differences: Sequence[float]) -> Interval | None:
    """Return the mean difference on one kind's tasks with its interval; None without tasks."""
    return estimate_gain({"": 1}, {"": differences})


def _variance_of_mean(values: Sequence[float]) -> float:
    middle, count = mean(values), len(values)
    return (sum((value - middle) ** 2 for value in values) + 0.25) / count**2
