"""The gateway's metrics at GET /metrics. Each gateway has its own registry, so that two in one
process count separately. Numbers of every call are counted by the event loop's thread only
(counters.py); the library counts the rest, in any thread. Guarantee: only the code, the configured
engines and the aliases determine the number of series. No label has a value that a client chooses:
no session, call, user, model or key."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from events.errors import BlobError, LogError
from events.rollouts import Outcome
from events.sqlite.log import SqliteLog
from producers.gateway.http.sampling_fields import LABELS
from producers.gateway.http.wire import Endpoint
from producers.gateway.metrics.counters import Count, Inside, Level, Spread
from producers.gateway.metrics.gauges import Engines, SpoolFigures
from producers.gateway.routing.upstreams import Upstream

# Switches off the library's second series per counter, which tells its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]

_CALL_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_FIRST_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OVERHEAD_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_ROUTER_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_APPEND_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

_STATES: Final = ("recording", "refused")


def say_build(registry: CollectorRegistry, fold_version: int | None = None) -> None:
    """Register `kintsugi_build_info`. `fold_version`: only for a process that reads tables."""
    info = Gauge(
        "kintsugi_build_info", "What runs.", ("version", "fold_version"), registry=registry
    )
    info.labels(version("kintsugi"), "" if fold_version is None else str(fold_version)).set(1)


class Metrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Count(
            "kintsugi_gateway_calls",
            "Calls that ended, by outcome and whether the whole call is in the log.",
            ("endpoint", "outcome", "recorded"),
            self.registry,
        )
        self._rules = Counter(
            "kintsugi_gateway_untrainable_requests",
            "Calls that a field of their request makes untrainable, for each such field.",
            ("field",),
            registry=self.registry,
        )
        for label in LABELS:
            self._rules.labels(label)
        self._in_flight = Inside(
            "kintsugi_gateway_calls_in_flight", "Calls that are being answered.", self.registry
        )
        self._unattributed = Counter(
            "kintsugi_gateway_unattributed_calls",
            "Calls that named no session and went on from none.",
            registry=self.registry,
        )
        self._control_texts = Counter(
            "kintsugi_gateway_control_texts",
            "Messages of requests, and tools, whose text spells a control token.",
            ("alias",),
            registry=self.registry,
        )
        self._fallbacks = Counter(
            "kintsugi_gateway_fallbacks",
            "Attempts of a call with another than the one that its route gave it.",
            registry=self.registry,
        )
        self._shadows = Counter(
            "kintsugi_gateway_shadows",
            "Calls that a shadow answers as well, and those that it was not asked for.",
            ("asked",),
            registry=self.registry,
        )
        for asked in ("yes", "no"):
            self._shadows.labels(asked)
        self._position = Gauge(
            "kintsugi_routes_position",
            "How much of the stream learning the routes in force know.",
            registry=self.registry,
        )
        self._confirmed = Gauge(
            "kintsugi_routes_confirmed_timestamp_seconds",
            "When the database last said that these are the routes; 0 before it did.",
            registry=self.registry,
        )
        self._feedback = Counter(
            "kintsugi_gateway_feedback",
            "Pieces of feedback that were taken.",
            registry=self.registry,
        )
        self._spans = Counter(
            "kintsugi_gateway_spans",
            "Spans that were sent here, by what became of them.",
            ("result",),
            registry=self.registry,
        )
        for result in ("recorded", "repeated", "ignored", "rejected"):
            self._spans.labels(result)
        self._rejected = Counter(
            "kintsugi_capture_rejected",
            "Requests that were refused here and reached no engine.",
            ("status",),
            registry=self.registry,
        )
        self._dropped = Counter(
            "kintsugi_capture_dropped",
            "Calls that were answered and are not in the log, or not whole.",
            registry=self.registry,
        )
        self._duration = Spread(
            "kintsugi_gateway_call_duration_seconds",
            "From a request's arrival to the end of its answer.",
            ("endpoint",),
            _CALL_SECONDS,
            self.registry,
        )
        self._first_byte = Spread(
            "kintsugi_gateway_first_byte_seconds",
            "From a request's arrival to the first byte of the answer's body.",
            ("endpoint",),
            _FIRST_SECONDS,
            self.registry,
        )
        self._overhead = Spread(
            "kintsugi_gateway_overhead_seconds",
            "Of a completed call, what its engine had no part in: before it was asked, and after.",
            ("endpoint",),
            _OVERHEAD_SECONDS,
            self.registry,
        )
        self._router_choices = Count(
            "kintsugi_gateway_router_choices",
            "Members of policies that were chosen (member), or why the base answers instead; "
            "absent counts calls whose member no engine had.",
            ("outcome",),
            self.registry,
        )
        self._router_seconds = Spread(
            "kintsugi_gateway_router_seconds",
            "How long a call waited for the choice of a member.",
            (),
            _ROUTER_SECONDS,
            self.registry,
        )
        self._appended = Level(
            "kintsugi_log_last_append_timestamp_seconds",
            "When an event was in the log for good last; absent before the first.",
            ("stream",),
            self.registry,
        )
        self._append = Spread(
            "kintsugi_log_append_duration_seconds",
            "Until an event was in the log for good.",
            ("stream", "type"),
            _APPEND_SECONDS,
            self.registry,
        )
        self._state = Gauge(
            "kintsugi_capture_state",
            "1 for what the log did with the last event that it was given.",
            ("state",),
            registry=self.registry,
        )
        say_build(self.registry)
        self._said = ""
        self._says("recording")

    def watch(self, engines: Iterable[Upstream], spool: SqliteLog, ships: bool) -> None:
        """Register metrics of engines and spool. `ships`: whether the spool is copied to Kafka."""
        self.registry.register(Engines(engines))
        self.registry.register(SpoolFigures(spool, ships))

    def in_flight(self) -> AbstractContextManager[None]:
        """Return a context manager that counts a call as in flight."""
        return self._in_flight

    def time_first_byte(self, endpoint: Endpoint, seconds: float) -> None:
        """Observe the seconds from the request's arrival to the answer's first byte."""
        self._first_byte.add(seconds, endpoint)

    def count_call(
        self, endpoint: Endpoint, outcome: Outcome, recorded: bool, seconds: float
    ) -> None:
        """Count a call that ended, and observe its duration in seconds."""
        self._calls.add(endpoint, outcome, "yes" if recorded else "no")
        self._duration.add(seconds, endpoint)
        if not recorded:
            self._dropped.inc()

    def count_rules(self, labels: Iterable[str]) -> None:
        """Count an untrainable call once for each of these labels (sampling_fields.py)."""
        for label in labels:
            self._rules.labels(label).inc()

    def time_overhead(self, endpoint: Endpoint, seconds: float) -> None:
        """Observe the seconds of a completed call that were not spent in its engine."""
        self._overhead.add(seconds, endpoint)

    def count_new_session(self) -> None:
        """Count a call without a session name that begins a new session."""
        self._unattributed.inc()

    def count_control_texts(self, alias: str, count: int) -> None:
        """Count the messages of a request that contain control tokens."""
        self._control_texts.labels(alias).inc(count)

    def count_fallback(self) -> None:
        """Count a call that another policy answers than the one that its route chose."""
        self._fallbacks.inc()

    def count_choice(self, outcome: str, seconds: float | None) -> None:
        """Count a member's choice: `member`, or a doubt. `seconds`: the chooser's time, or None."""
        self._router_choices.add(outcome)
        if seconds is not None:
            self._router_seconds.add(seconds)

    def count_shadow(self, asked: bool) -> None:
        """Count a call that has a shadow; `asked` says whether the shadow is asked."""
        self._shadows.labels("yes" if asked else "no").inc()

    def confirm_routes(self, position: int) -> None:
        """Record that the routes at `position` were compared with the database just now."""
        self._position.set(position)
        self._confirmed.set_to_current_time()

    def count_feedback(self) -> None:
        """Count one accepted piece of feedback."""
        self._feedback.inc()

    def count_spans(self, result: str, count: int) -> None:
        """Count `count` spans with this result."""
        self._spans.labels(result).inc(count)

    def count_rejection(self, status: int) -> None:
        """Count a request that was refused with this status."""
        self._rejected.labels(str(status)).inc()

    def time_append(self, stream: str, type: str) -> AbstractContextManager[None]:
        """Return a context manager that times an append."""
        return _AppendTimer(self, stream, type)

    def note_append(self, stream: str, type: str, seconds: float) -> None:
        """Observe the seconds that an append took until it was durable."""
        self._append.add(seconds, stream, type)
        self._appended.say(time.time(), stream)
        self._says("recording")

    def note_log_refusal(self) -> None:
        """Record that the log refused an event."""
        self._says("refused")

    def _says(self, state: str) -> None:
        if state == self._said:
            return
        self._said = state
        for name in _STATES:
            self._state.labels(name).set(name == state)

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample; 0 where nothing was counted yet."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def exposition(self, accepted: str) -> tuple[bytes, str]:
        """Return all metrics and their media type, by the header Accept. Blocks."""
        encoder, media_type = choose_encoder(accepted)
        return encoder(self.registry), media_type


class _AppendTimer:
    """Times an append. It is a class, not a generator, for speed: every call has two appends."""

    __slots__ = ("_began", "_metrics", "_stream", "_type")

    def __init__(self, metrics: Metrics, stream: str, type: str) -> None:
        self._metrics, self._stream, self._type = metrics, stream, type

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._metrics.note_append(self._stream, self._type, time.monotonic() - self._began)
        elif isinstance(error, (LogError, BlobError)):
            # A record that is too large is no fault of the log.
            self._metrics.note_log_refusal()
