"""Metrics whose values are computed at each scrape (figures -> families).

    FAMILIES = (Family("kintsugi_patterns", "Failure patterns.", ("agent", "status")), ...)
    sheet = Sheet(FAMILIES)
    sheet.say("kintsugi_patterns", 3, "agent", "NEW")

Tests compare docs/monitoring.md, the dashboards and the alert rules with the declarations.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)


@dataclass(frozen=True, slots=True)
class Family:
    """Declaration of one metric."""

    name: str
    """Name of the metric in a query; the name of a counter ends in `_total`."""
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the infinite last one."""

    @property
    def is_counter(self) -> bool:
        """Return whether the metric is a counter."""
        return self.name.endswith("_total")

    def empty(self) -> GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily:
        """Return the metric without a sample."""
        if self.buckets:
            return HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        return kind(self.name, self.meaning, labels=self.labels)


class Sheet:
    """The samples of some metrics at one moment."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._declared = {family.name: family for family in families}
        self._families = {name: family.empty() for name, family in self._declared.items()}

    def say(self, name: str, value: float | None, *labels: str) -> None:
        """Add one sample of a declared metric, none for a value of None."""
        family = self._families[name]
        assert not isinstance(family, HistogramMetricFamily), "a histogram is spread"
        if value is not None:
            family.add_metric(list(labels), float(value))

    def spread(self, name: str, counts: Mapping[float, int], total: float, *labels: str) -> None:
        """Add a histogram from upper bound -> count of that bucket alone, and the values' sum."""
        family = self._families[name]
        assert isinstance(family, HistogramMetricFamily), "declared with buckets"
        below, buckets = 0, []
        for bound in (*self._declared[name].buckets, math.inf):
            below += counts.get(bound, 0)
            buckets.append(("+Inf" if math.isinf(bound) else str(bound), float(below)))
        family.add_metric(list(labels), buckets, total)

    def one_of(self, name: str, chosen: str, choices: Iterable[str], *labels: str) -> None:
        """Add a sample for each choice: 1 for `chosen`, else 0. The last label is the choice."""
        for choice in choices:
            self.say(name, choice == chosen, *labels, choice)

    def metrics(self) -> Iterator[Metric]:
        """Yield all metrics with their samples."""
        yield from self._families.values()
