"""Decide whether a figure of processes that are killed and restarted grows (readings -> verdict).

A figure is flat if neither of two ways shows a rate of growth above the bound.

- By age: warm-ups are left out, and readings become medians of a minute. The rate is the median of
  all slopes within one life, over all lives (Theil and Sen), so a restart is no slope. The figure
  grows if the 99 % interval lies above the bound, for whole lives and for their later halves: a
  cache that fills slows down, a leak does not. If only whole lives certainly grow, it is unknown.
- By data: a later life finds more data. Medians just after the warm-up are compared by the lives'
  beginnings; the figure grows if that interval lies above the bound.

Medians of neighbouring minutes depend on each other, so the intervals are too narrow: the bound has
to be well above the noise of a busy process. Fewer than LEAST warm minutes decide nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import sqrt
from statistics import NormalDist, median
from typing import Final, Literal

Verdict = Literal["flat", "grows", "unknown"]

LEAST: Final = 8
LEAST_LIVES: Final = 4

_QUANTILE: Final = NormalDist().inv_cdf(0.995)
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_YOUNG: Final = 120.0
"""Seconds after the warm-up whose medians are compared between lives."""


@dataclass(slots=True)
class Life:
    """Readings of one process from start to end, or of something that is never killed."""

    readings: list[tuple[float, float, float]] = field(default_factory=list)
    """(seconds since the run's start, age of the process in seconds, value)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed growth of a figure, and its warm-up time."""

    bound: float
    """Largest growth per hour, in the figure's unit."""
    warm_up: float = 120.0


@dataclass(frozen=True, slots=True)
class Slope:
    """A rate of growth per hour, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Growth:
    """The verdict on one figure, and the rates on which it is based."""

    verdict: Verdict
    lives: int
    minutes: int
    first: float | None
    last: float | None
    most: float | None
    by_age: Slope | None
    later: Slope | None
    by_data: Slope | None
    bound: float

    @property
    def grows(self) -> bool:
        """Return whether the figure grows."""
        return self.verdict == "grows"


def growth(lives: Sequence[Life], rule: Rule, seconds: float) -> Growth:
    """Return the verdict on a figure's readings in a run of `seconds`."""
    warm = [[reading for reading in life.readings if reading[1] >= rule.warm_up] for life in lives]
    warm = [readings for readings in warm if readings]
    minutes = [_minutes(readings) for readings in warm]
    later = [_minutes(_later_half(readings)) for readings in warm]
    by_age, later_slope = _slope(minutes, LEAST), _slope(later, LEAST // 2)
    by_data = _slope([list(_young(warm, rule))], LEAST_LIVES)
    values = [value for readings in warm for _, _, value in readings]
    return Growth(
        _verdict(by_age, later_slope, by_data, rule.bound),
        lives=len(warm),
        minutes=sum(map(len, minutes)),
        first=_median_within(warm, 0.0, seconds / 3),
        last=_median_within(warm, seconds * 2 / 3, seconds),
        most=max(values, default=None),
        by_age=by_age, later=later_slope, by_data=by_data, bound=rule.bound,
    )  # fmt: skip


def _verdict(
    by_age: Slope | None, later: Slope | None, by_data: Slope | None, bound: float
) -> Verdict:
    if by_data is not None and by_data.low > bound:
        return "grows"
    if by_age is None or later is None:
        return "unknown"
    if by_age.low <= bound or later.high <= bound:
        return "flat"
    return "grows" if later.low > bound else "unknown"


def _later_half(readings: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    middle = (readings[0][1] + readings[-1][1]) / 2
    return [reading for reading in readings if reading[1] >= middle]


def _minutes(readings: list[tuple[float, float, float]]) -> list[tuple[float, float]]:
    by_minute: dict[int, list[tuple[float, float]]] = {}
    for at, age, value in readings:
        by_minute.setdefault(int(age // _MINUTE), []).append((at, value))
    return [
        (median(at for at, _ in within), median(value for _, value in within))
        for within in by_minute.values()
    ]


def _young(
    warm: list[list[tuple[float, float, float]]], rule: Rule
) -> Iterator[tuple[float, float]]:
    for readings in warm:
        at, age, _ = readings[0]
        values = [value for _, old, value in readings if old < rule.warm_up + _YOUNG]
        if values:
            yield at - age, median(values)


def _slope(lives: list[list[tuple[float, float]]], least: int) -> Slope | None:
    """Return the median slope between two points of the same life, with its interval. Return None
    if there are fewer than `least` points.

    The interval is Sen's (1968) with the lives' variances of Kendall's statistic added up, as lives
    are independent. scipy.stats.theilslopes takes only one series, and no ties of times and values
    at once.
    """
    slopes = sorted(
        (value - before) / (at - when) * _HOUR
        for life in lives
        for (when, before), (at, value) in combinations(life, 2)
        if at > when
    )
    if sum(map(len, lives)) < least or not slopes:
        return None
    spread = _QUANTILE * sqrt(sum(_variance([value for _, value in life]) for life in lives))
    low, high = round((len(slopes) - spread) / 2) - 1, round((len(slopes) + spread) / 2)
    last = len(slopes) - 1
    return Slope(median(slopes), slopes[max(0, low)], slopes[min(last, high)])


def _variance(values: list[float]) -> float:
    """Return the variance of Kendall's statistic for values that do not grow."""
    tied = Counter(values).values()
    return sum(
        sign * count * (count - 1) * (2 * count + 5) / 18
        for sign, count in ((1, len(values)), *((-1, count) for count in tied))
    )


def _median_within(
    warm: list[list[tuple[float, float, float]]], begin: float, end: float
) -> float | None:
    values = [value for readings in warm for at, _, value in readings if begin <= at < end]
    return median(values) if values else None
