"""Reads of the agents and of their present bases.

An agent is an alias; its numbers are kept per (alias, base). The present base is the one that
answered its newest rollout. A live rollout that no policy answered belongs to no agent. These reads
run in every tick of the scheduler, so each takes only a few rows from an index.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, func, select

from consumers.diagnosis.round_counts import LIVE_PURPOSES, Pair
from consumers.tables import Rollout
from events.rollouts import NOBODY


class Kind(NamedTuple):
    """Names the rollouts of an agent on one base and for one purpose."""

    alias: str
    base: str
    purpose: str

    @property
    def has_answer(self) -> bool:
        """Return whether any policy answered in these rollouts."""
        return self.purpose != "live" or self.base != NOBODY


def present(connection: Connection) -> list[Pair]:
    """Return (alias, base) of every agent: the base of its newest rollout (ties: largest id)."""
    return [
        Pair(alias, max(of_one, key=lambda kind: _rank(connection, kind)).base)
        for alias, of_one in groupby(live_kinds(connection), lambda kind: kind.alias)
    ]


def newest_rollouts(connection: Connection) -> dict[str, str]:
    """Return alias -> time of the newest rollout of its own traffic that has a time."""
    times: dict[str, str] = {}
    for kind in live_kinds(connection):
        time = connection.execute(_of(kind, func.max(Rollout.table().c.time))).scalar()
        if time is not None:
            times[kind.alias] = max(time, times.get(kind.alias, time))
    return times


def read_oldest_rollout_time(connection: Connection, alias: str, base: str) -> str | None:
    """Return the time of the oldest rollout of an agent's own traffic."""
    oldest = func.min(Rollout.table().c.time)
    times = (
        connection.execute(_of(Kind(alias, base, purpose), oldest)).scalar()
        for purpose in LIVE_PURPOSES
    )
    return min((time for time in times if time is not None), default=None)


def live_kinds(connection: Connection) -> Iterator[Kind]:
    """Yield (alias, base, purpose) of all agents' own traffic, in order."""
    rollouts = Rollout.table().c
    for alias in _values(connection, rollouts.alias):
        of_alias = rollouts.alias == alias
        for base in _values(connection, rollouts.base, of_alias):
            of_base = rollouts.base == base
            for purpose in _values(connection, rollouts.purpose, of_alias, of_base):
                kind = Kind(alias, base, purpose)
                if purpose in LIVE_PURPOSES and kind.has_answer:
                    yield kind


def _values(connection: Connection, column: Any, *where: Any) -> Iterator[str]:
    """Yield a column's distinct values in order, one query each: DISTINCT would read every row."""
    query = select(column).where(*where).order_by(column).limit(1)
    value = connection.execute(query).scalar()
    while value is not None:
        yield value
        value = connection.execute(query.where(column > value)).scalar()


def _rank(connection: Connection, kind: Kind) -> tuple[str, str]:
    rollouts = Rollout.table().c
    newest = _of(kind, rollouts.time, rollouts.rollout).limit(1)
    dated = newest.where(rollouts.time.is_not(None))
    undated = newest.where(rollouts.time.is_(None)).order_by(rollouts.rollout.desc())
    row = connection.execute(dated.order_by(rollouts.time.desc(), rollouts.rollout.desc())).first()
    if row is None:
        row = connection.execute(undated).one()
    return row.time or "", row.rollout


def _of(kind: Kind, *columns: Any) -> Select[Any]:
    rollouts = Rollout.table().c
    return select(*columns).where(
        rollouts.alias == kind.alias,
        rollouts.base == kind.base,
        rollouts.purpose == kind.purpose,
    )
