"""Spans of the agent's actions: `CallEnded` and `RolloutEnded` (events, rows -> spans).

    chat {model}            a call of the model; a child of the client's span if it named one, else
                            of its session's
    invoke_agent {agent}    a session that became a rollout, from its first call to the end of its
                            last, linked to its calls in other traces

A call whose gateway was killed has no `CallEnded`; its span, an error, comes with the rollout. No
spans are sent for calls that a client does not sample, calls reported by a trace (POST /v1/traces),
and simulated or imported rollouts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sqlalchemy import Row

from consumers.reads import spans
from daemon.core.span_contexts import LIVE, Ends, chat_span, of_session
from daemon.sessions.conversations import History
from daemon.tracing.attributes import content_of, sampling_of
from daemon.tracing.spans import Attributes, Span, SpanEvent
from events.codec import Event
from events.envelope import from_headers, timestamp
from events.errors import LogTruncated
from events.rollouts import CallEnded, RolloutEnded
from events.streams import ROLLOUTS
from producers.spans import conventions as names
from producers.spans.trace_context import TraceContext, parse_traceparent

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App
    from events.log import EventLog

PROVIDER: Final = "kintsugi"
MOST_LINKS: Final = 128
"""Most links of one span, the limit of OpenTelemetry's SDKs."""

_MOST_HEADERS: Final = 20_000
"""Most headers in memory (some megabytes); those of older calls are read from the log."""


class Headers:
    """Trace contexts that clients sent with recently ended calls, for spans of their rollouts."""

    def __init__(self) -> None:
        self._known: dict[str, TraceContext | None] = {}

    def learn(self, call: str, header: TraceContext | None) -> None:
        """Store a call's header, and forget the oldest beyond the limit."""
        self._known[call] = header
        if len(self._known) > _MOST_HEADERS:
            del self._known[next(iter(self._known))]

    def of(self, rows: Sequence[Row[Any]], log: "EventLog") -> dict[str, TraceContext | None]:
        """Return call -> trace context, read from the log if it is not in memory."""
        return {
            row.call: self._known[row.call]
            if row.call in self._known
            else _read_client_span(row, log)
            for row in rows
        }


class CallSpans:
    """Makes spans of events of the stream `rollouts`, with rows of one moment of the tables."""

    def __init__(
        self, app: "App", connection: "Connection", content: bool, headers: Headers
    ) -> None:
        self._app = app
        self._connection = connection
        self._content = content
        self._headers = headers
        self._history = History(app, connection)

    def of(self, events: Sequence[Event]) -> Iterator[Span]:
        """Yield the spans of the events."""
        ended: dict[str, TraceContext | None] = {}
        for event in events:
            if isinstance(event.data, CallEnded):
                ended[event.data.call] = header = parse_traceparent(event.envelope.traceparent)
                self._headers.learn(event.data.call, header)
        yield from self._chats(spans.read_calls(self._connection, list(ended)), ended)
        for event in events:
            if isinstance(event.data, RolloutEnded) and event.data.source == LIVE:
                yield from self._rollout(event, event.data)

    def _rows_of(self, data: RolloutEnded) -> Sequence[Row[Any]]:
        """Return the rows of a rollout's calls, by the tables if its event names none of them."""
        if not data.gathered:
            return spans.read_calls(self._connection, [*data.calls, *data.forks])
        return spans.read_rollout_calls(self._connection, data.session, data.rollout)

    def _chats(
        self, rows: Iterable[Row[Any]], headers: Mapping[str, TraceContext | None]
    ) -> Iterator[Span]:
        """Yield the spans of calls, except calls reported by a trace or not sampled by a client."""
        pairs = [
            (row, header)
            for row in rows
            if row.attribution is not None and row.started is not None
            for header in [headers[row.call]]
            if header is None or header.sampled
        ]
        ends = Ends(self._connection, {row.session for row, header in pairs if header is None})
        for row, header in pairs:
            since = ends.before(row.session, row.started)
            yield self._chat(row, header or of_session(row.session, since, None))

    def _chat(self, row: Row[Any], around: TraceContext) -> Span:
        failed = None if row.outcome == "completed" else row.outcome or "lost"
        return Span(
            name=f"chat {row.alias}",
            context=TraceContext(around.trace, chat_span(row.call)),
            parent=around.span,
            began=row.started,
            ended=row.ended or row.started,
            kind="client",
            attributes={
                **_chat_attributes(row),
                names.ERROR_TYPE: failed,
                **(content_of(self._history, row) if self._content else {}),
            },
            error=failed,
        )

    def _rollout(self, event: Event, data: RolloutEnded) -> Iterator[Span]:
        context, moment = parse_traceparent(event.envelope.traceparent), event.envelope.time
        rows = self._rows_of(data)
        if not rows or moment is None or data.session is None or context is None:
            return
        if not context.sampled:
            return
        headers = self._headers.of(rows, self._app.log)
        yield from self._chats((row for row in rows if row.ended is None), headers)
        first = headers.get(data.calls[0] if data.calls else rows[0].call)
        inside = first is not None and first.trace == context.trace
        elsewhere = {
            chat_span(call): header
            for call, header in headers.items()
            if header is not None and header.trace != context.trace
        }
        links = [TraceContext(header.trace, span) for span, header in elsewhere.items()]
        yield Span(
            name=f"invoke_agent {data.alias}",
            context=context,
            parent=first.span if inside and first is not None else None,
            began=min(row.started for row in rows if row.started),
            ended=max(row.ended or row.started for row in rows if row.started),
            attributes=_rollout_attributes(data),
            links=tuple(links[:MOST_LINKS]),
            happened=tuple(_verdict(data, timestamp(moment))),
        )


