"""Outcomes of the sessions of a canary and of its incumbent, for the live guard. The sessions are
of the agent's own traffic, began after the canary, and had one policy from the first call to the
last, assigned by the route's shares (`drawn`, then `kept`). A session whose policy a client named,
or whose policy replaced an absent one, is a biased sample and left out. So is a session in which
the base stood in for a panel's member that no engine had, and a session that was drawn twice by
different shares. If the router was in doubt, the panel itself answered, and the session counts.

Only the first verdict of a session counts: a grader's, or feedback whose sender may judge. For each
kind of task, only verdicts under the newest rules count (`follows_rules`). Sessions are ordered by
the verdicts' times, then by name, since partitions promise no order between sessions; a late
verdict is inserted at its place.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Subquery, case, func, null, select, true

from consumers.diagnosis.rule_versions import find_rule_kind
from consumers.rows import make_row
from consumers.tables import Call, Feedback, Rollout
from events.position import Position, entries
from events.streams import ROLLOUTS

EVERY: Final = "all"
"""Name of the slice of sessions whose kind of task is unknown."""

MOST_AMONG: Final = 5_000
"""Most sessions in `among`, because databases limit the values in a statement."""

_BY_SHARES: Final = ("drawn", "kept")
"""Values of `routed` for calls whose policy the route's shares decided."""


@dataclass(frozen=True, slots=True)
class SessionVerdict:
    """A judged session of one policy."""

    session: str
    adapter: str | None
    """Adapter that answered all calls of the session; None for the base."""
    slice: str
    """Capability of the session's task; `EVERY` if unknown."""
    success: bool
    time: str | None
    began: str
    shares: str
    """JSON: policy -> its share of the route when the session was drawn."""
    kind: str | None = None
    """Kind of task within which versions of rules are compared; None for feedback."""
    rules: int | None = None
    """Version of our grading rules that judged; None for another judge."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session without a verdict."""

    session: str
    adapter: str | None
    began: str
    shares: str
    ended: bool
    success: None = None


def canary_share(shares: str, canary: str, incumbent: str) -> float | None:
    """Return the canary's share of the sessions of canary and incumbent together, by the shares'
    JSON. Return None if one of them had no share."""
    parts = json.loads(shares)
    if canary not in parts or incumbent not in parts:
        return None
    return float(parts[canary] / (parts[canary] + parts[incumbent]))


