"""Counters of the roles other than the gateway (counters -> families). A role's own counters are
read at each scrape; the results of rounds of `schedule` and `work` are counted here. Guarantee:
the values of labels are constants of the code and class names of errors."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from consumers.runner import APPLY_SECONDS
from consumers.tables import PROJECTION
from daemon.core.isolation import PARTS
from daemon.metrics.families import Family, Sheet

if TYPE_CHECKING:
    from consumers.runner import Counters
    from daemon.core.leadership import Leadership
    from daemon.cycle.leader import TickResult
    from daemon.roles.worker import RoundResult
    from daemon.tracing.exporter import Counters as Traced
    from producers.shipper import ShipperCounters

_LOOKED: Final = Family(
    "kintsugi_poll_last_return_timestamp_seconds",
    "When the role last began a look for what there is to do; 0 before the first.",
    ("consumer",),
)

_OF_FOLD: Final = ("projection",)

FOLD: Final = (
    _LOOKED,
    Family("kintsugi_fold_events_total", "Events that were folded.", _OF_FOLD),
    Family(
        "kintsugi_fold_skipped_total",
        "Events that changed nothing: repeated, too early, of who does not lead, or unknown.",
        (*_OF_FOLD, "reason"),
    ),
    Family(
        "kintsugi_dead_letters_total",
        "Events that could not be folded, by the class of the error.",
        (*_OF_FOLD, "error"),
    ),
    Family("kintsugi_projection_fenced_total", "Batches another one folded first.", _OF_FOLD),
    Family("kintsugi_projection_retries_total", "Waits for log or database.", _OF_FOLD),
    Family(
        "kintsugi_projection_apply_duration_seconds",
        "Of a transaction of at most 500 events, until it was committed.",
        _OF_FOLD,
        APPLY_SECONDS,
    ),
    Family(
        "kintsugi_projection_last_event_timestamp_seconds",
        "When the newest event that was folded had been recorded; absent before the first.",
        _OF_FOLD,
    ),
)

SHIP: Final = (
    _LOOKED,
    Family("kintsugi_ship_records_total", "Records that Kafka acknowledged, repeated ones too."),
    Family("kintsugi_ship_go_backs_total", "Times it began again at the cursor.", ("error",)),
    Family("kintsugi_ship_inflight_bytes", "Sent and not acknowledged."),
)

TRACE: Final = (
    _LOOKED,
    Family("kintsugi_trace_spans_total", "Spans that the receiver has taken."),
    Family(
        "kintsugi_trace_dropped_total",
        "Spans that the receiver does not take, whole requests of them, and events whose spans "
        "were never made: the log had trimmed them.",
        ("reason",),
    ),
    Family("kintsugi_trace_retries_total", "Waits for receiver, log or database."),
    Family(
        "kintsugi_trace_last_event_timestamp_seconds",
        "When the newest event whose spans were sent had been recorded; absent before the first.",
    ),
    Family(
        "kintsugi_trace_oldest_unsent_timestamp_seconds",
        "When the oldest event whose spans are being sent had been recorded; absent between.",
    ),
)


class CounterCollector(Collector):
    """Collector that builds its metrics from counters at each scrape."""

    def __init__(self, families: Sequence[Family], say: Callable[[Sheet], None]) -> None:
        self._families = families
        self._say = say

    def describe(self) -> Iterator[Metric]:
        """Yield the declared metrics without samples."""
        yield from Sheet(self._families).metrics()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the present values of the counters."""
        sheet = Sheet(self._families)
        self._say(sheet)
        yield from sheet.metrics()


def fold_metrics(counters: "Counters") -> CounterCollector:
    """Return the collector of a fold's counters."""

    def say(sheet: Sheet) -> None:
        sheet.say(_LOOKED.name, counters.looked, "consume")
        for name, value in (
            ("kintsugi_fold_events_total", counters.folded),
            ("kintsugi_projection_fenced_total", counters.fenced),
            ("kintsugi_projection_retries_total", counters.retries),
        ):
            sheet.say(name, value, PROJECTION)
        for reason, count in (
            ("duplicate", counters.duplicates),
            ("gap", counters.gaps),
            ("epoch", counters.outdated),
            ("unknown_type", counters.skipped),
        ):
            sheet.say("kintsugi_fold_skipped_total", count, PROJECTION, reason)
        # Copies, because the fold may change the counters meanwhile.
        for error, count in sorted(dict(counters.dead_letters).items()):
            sheet.say("kintsugi_dead_letters_total", count, PROJECTION, error)
        took, seconds = dict(counters.committed), counters.seconds
        sheet.spread("kintsugi_projection_apply_duration_seconds", took, seconds, PROJECTION)
        newest = counters.newest_ms / 1000 if counters.newest_ms else None
        sheet.say("kintsugi_projection_last_event_timestamp_seconds", newest, PROJECTION)

    return CounterCollector(FOLD, say)


