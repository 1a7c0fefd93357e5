"""Metrics of engines and the log. An unreadable log sets `kintsugi_spool_readable` to 0."""

import logging
import shutil
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from events.errors import KintsugiError
from events.sqlite.log import SqliteLog
from producers.gateway.routing.upstreams import Upstream
from producers.spool.backlog import StreamBacklog, read_backlog

_logger = logging.getLogger(__name__)


class Engines(Collector):
    """Collects the state of the configured engines."""

    def __init__(self, engines: Iterable[Upstream]) -> None:
        self._engines = tuple(engines)

    def collect(self) -> Iterator[Metric]:
        well = GaugeMetricFamily(
            "kintsugi_upstream_well", "Whether the engine answers.", labels=("upstream",)
        )
        proven = GaugeMetricFamily(
            "kintsugi_upstream_proven",
            "Whether its calls can be trained on.",
            labels=("upstream",),
        )
        for engine in self._engines:
            well.add_metric([engine.url], engine.well)
            proven.add_metric([engine.url], engine.unproven is None)
        yield well
        yield proven


class SpoolFigures(Collector):
    """Collects numbers of the spool, read at each collection."""

    def __init__(self, spool: SqliteLog, ships: bool) -> None:
        self._spool = spool
        self._ships = ships

    def describe(self) -> Iterator[Metric]:
        """Return no names: the registry would read the spool to learn them."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        readable = GaugeMetricFamily("kintsugi_spool_readable", "Whether the log can be read.")
        try:
            backlogs, disk = read_backlog(self._spool), shutil.disk_usage(self._spool.path.parent)
        except (KintsugiError, OSError) as error:
            _logger.warning("%s", error, extra={"action": "spool_unreadable"})
            readable.add_metric([], 0)
            yield readable
            return
        readable.add_metric([], 1)
        yield readable
        yield GaugeMetricFamily(
            "kintsugi_spool_disk_free_bytes", "Left on the log's disk.", disk.free
        )
        yield GaugeMetricFamily("kintsugi_spool_disk_bytes", "All of that disk.", disk.total)
        for name, meaning, value in _FIGURES if self._ships else _FIGURES[:2]:
            family = GaugeMetricFamily(name, meaning, labels=("stream",))
            for stream, backlog in backlogs.items():
                if (figure := value(backlog)) is not None:
                    family.add_metric([stream], figure)
            yield family


def _oldest_seconds(backlog: StreamBacklog) -> float | None:
    return None if backlog.oldest_unshipped_ms is None else backlog.oldest_unshipped_ms / 1000


_FIGURES: Final = (
    ("kintsugi_spool_events", "Events that can be read.", lambda backlog: backlog.events),
    ("kintsugi_spool_bytes", "Bytes of their values.", lambda backlog: backlog.bytes),
    ("kintsugi_spool_unshipped_events", "Not in Kafka yet.", lambda backlog: backlog.unshipped),
    (
        "kintsugi_spool_oldest_unshipped_timestamp_seconds",
        "When the first event that is not in Kafka yet was recorded; absent without one.",
        _oldest_seconds,
    ),
)