def in_order(judged: SessionVerdict) -> tuple[str, str]:
    """Return the sort key of judged sessions: time of the verdict (none first), then name."""
    return judged.time or "", judged.session


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Numbers of ended sessions of one policy under the same shares; they need no verdict."""

    adapter: str | None
    shares: str
    sessions: int
    tool_errors: int
    loops: int
    format_errors: int


def read_session_verdicts(
    connection: Connection,
    alias: str,
    base: str,
    since: str,
    until: Position | None = None,
    among: Collection[str] | None = None,
) -> list[SessionVerdict]:
    """Return the judged sessions of an alias that began at or after `since` (RFC 3339 as stored).
    Verdicts under all rules are included. `until`, a position of `rollouts`, excludes later
    verdicts; `among` limits the read to at most `MOST_AMONG` sessions."""
    sessions = _sessions(alias, base, since, among)
    rows = _read_verdicts(connection, sessions)
    known = [row for row in rows if until is None or _covers(row, until)]
    return [
        make_row(
            SessionVerdict, row, adapter=_name_adapter(row, base), slice=row.capability or EVERY
        )
        for row in _first_of_each(known)
    ]


def find_newest_rules(verdicts: Iterable[Any]) -> dict[str, int]:
    """Return kind of task -> newest version of rules among these verdicts."""
    newest: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.rules is not None:
            newest[verdict.kind] = max(verdict.rules, newest.get(verdict.kind, 0))
    return newest


def follows_rules(verdict: Any, newest: Mapping[str, int]) -> bool:
    """Return whether a verdict counts; `newest` has the newest rules of each kind of task."""
    return verdict.rules is None or verdict.rules >= newest[verdict.kind]


def read_live_verdicts(
    connection: Connection, alias: str, base: str, since: str
) -> dict[str | None, list[bool]]:
    """Return policy (None for the base) -> verdicts of the sessions since `since` that it alone
    answered by its share of the route. Sessions under a route with a single policy count too."""
    sessions = _sessions(alias, base, since, compared=False)
    verdicts: dict[str | None, list[bool]] = {}
    for row in read_first_verdicts(connection, sessions):
        verdicts.setdefault(_name_adapter(row, base), []).append(row.success)
    return verdicts


def open_sessions(connection: Connection, alias: str, base: str, since: str) -> list[OpenSession]:
    """Return the sessions of an alias that began at or after `since` and have no verdict."""
    sessions, rollouts = _sessions(alias, base, since).c, Rollout.table().c
    feedback = Feedback.table().c
    ended = select(rollouts.rollout).where(rollouts.session == sessions.session).exists()
    graded = select(rollouts.rollout).where(
        rollouts.session == sessions.session, rollouts.purpose == "live",
        rollouts.success.is_not(None),
    )  # fmt: skip
    judged = select(feedback.feedback).where(
        feedback.session == sessions.session, feedback.verified, feedback.success.is_not(None)
    )
    rows = connection.execute(
        select(
            sessions.session,
            sessions.policy,
            sessions.began,
            sessions.shares,
            case((ended, 1), else_=0).label("ended"),
        )
        .where(~graded.exists(), ~judged.exists())
        .order_by(sessions.session)
    )
    return [
        OpenSession(row.session, _name_adapter(row, base), row.began, row.shares, bool(row.ended))
        for row in rows
    ]


def latest_call(connection: Connection, alias: str) -> str | None:
    """Return when the latest call to an alias began (RFC 3339 as stored); None without any."""
    calls = Call.table().c
    latest = select(func.max(calls.started)).where(calls.alias == alias)
    return connection.execute(latest).scalar()


def find_session_changes(connection: Connection, after: Position, until: Position) -> set[str]:
    """Return the sessions with a call or verdict after `after` and up to `until`. For other
    sessions, `read_session_verdicts` gives the same at both positions."""
    return {
        session
        for stream, partition, source, sequence in entries(until)
        if stream == ROLLOUTS.name
        for session in _find_changes(
            connection, partition, source, (_last_sequence(after, partition, source), sequence)
        )
    }


def behaviours(connection: Connection, alias: str, base: str, since: str) -> list[Behaviour]:
    """Count ended sessions since `since`, and those with errors or loops, by policy and shares."""
    sessions, rollouts = _sessions(alias, base, since).c, Rollout.table().c

    def count_sessions(count: ColumnElement[Any]) -> ColumnElement[int]:
        # Count sessions, not errors: chance assigns sessions, and a session may have many errors.
        return func.count(case((count > 0, rollouts.session)).distinct())

    rows = connection.execute(
        select(
            sessions.policy,
            sessions.shares,
            func.count(rollouts.session.distinct()).label("sessions"),
            count_sessions(rollouts.tool_errors).label("tool_errors"),
            count_sessions(rollouts.loops).label("loops"),
            count_sessions(rollouts.malformed_calls).label("format_errors"),
        )
        .where(rollouts.session == sessions.session, rollouts.purpose == "live")
        .group_by(sessions.policy, sessions.shares)
        .order_by(sessions.policy, sessions.shares)
    )
    return [make_row(Behaviour, row, adapter=_name_adapter(row, base)) for row in rows]


def _name_adapter(row: Any, base: str) -> str | None:
    """Return the policy of a row as an adapter: None for the base."""
    return None if row.policy == base else row.policy


def _find_changes(
    connection: Connection, partition: int, source: str, span: tuple[int, int]
) -> Iterator[str]:
    """Yield sessions changed by a source's events with sequences in (`span[0]`, `span[1]`]."""
    first, last = span
    if first >= last:
        return
    calls, rollouts, feedback = Call.table().c, Rollout.table().c, Feedback.table().c
    judged = rollouts.session.is_not(None) & rollouts.success.is_not(None)
    for columns, sequence, those in (
        (calls, calls.started_sequence, true()),
        (rollouts, rollouts.sequence, judged),
        (feedback, feedback.sequence, feedback.success.is_not(None)),
    ):
        yield from connection.execute(
            select(columns.session).where(
                columns.partition == partition, columns.event_source == source,
                sequence > first, sequence <= last, those,
            )
        ).scalars()  # fmt: skip