def ship_metrics(counters: "ShipperCounters") -> CounterCollector:
    """Return the collector of a shipper's counters."""

    def say(sheet: Sheet) -> None:
        sheet.say(_LOOKED.name, counters.looked, "ship")
        sheet.say("kintsugi_ship_records_total", counters.records)
        # A copy: the shipper may meet a new error meanwhile.
        for error, count in sorted(dict(counters.go_backs).items()):
            sheet.say("kintsugi_ship_go_backs_total", count, error)
        sheet.say("kintsugi_ship_inflight_bytes", counters.in_flight_bytes)

    return CounterCollector(SHIP, say)


def trace_metrics(counters: "Traced") -> CounterCollector:
    """Return the collector of a span exporter's counters."""

    def say(sheet: Sheet) -> None:
        sent = counters.sent
        sheet.say(_LOOKED.name, counters.looked, "trace")
        sheet.say("kintsugi_trace_spans_total", sent.taken)
        for reason, count in (
            ("rejected", sent.rejected),
            ("refused", sent.refused),
            ("trimmed", counters.trimmed),
        ):
            sheet.say("kintsugi_trace_dropped_total", count, reason)
        sheet.say("kintsugi_trace_retries_total", counters.retries)
        newest = counters.newest_ms / 1000 if counters.newest_ms else None
        sheet.say("kintsugi_trace_last_event_timestamp_seconds", newest)
        # Read once: the exporter may reset it meanwhile.
        unsent = counters.unsent_ms
        oldest = None if unsent is None else unsent / 1000
        sheet.say("kintsugi_trace_oldest_unsent_timestamp_seconds", oldest)

    return CounterCollector(TRACE, say)


class Rounds:
    """Counters over the rounds of `schedule` or `work`."""

    def __init__(self, registry: CollectorRegistry, role: str, parts: Sequence[str]) -> None:
        self._looked = Gauge(
            _LOOKED.name, _LOOKED.meaning, _LOOKED.labels, registry=registry
        ).labels(role)
        self._troubles = Counter(
            "kintsugi_troubles",
            "What could not be done in a round, and is tried again.",
            ("role",),
            registry=registry,
        ).labels(role)
        self._failures = Counter(
            "kintsugi_part_failures",
            "Times that a part of a round broke off; the others had their turn.",
            ("role", "part"),
            registry=registry,
        )
        self._role = role
        for part in parts:
            self._failures.labels(role, part)

    def looks(self) -> None:
        """Record the beginning of a round."""
        self._looked.set(time.time())

    def count_troubles(self, count: int) -> None:
        """Add `count` steps of a round that could not be done."""
        self._troubles.inc(count)

    def count_failures(self, parts: Sequence[str]) -> None:
        """Count these parts of the round as failed."""
        for part in parts:
            self._failures.labels(self._role, part).inc()


class LeaderRounds(Rounds):
    """Counters over the rounds of `schedule`."""

    def __init__(self, registry: CollectorRegistry, leadership: "Leadership") -> None:
        super().__init__(registry, "schedule", ("agents",))
        Gauge(
            "kintsugi_leader", "Whether this process leads.", ("role",), registry=registry
        ).labels("schedule").set_function(leadership.holds)

    def count_round(self, result: "TickResult") -> None:
        """Count the results of a finished round."""
        self.count_troubles(len(result.troubles))
        self.count_failures(result.failed)


class WorkerRounds(Rounds):
    """Counters over the rounds of `work`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "work", PARTS)
        self._sessions = Counter(
            "kintsugi_sessions_ended", "Sessions that were closed.", registry=registry
        )
        self._rollouts = Counter(
            "kintsugi_sessions_recorded",
            "Ended sessions that became rollouts.",
            registry=registry,
        )
        self._set_aside = Counter(
            "kintsugi_sessions_set_aside",
            "Ended sessions that cannot become rollouts and are dead letters, by the class of the "
            "error.",
            ("error",),
            registry=registry,
        )
        self._actions = Counter(
            "kintsugi_reconcile_actions",
            "What was done to make the engines what the routes want, replica by replica.",
            ("kind",),
            registry=registry,
        )
        for kind in ("load", "unload", "collect", "route"):
            self._actions.labels(kind)

    def count_round(self, result: "RoundResult") -> None:
        """Count the results of a finished round."""
        self.count_troubles(len(result.troubles))
        self.count_failures(result.failed)
        for error in result.set_aside:
            self._set_aside.labels(error).inc()
        self._sessions.inc(result.ended)
        self._rollouts.inc(result.rollouts)
        for kind, done in (
            ("load", result.loaded), ("unload", result.unloaded), ("collect", result.collected),
            ("route", result.routed),
        ):  # fmt: skip
            self._actions.labels(kind).inc(len(done))
