"""Metrics of what every call passes: plain numbers, made into samples when somebody asks.

    took = Spread("kintsugi_gateway_overhead_seconds", "...", ("endpoint",), BOUNDS, registry)
    took.add(0.25, "chat")

The library's own take locks and look their labels up for each number, which a gateway's calls feel
(`python -m ops.bench.gateway.counting`); what is counted seldom is left to it.

Guarantee: one thread writes, the gateway's event loop, and any may ask. Who asks gets every number
as it was at some moment since it asked; a call that ends meanwhile may be in one and not yet in
another. A histogram's count is that of its buckets.
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
    """One number for each set of labels."""

    _KIND: type[CounterMetricFamily] | type[GaugeMetricFamily]

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._meaning, self._labels = name, meaning, labels
        self._numbers: dict[Labels, float] = {}
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """The name alone."""
        yield self._KIND(self._name, self._meaning, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """As it is now."""
        family = self._KIND(self._name, self._meaning, labels=self._labels)
        # A copy: labels that nobody had before may come meanwhile.
        for labels, number in self._numbers.copy().items():
            family.add_metric(labels, number)
        yield family


class Count(_Numbers):
    """How often something happened: a counter."""

    _KIND = CounterMetricFamily

    def add(self, *labels: str) -> None:
        """It happened once more."""
        self._numbers[labels] = self._numbers.get(labels, 0) + 1


class Level(_Numbers):
    """What something is: a gauge, absent until it is said."""

    _KIND = GaugeMetricFamily

    def say(self, number: float, *labels: str) -> None:
        """It is this from now on."""
        self._numbers[labels] = number


class Inside(_Numbers):
    """How many are inside, of those that enter it and leave it: a gauge without labels."""

    _KIND = GaugeMetricFamily

    def __init__(self, name: str, meaning: str, registry: CollectorRegistry) -> None:
        super().__init__(name, meaning, (), registry)
        self._numbers[()] = 0

    def __enter__(self) -> None:
        self._numbers[()] += 1

    def __exit__(self, *_: object) -> None:
        self._numbers[()] -= 1


class _Series:
    """What one set of labels has of a histogram."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0


class Spread(Collector):
    """How long something took: a histogram."""

    def __init__(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """`bounds` are the buckets' upper ones, in order, without the last, which is infinite."""
        self._name, self._meaning, self._labels = name, meaning, labels
        self._bounds = tuple(bounds)
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._series: dict[Labels, _Series] = {}
        registry.register(self)

    def add(self, seconds: float, *labels: str) -> None:
        """It took this once more."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(len(self._names))
        # A bound belongs to its bucket.
        series.counts[bisect_left(self._bounds, seconds)] += 1
        series.total += seconds

    def describe(self) -> Iterator[Metric]:
        """The name alone."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """As it is now."""
        family = self._family()
        for labels, series in self._series.copy().items():
            below = accumulate(series.counts.copy())
            buckets = [(name, float(n)) for name, n in zip(self._names, below, strict=True)]
            family.add_metric(labels, buckets, series.total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
