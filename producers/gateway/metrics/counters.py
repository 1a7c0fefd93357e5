"""Metrics that every call updates: plain numbers, from which samples are made at collection. The
client library's locks and label look-ups would slow calls down (`python -m
ops.bench.gateway.counting`), so it only counts rare events.

Guarantee: only the thread of the gateway's event loop writes; any thread may collect. Each number
is read at some time during the collection, so a call that ends meanwhile may be in some numbers
only. A histogram's count is the sum of its buckets.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


class _Numbers(Collector):
    _KIND: type[CounterMetricFamily] | type[GaugeMetricFamily]

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._meaning, self._labels = name, meaning, labels
        self._numbers: dict[Labels, float] = {}
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Return the metric without samples."""
        yield self._KIND(self._name, self._meaning, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """Return the metric with its current values."""
        family = self._KIND(self._name, self._meaning, labels=self._labels)
        # Copied, because the event loop may add labels meanwhile.
        for labels, number in self._numbers.copy().items():
            family.add_metric(labels, number)
        yield family


class Count(_Numbers):
    """A counter."""

    _KIND = CounterMetricFamily

    def add(self, *labels: str) -> None:
        """Increase the count by one."""
        self._numbers[labels] = self._numbers.get(labels, 0) + 1


class Level(_Numbers):
    """A gauge that has no sample until it is set."""

    _KIND = GaugeMetricFamily

    def say(self, number: float, *labels: str) -> None:
        """Set the gauge to `number`."""
        self._numbers[labels] = number


class Inside(_Numbers):
    """A gauge without labels: the number of entered contexts that have not been left."""

    _KIND = GaugeMetricFamily

    def __init__(self, name: str, meaning: str, registry: CollectorRegistry) -> None:
        super().__init__(name, meaning, (), registry)
        self._numbers[()] = 0

    def __enter__(self) -> None:
        self._numbers[()] += 1

    def __exit__(self, *_: object) -> None:
        self._numbers[()] -= 1


class _Series:
    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0


class Spread(Collector):
    """A histogram of durations in seconds."""

    def __init__(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """`bounds`: ascending upper bounds of the buckets, without the infinite one."""
        self._name, self._meaning, self._labels = name, meaning, labels
        self._bounds = tuple(bounds)
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._series: dict[Labels, _Series] = {}
        registry.register(self)

    def add(self, seconds: float, *labels: str) -> None:
        """Observe `seconds`."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(len(self._names))
        # A value equal to a bound belongs to the bucket of that bound.
        series.counts[bisect_left(self._bounds, seconds)] += 1
        series.total += seconds

    def describe(self) -> Iterator[Metric]:
        """Return the metric without samples."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Return the metric with its current values."""
        family = self._family()
        for labels, series in self._series.copy().items():
            below = accumulate(series.counts.copy())
            buckets = [(name, float(n)) for name, n in zip(self._names, below, strict=True)]
            family.add_metric(labels, buckets, series.total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
