"""Numbers for the scheduler: reasons why a cycle of an agent is due, or must wait. Call it within
`database.read_transaction`. It runs in every tick, so it reads only unread rollouts, from
indexes."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import fsum
from typing import Any, Final

from sqlalchemy import Connection, and_, false, func, or_, select, union_all
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis.answering import is_current
from consumers.diagnosis.round_counts import LIVE_PURPOSES
from consumers.diagnosis.task_kinds import is_usable
from consumers.position import position
from consumers.reads.agents import read_oldest_rollout_time
from consumers.reads.learning import open_cycle
from consumers.reads.planning import list_open_patterns
from consumers.tables import Cycle, Job, OperatorAction, Rollout
from events.envelope import parse_timestamp
from events.position import Position, entries
from events.streams import ROLLOUTS

CYCLE_START: Final = "cycle start"
"""Name of the action by which a person asks for a cycle; its argument is `alias`."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The reasons for and against a cycle of one agent on one base."""

    alias: str
    base: str
    position: Position
    """Position in `rollouts` up to which the numbers count."""
    number: int
    is_open: bool
    """Whether a cycle of the agent is open, on any base."""
    rollouts: int
    """The agent's own rollouts that none of its cycles has read; `judged` and `failed` are parts of
    them. Tasks that its environment cannot write do not count."""
    judged: int
    failed: int
    """Deduplicated failures that a round would count, on tasks that can be written again."""
    priority: float
    """Sum of the priorities of unresolved patterns with such failures, from the last round."""
    first_seen: datetime | None
    """Time of the agent's oldest rollout; None without one."""
    last_started: datetime | None
    last_ended: datetime | None
    fruitless: int
    """Number of cycles since the last promoted one; cancelled ones do not count."""
    job_seconds: float
    """Total seconds of all agents' jobs that ended today (UTC)."""
    asked: str | None = None
    """Id of the event by which a person asked for a cycle, if none has started since."""


def scheduling(
    connection: Connection,
    alias: str,
    base: str,
    now: datetime,
    kinds: Collection[str] | None = None,
) -> Scheduling:
    """Return the scheduler's input for the day (UTC) of `now`, within `database.read_transaction`.
    `kinds` are the kinds of task that the agent's environment writes; None counts any task."""
    newest = _newest(connection, alias, base)
    return Scheduling(
        alias=alias,
        base=base,
        position={ROLLOUTS.name: position(connection).get(ROLLOUTS.name, {})},
        number=1 if newest is None else newest.number + 1,
        is_open=open_cycle(connection, alias) is not None,
        **_unread(connection, alias, base, kinds),
        priority=_priority(connection, alias, base, kinds),
        first_seen=_parse_moment(read_oldest_rollout_time(connection, alias, base)),
        last_started=None if newest is None else _parse_moment(newest.started),
        last_ended=None if newest is None else _parse_moment(newest.ended),
        fruitless=_fruitless(connection, alias, base),
        job_seconds=job_seconds(connection, now),
        asked=_find_start_request(connection, alias),
    )


def unread_since(
    connection: Connection,
    alias: str,
    base: str,
    read: Position,
    decided: int,
    kinds: Collection[str] | None = None,
) -> Scheduling:
    """Return `scheduling` as if the last cycle had read up to `read` and begun at the offset
    `decided` of `learning` (-1: none). Facts about cycles are as for an agent without cycles."""
    return Scheduling(
        alias=alias,
        base=base,
        position=read,
        number=1,
        is_open=False,
        **_count_rollouts(connection, alias, base, kinds, ~_within(read)),
        priority=_priority(connection, alias, base, kinds),
        first_seen=_parse_moment(read_oldest_rollout_time(connection, alias, base)),
        last_started=None,
        last_ended=None,
        fruitless=0,
        job_seconds=0.0,
        asked=_find_start_request_since(connection, alias, decided),
    )


def rollouts_within(connection: Connection, alias: str, base: str, read: Position) -> int:
    """Count the rollouts of the agent's own traffic up to a position."""
    return _count_rollouts(connection, alias, base, None, _within(read))["rollouts"]


