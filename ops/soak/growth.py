"""Whether a figure of processes that are killed and started again grows (readings -> verdict).

    growth(lives, Rule(bound=24.0, warm_up=120.0))     Growth: "flat", "grows" or "unknown"

Flat means: no rate of growth above the bound can be shown, in any of two ways.

- By age. Of each life the readings of its warm-up are left out, the others put together to medians
  of a minute. The rate is the median of all slopes between two minutes of one life, of all lives
  together (Theil and Sen), so a restart is no slope. It grows when the 99 % interval lies above the
  bound, for the lives whole and for their later halves alone: a cache that fills slows down, a leak
  does not. Where the lives whole grow and their later halves may or may not, nothing is decided.
- By what is there. A life that begins later finds more data. The medians of all lives just after
  their warm-up are compared by when they began; it grows when that interval lies above the bound.

Medians of neighbouring minutes are not independent, so the intervals are narrower than they should
be: the bound has to be well above what a busy process does anyway. Fewer than LEAST minutes of warm
readings decide nothing, and neither does what only moves up and down.
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
"""Minutes of warm readings without which nothing is said of growth by age."""
LEAST_LIVES: Final = 4
"""Lives that began at different times, without which nothing is said of growth by data."""

_QUANTILE: Final = NormalDist().inv_cdf(0.995)
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_YOUNG: Final = 120.0
"""Seconds after the warm-up in which lives of equal age are compared."""


@dataclass(slots=True)
class Life:
    """Readings of one process, or of something that is never killed."""

    readings: list[tuple[float, float, float]] = field(default_factory=list)
    """When, in seconds of the run; its age then, in seconds; and the figure."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is called growth."""

    bound: float
    """Per hour, in the figure's unit."""
    warm_up: float = 120.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A rate per hour, and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Growth:
    """The verdict on one figure, and what it rests on."""

    verdict: Verdict
    lives: int
    minutes: int
    """Minutes of warm readings."""
    first: float | None
    """Median of the warm readings in the first third of the run."""
    last: float | None
    most: float | None
    by_age: Slope | None
    later: Slope | None
    """The same of the later halves of the lives."""
    by_data: Slope | None
    bound: float

    @property
    def grows(self) -> bool:
        """Whether it does."""
        return self.verdict == "grows"


def growth(lives: Sequence[Life], rule: Rule, seconds: float) -> Growth:
    """The verdict on the readings of a run of so many seconds."""
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
    """Time and median of each minute of a life."""
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
    """Yield, for each life, when it began and its median value when its warm-up was over."""
    for readings in warm:
        at, age, _ = readings[0]
        values = [value for _, old, value in readings if old < rule.warm_up + _YOUNG]
        if values:
            yield at - age, median(values)


def _slope(lives: list[list[tuple[float, float]]], least: int) -> Slope | None:
    """The median slope between two points of one life, and its interval; None for too little.

    The interval is Sen's (1968) with the variances of Kendall's statistic of the lives added up:
    what happens in one tells nothing of another. scipy.stats.theilslopes knows one series only,
    and no ties of times and values at once.
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
    """Return the variance of Kendall's statistic where nothing grows."""
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
