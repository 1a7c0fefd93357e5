"""Trace contexts of sessions, cycles, jobs, adapters and routes (tables, headers -> contexts).

    a session    the trace of its first call, if the client named one; else one of its own
    a cycle      the trace of the newest rollout it had not read before, so that one trace goes from
                 the call that made it due to the route; the other rollouts are linked
    a job, an adapter, a route    the trace of their cycle

Only two traces are stored: a cycle's in the header of its `CycleStarted`, a rollout's in that of
its `RolloutEnded`. All other ids are computed. Events without context get traces of their own.
"""

from bisect import bisect_left
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row

from consumers.reads import spans
from events.envelope import from_headers
from events.errors import LogTruncated
from events.log import EventLog
from events.streams import LEARNING, ROLLOUTS
from producers.spans.trace_context import TraceContext, parse_traceparent, root, span_id

LIVE = "live"
"""Source of the rollouts that have a span: those of sessions."""


def of_session(session: str, since: str, first: TraceContext | None) -> TraceContext:
    """Return the span of a session's calls since `since`, the end of its calls before ("" if none).
    `first` is the trace that the client sent with the first call."""
    if first is None:
        return root("session", session, since)
    return first.child("session", session, since)


class Ends:
    """Ends of sessions, with one look at the tables for all of them."""

    def __init__(self, connection: Connection, sessions: Collection[str]) -> None:
        self._times = spans.read_session_end_times(connection, sessions)

    def before(self, session: str, moment: str) -> str:
        """Return when a session last ended before `moment`; "" if it did not."""
        times = self._times.get(session, [])
        place = bisect_left(times, moment)
        return times[place - 1] if place else ""


class Contexts:
    """The contexts of a log and its tables at one moment."""

    def __init__(self, connection: Connection, log: EventLog) -> None:
        self._connection = connection
        self._log = log

    def cycle(self, cycle: str) -> TraceContext:
        """Return the span of a cycle."""
        before = self.before_cycle(cycle)
        return root("cycle", cycle) if before is None else before.child("cycle", cycle)

    def before_cycle(self, cycle: str) -> TraceContext | None:
        """Return the parent of a cycle's span."""
        row = spans.find_cycle(self._connection, cycle)
        return None if row is None else self._header(LEARNING.name, 0, row.offset)

    def job(self, job: str) -> TraceContext:
        """Return the span of a training run."""
        row = spans.find_job(self._connection, job)
        if row is None or row.cycle is None:
            return root("job", job)
        return self.cycle(row.cycle).child("job", job)

    def adapter(self, adapter: str) -> TraceContext:
        """Return the parent of an adapter's spans: its cycle's span, if it has one."""
        row = spans.find_adapter(self._connection, adapter)
        job = None if row is None or row.job is None else spans.find_job(self._connection, row.job)
        if job is None:
            return root("adapter", adapter)
        return self.job(job.job) if job.cycle is None else self.cycle(job.cycle)

    def rollout(self, rollout: str) -> TraceContext | None:
        """Return the span of a rollout; None if it has none."""
        row = spans.find_rollout(self._connection, rollout)
        return None if row is None else self._of_rollout(row)

    def newest(self, alias: str, base: str) -> TraceContext | None:
        """Return the span of an agent's newest rollout that no round has counted."""
        row = spans.find_newest_rollout(self._connection, alias, base, LIVE)
        span = None if row is None else self._of_rollout(row)
        return span if span is not None and span.sampled else None

    def within(self, cause: str) -> TraceContext | None:
        """Return the span for events whose cause is the event `cause` of the stream `learning`."""
        if (row := spans.find_cycle_by_event(self._connection, cause)) is not None:
            return self.cycle(row.cycle)
        if (row := spans.find_job_by_event(self._connection, cause)) is not None:
            return self.job(row.job)
        row = spans.find_step_by_event(self._connection, cause)
        return None if row is None else self._header(LEARNING.name, 0, row.offset)

    def _of_rollout(self, row: Row[Any]) -> TraceContext | None:
        if row.source != LIVE:
            return None
        return self._header(ROLLOUTS.name, row.partition, row.offset)

    def _header(self, stream: str, partition: int, offset: int) -> TraceContext | None:
        try:
            records = self._log.read(stream, partition, offset, limit=1)
        except LogTruncated:
            return None
        return parse_traceparent(from_headers(records[0].headers).traceparent) if records else None


def chat_span(call: str) -> str:
    """Return the id of a call's span."""
    return span_id("call", call)