def _read_client_span(row: Row[Any], log: "EventLog") -> TraceContext | None:
    if row.started_offset is None:
        return None
    try:
        records = log.read(ROLLOUTS.name, row.partition, row.started_offset, limit=1)
    except LogTruncated:
        return None
    return parse_traceparent(from_headers(records[0].headers).traceparent) if records else None


def _chat_attributes(row: Row[Any]) -> Attributes:
    url = urlsplit(row.upstream or "")
    return {
        names.OPERATION: "chat",
        names.PROVIDER: PROVIDER,
        names.AGENT: row.alias,
        names.CONVERSATION: row.session,
        names.REQUEST_MODEL: row.alias,
        names.RESPONSE_MODEL: row.policy,
        names.RESPONSE_ID: row.call,
        names.FINISH_REASONS: [row.finish_reason] if row.finish_reason else None,
        names.INPUT_TOKENS: row.prompt_tokens,
        names.OUTPUT_TOKENS: row.completion_tokens,
        names.STATUS: row.status,
        names.SERVER: url.hostname,
        names.PORT: url.port,
        **sampling_of(row.sampling),
        "kintsugi.call": row.call,
        "kintsugi.base": row.base,
        "kintsugi.routed": row.routed,
        "kintsugi.purpose": row.purpose,
        "kintsugi.trainable": row.trainable,
        "kintsugi.untrainable_because": row.untrainable_because if row.outcome else None,
        "kintsugi.invalid_tool_calls": row.invalid_tool_calls,
    }


def _rollout_attributes(data: RolloutEnded) -> Attributes:
    return {
        names.OPERATION: "invoke_agent",
        names.PROVIDER: PROVIDER,
        names.AGENT: data.alias,
        names.CONVERSATION: data.session,
        names.RESPONSE_MODEL: data.policy,
        "kintsugi.rollout": data.rollout,
        "kintsugi.base": data.base,
        "kintsugi.task": data.task.id if data.task else None,
        "kintsugi.success": data.success,
        "kintsugi.reward": data.reward,
        "kintsugi.termination": data.termination,
        "kintsugi.calls": len(data.calls) or data.gathered,
        "kintsugi.forks": len(data.forks),
    }


def _verdict(data: RolloutEnded, moment: str) -> Iterator[SpanEvent]:
    if data.reward is None and data.success is None:
        return
    label = None if data.success is None else ("pass" if data.success else "fail")
    attributes = {
        names.EVALUATION_NAME: "reward",
        names.EVALUATION_SCORE: data.reward,
        names.EVALUATION_LABEL: label,
    }
    yield SpanEvent(names.EVALUATION, moment, attributes)
