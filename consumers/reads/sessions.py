"""Typed reads of sessions: their calls, their ends, and those that wait for a rollout.

A call is loose while no rollout names it (`Call.loose`). The end of a session closes the loose
calls that started before it, except calls of an earlier end that a dead letter set aside.
Guarantee: the cost of finding waiting sessions grows with the loose calls, not with closed
sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Exists,
    FromClause,
    Select,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.sql import ColumnElement

from consumers.rows import make_row
from consumers.tables import Call, DeadLetter, Rollout, SessionEnd
from events.envelope import parse_timestamp, timestamp
from events.rollouts import Purpose

_ENDS_PER_PAGE: Final = 100
"""Session ends in one page: as many are closed before their rollouts are appended."""


@dataclass(frozen=True, slots=True)
class IdleSession:
    """A session with loose calls that no recorded end will close."""

    session: str
    last: str
    """Time of its last loose call."""


@dataclass(frozen=True, slots=True)
class SessionEndRow:
    """One recorded end of a session."""

    session_end: str
    session: str
    because: str
    rollout: str
    """Id of the rollout that the calls before this end become."""
    time: str
    since: str
    """Time of the session's previous end; empty without one."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call whose start was folded, and the offsets of its events in `rollouts`."""

    call: str
    alias: str
    base: str
    policy: str
    task: str | None
    parent: str | None
    purpose: Purpose
    partition: int
    started_offset: int
    ended_offset: int | None
    outcome: str | None
    upstream: str | None
    completion_tokens: int | None
    sampling: str | None
    """Effective sampling parameters, as JSON, if recorded."""


def read_idle_sessions(connection: Connection, before: datetime) -> list[IdleSession]:
    """Return the sessions whose last loose call lies before the time `before`, by id. Sessions with
    a later end that has no rollout yet are left out."""
    calls, ends = Call.table().c, SessionEnd.table().c
    last = func.max(func.coalesce(calls.ended, calls.started)).label("last")
    lasts = select(calls.session, last).where(Call.loose()).group_by(calls.session).subquery()
    has_end = (
        select(ends.session_end)
        .where(ends.session == lasts.c.session, ends.time >= lasts.c.last)
        .where(~_has_rollout(SessionEnd.table()))
        .exists()
    )
    query = select(lasts.c.session, lasts.c.last).where(lasts.c.last < timestamp(before), ~has_end)
    rows = connection.execute(query.order_by(lasts.c.session))
    return [IdleSession(row.session, row.last) for row in rows]


def read_closable_ends(
    connection: Connection, after: tuple[str, str] = ("", "")
) -> list[SessionEndRow]:
    """Return a page of the session ends that have loose calls, no rollout and no dead letter. They
    are ordered by (time, id) and come behind `after`."""
    ends, calls = SessionEnd.table().c, Call.table().c
    has_calls = (
        select(calls.call)
        .where(calls.session == ends.session, Call.loose(), calls.started <= ends.time)
        .where(~_belongs_to_earlier_end(ends.time, ends.session_end))
        .exists()
    )
    # `has_calls` implies this condition; the database's planner finds the ends by it.
    of_loose = ends.session.in_(select(calls.session).where(Call.loose()))
    table = SessionEnd.table()
    query = _select_ends().where(of_loose, has_calls, ~_has_rollout(table), ~_is_set_aside(table))
    place = tuple_(*(literal(text) for text in after))
    query = query.where(tuple_(ends.time, ends.session_end) > place)
    rows = connection.execute(query.order_by(ends.time, ends.session_end).limit(_ENDS_PER_PAGE))
    return [make_row(SessionEndRow, row) for row in rows]


def find_session_end(connection: Connection, session_end: str) -> SessionEndRow | None:
    """Return the session end with this event id; None if it was not folded."""
    ends = SessionEnd.table().c
    row = connection.execute(_select_ends().where(ends.session_end == session_end)).first()
    return None if row is None else make_row(SessionEndRow, row)


def count_backlog(connection: Connection, before: datetime) -> int:
    """Count sessions over at `before` that are no rollouts yet; at most a page of ended ones."""
    waiting = [end for end in read_closable_ends(connection) if parse_timestamp(end.time) < before]
    return len(read_idle_sessions(connection, before)) + len(waiting)


def read_calls_of_end(connection: Connection, end: SessionEndRow) -> list[CallRow]:
    """Return the calls of a session end in order of time: loose calls, and calls that name its
    future rollout already."""
    calls = Call.table().c
    is_own: ColumnElement[bool] = or_(Call.loose(), calls.rollout == end.rollout)
    query = (
        select(*_call_columns())
        .where(calls.session == end.session, is_own, calls.started <= end.time)
        .where(~_belongs_to_earlier_end(end.time, end.session_end))
    )
    rows = connection.execute(query.order_by(calls.started, calls.call))
    return [make_row(CallRow, row) for row in rows]


def read_calls_of_session(connection: Connection, session: str) -> list[CallRow]:
    """Return the calls of a session whose start was folded, in no fixed order."""
    columns = Call.table().c
    query = select(*_call_columns()).where(columns.session == session)
    rows = connection.execute(query.where(columns.started.is_not(None)))
    return [make_row(CallRow, row) for row in rows]


def find_call(connection: Connection, call: str) -> CallRow | None:
    """Return a call by its id; None if its start was not folded."""
    calls = Call.table().c
    row = connection.execute(select(Call.table()).where(calls.call == call)).first()
    return None if row is None or row.started_offset is None else make_row(CallRow, row)


def filter_dead_letter_rollouts(connection: Connection, rollouts: Sequence[str]) -> set[str]:
    """Return those of `rollouts` that a dead letter names as missing."""
    letters = DeadLetter.table().c
    query = select(letters.rollout).where(letters.rollout.in_(rollouts))
    return set(connection.execute(query).scalars())


def _select_ends() -> Select[Any]:
    """Return a query of session ends, each with the time of the session's previous end."""
    ends = SessionEnd.table().c
    earlier = SessionEnd.table().alias("earlier")
    since = func.coalesce(
        select(func.max(earlier.c.time))
        .where(earlier.c.session == ends.session, earlier.c.time < ends.time)
        .scalar_subquery(),
        "",
    )
    return select(SessionEnd.table(), since.label("since"))


def _call_columns() -> tuple[ColumnElement[Any], ...]:
    calls = Call.table().c
    return (
        calls.call, calls.session, calls.alias, calls.base, calls.policy, calls.task, calls.parent,
        calls.purpose, calls.started, calls.partition, calls.started_offset, calls.ended_offset,
        calls.outcome, calls.upstream, calls.completion_tokens, calls.sampling,
    )  # fmt: skip


def _has_rollout(ends: FromClause) -> Exists:
    rollouts = Rollout.table().c
    return select(rollouts.rollout).where(rollouts.rollout == ends.c.rollout).exists()


def _is_set_aside(ends: FromClause) -> Exists:
    letters = DeadLetter.table().c
    return select(letters.rollout).where(letters.rollout == ends.c.rollout).exists()


def _belongs_to_earlier_end(time: Any, session_end: Any) -> Exists:
    """Return the SQL condition that a call is of an earlier end, set aside by a dead letter."""
    calls, aside = Call.table().c, SessionEnd.table().alias("aside")
    earlier = tuple_(aside.c.time, aside.c.session_end) < tuple_(time, session_end)
    return (
        select(aside.c.session_end)
        .where(aside.c.session == calls.session, aside.c.time >= calls.started, earlier)
        .where(_is_set_aside(aside), ~_has_rollout(aside))
        .correlate_except(aside)
        .exists()
    )
