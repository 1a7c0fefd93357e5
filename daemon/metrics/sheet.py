"""Figures that are looked up when somebody asks, as metrics (figures -> families).

    FAMILIES = (Family("kintsugi_patterns", "Failure patterns.", ("agent", "status")), ...)
    sheet = Sheet(FAMILIES)
    sheet.say("kintsugi_patterns", 3, "agent", "NEW")

What a collector can say is declared as data beside it: the page docs/monitoring.md, the dashboards
and the alert rules are held to it by tests.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class Family:
    """A metric that can be said."""

    name: str
    """As it is asked for: a counter's ends in `_total`."""
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        """Whether it only grows."""
        return self.name.endswith("_total")

    def empty(self) -> GaugeMetricFamily | CounterMetricFamily:
        """The metric without a sample."""
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        return kind(self.name, self.meaning, labels=self.labels)


class Sheet:
    """The samples of some metrics at one moment."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = {one.name: one.empty() for one in families}

    def say(self, name: str, value: float | None, *labels: str) -> None:
        """One sample; None is no sample. The metric must have been declared."""
        family = self._families[name]
        if value is not None:
            family.add_metric(list(labels), float(value))

    def one_of(self, name: str, chosen: str, choices: Iterable[str], *labels: str) -> None:
        """1 for the choice that holds and 0 for the others, which come as the last label."""
        for choice in choices:
            self.say(name, choice == chosen, *labels, choice)

    def metrics(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._families.values()