def _sessions(
    alias: str,
    base: str,
    since: str,
    among: Collection[str] | None = None,
    *,
    compared: bool = True,
) -> Subquery:
    """Return a subquery of (session, policy, began, shares): sessions since `since` that the same
    shares gave to one policy. Without `compared`, include routes with a single policy."""
    calls = Call.table().c
    earlier = Call.table().alias("earlier").c
    began_before = (
        select(earlier.call)
        .where(earlier.session == calls.session, earlier.started < since)
        .exists()
    )
    by_shares = case((calls.routed.in_(_BY_SHARES), 1), else_=0)
    # Calls of a route without a choice, or of an older gateway, have no share.
    no_choice = case(((calls.routed == "drawn") & calls.shares.is_(None), 1), else_=0)
    stood_in = case((calls.router_doubt == "absent", 1), else_=0)
    shares = func.min(calls.shares)
    of_alias = calls.alias == alias
    if among is not None:
        # The COALESCE keeps SQLite from reading a whole index of aliases for a few sessions.
        of_alias = calls.session.in_(among) & (func.coalesce(calls.alias, "") == alias)
    by_chance = (func.max(no_choice) == 0, shares == func.max(calls.shares)) if compared else ()
    return (
        select(
            calls.session, func.min(calls.policy).label("policy"),
            func.min(calls.started).label("began"), shares.label("shares"),
        )
        .where(of_alias, calls.purpose == "live", calls.started >= since, ~began_before)
        .group_by(calls.session)
        .having(
            func.min(calls.policy) == func.max(calls.policy), func.min(by_shares) == 1,
            func.max(stood_in) == 0, func.min(calls.base) == base, func.max(calls.base) == base,
            *by_chance,
        )
        .subquery("sessions")
    )  # fmt: skip


def read_first_verdicts(connection: Connection, sessions: Subquery) -> list[Any]:
    """Return the sessions of a subquery that have a verdict under the newest rules, in the
    verdicts' order. A row has the subquery's columns and the verdict's `success` and `time`."""
    return split_by_rules(connection, sessions)[0]


def split_by_rules(connection: Connection, sessions: Subquery) -> tuple[list[Any], list[Any]]:
    """Return the sessions of `read_first_verdicts`, and those with verdicts under older rules."""
    verdicts = _first_of_each(_read_verdicts(connection, sessions))
    newest = find_newest_rules(verdicts)
    counted = [verdict for verdict in verdicts if follows_rules(verdict, newest)]
    return counted, [verdict for verdict in verdicts if not follows_rules(verdict, newest)]


def _read_verdicts(connection: Connection, sessions: Subquery) -> Iterator[Any]:
    yield from _read_grades(connection, sessions)
    yield from _read_feedback(connection, sessions)


def _read_grades(connection: Connection, sessions: Subquery) -> Iterable[Any]:
    rollouts = Rollout.table().c
    return connection.execute(
        select(
            *sessions.c, rollouts.capability, rollouts.success, rollouts.time,
            rollouts.rollout.label("verdict"), rollouts.rules,
            find_rule_kind(rollouts).label("kind"), *_pointer(rollouts),
        ).where(
            rollouts.session == sessions.c.session, rollouts.purpose == "live",
            rollouts.success.is_not(None),
        )
    )  # fmt: skip


def _read_feedback(connection: Connection, sessions: Subquery) -> Iterable[Any]:
    feedback = Feedback.table().c
    return connection.execute(
        select(
            *sessions.c, null().label("capability"),
            feedback.success, feedback.time, feedback.feedback.label("verdict"),
            null().label("rules"), null().label("kind"), *_pointer(feedback),
        ).where(
            feedback.session == sessions.c.session, feedback.verified,
            feedback.success.is_not(None),
        )
    )  # fmt: skip


def _pointer(columns: Any) -> tuple[Any, Any, Any]:
    return columns.partition, columns.event_source, columns.sequence


def _covers(row: Any, until: Position) -> bool:
    return bool(row.sequence <= _last_sequence(until, row.partition, row.event_source))


def _last_sequence(position: Position, partition: int, source: str) -> int:
    return position.get(ROLLOUTS.name, {}).get(str(partition), {}).get(source, -1)


def _first_of_each(rows: Iterable[Any]) -> list[Any]:
    """Return the first verdict of each session, by time; verdicts without a time come first."""
    first: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: (row.time or "", row.session, row.verdict)):
        first.setdefault(row.session, row)
    return list(first.values())