def _within(read: Position) -> ColumnElement[bool]:
    table = Rollout.table().c
    return or_(
        false(),
        *(
            and_(
                table.partition == partition,
                table.event_source == source,
                table.sequence <= sequence,
            )
            for stream, partition, source, sequence in entries(read)
            if stream == ROLLOUTS.name
        ),
    )


def job_seconds(connection: Connection, now: datetime) -> float:
    """Return the total seconds of the jobs that ended on the day (UTC) of `now`."""
    table, day = Job.table().c, now.astimezone(UTC).date()
    # Times begin with their day, so they may be compared as texts.
    query = select(table.seconds).where(
        table.ended >= f"{day}", table.ended < f"{day + timedelta(days=1)}"
    )
    return fsum(connection.execute(query).scalars())


def _newest(connection: Connection, alias: str, base: str) -> Any:
    table = Cycle.table()
    query = select(table).where(table.c.alias == alias, table.c.base == base)
    return connection.execute(query.order_by(table.c.number.desc()).limit(1)).first()


def _parse_moment(text: str | None) -> datetime | None:
    return None if text is None else parse_timestamp(text)


def _unread(
    connection: Connection, alias: str, base: str, kinds: Collection[str] | None
) -> dict[str, int]:
    """Count the agent's own rollouts since the last round that one of its cycles has read."""
    table, done = Rollout.table().c, Cycle.table().c
    read = select(func.max(done.round)).where(done.alias == alias, done.base == base)
    last: int | None = connection.execute(read).scalar()
    # Two queries, because with OR a database would read every rollout of the agent.
    since = table.round > (-1 if last is None else last)
    return _count_rollouts(connection, alias, base, kinds, table.round.is_(None), since)


def _count_rollouts(
    connection: Connection,
    alias: str,
    base: str,
    kinds: Collection[str] | None,
    *conditions: ColumnElement[bool],
) -> dict[str, int]:
    """Count an agent's own rollouts that meet one of these disjoint conditions, on tasks of
    `kinds`. A rollout without a task counts, but not as a failure, since no task can follow it."""
    table = Rollout.table().c
    usable = is_usable(table, kinds)
    own = (table.alias == alias, table.base == base, table.purpose.in_(LIVE_PURPOSES))
    counted = select(func.count().label("rollouts"), func.count(table.success).label("judged"))
    traffic = (*own, or_(usable, table.task.is_(None)))
    each = [
        connection.execute(counted.where(*traffic, condition)).one() for condition in conditions
    ]
    # Only rollouts with a verdict have a category.
    failed = (*own, table.category.is_not(None), is_current(connection, table), usable)
    trace = select(table.policy, table.trace_key)
    traces = union_all(*(trace.where(*failed, condition) for condition in conditions)).subquery()
    different = select(traces).distinct().subquery()
    return {
        "rollouts": sum(row.rollouts for row in each),
        "judged": sum(row.judged for row in each),
        "failed": connection.execute(select(func.count()).select_from(different)).scalar_one(),
    }


def _priority(
    connection: Connection, alias: str, base: str, kinds: Collection[str] | None
) -> float:
    return fsum(line.priority for line in list_open_patterns(connection, alias, base, kinds))


def _fruitless(connection: Connection, alias: str, base: str) -> int:
    table = Cycle.table().c
    own = (table.alias == alias, table.base == base)
    promoted = select(func.max(table.number)).where(*own, table.outcome == "promoted")
    since: int = connection.execute(promoted).scalar() or 0
    vain = select(func.count()).where(*own, table.number > since, table.outcome != "cancelled")
    return int(connection.execute(vain).scalar_one())


def _find_start_request(connection: Connection, alias: str) -> str | None:
    done = Cycle.table().c
    started = select(func.max(done.offset)).where(done.alias == alias)
    since: int | None = connection.execute(started).scalar()
    return _find_start_request_since(connection, alias, -1 if since is None else since)


def _find_start_request_since(connection: Connection, alias: str, since: int) -> str | None:
    actions = OperatorAction.table().c
    query = (
        select(actions.event, actions.arguments)
        .where(actions.action == CYCLE_START, actions.offset > since)
        .order_by(actions.offset.desc())
    )
    for row in connection.execute(query):
        if json.loads(row.arguments).get("alias") == alias:
            event: str = row.event
            return event
    return None
