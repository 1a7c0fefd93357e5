"""Small reads for whoever plans a cycle or counts what one cost.

Within one `database.read_transaction`, which is one moment of the tables. Each reads a few rows out
of an index, so a status that is asked every second may ask them too. Not covered: what makes a
cycle due (scheduling.py).
"""

import json
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, func, select

from consumers.diagnosis.priority import Status
from consumers.tables import Cycle, Pattern, Rollout
from events.jobs import KnownPattern
from events.rollouts import Purpose

HEAVIEST: Final = 5
"""Patterns of an agent that a status names."""
LAST: Final = 5
"""Cycles whose duration a status names."""


@dataclass(frozen=True, slots=True)
class PatternWeight:
    """A pattern that tasks are written for, as of the last round."""

    pattern: str
    priority: float
    status: str


def heaviest_patterns(connection: Connection, alias: str, base: str) -> list[PatternWeight]:
    """The patterns of an agent on a base that are not resolved, `HEAVIEST` at most, the highest
    priority first."""
    table = Pattern.table().c
    query = (
        select(table.pattern, table.priority, table.status)
        .where(
            table.alias == alias, table.base == base, table.priority > 0,
            table.status != Status.RESOLVED.value,
        )
        .order_by(table.priority.desc(), table.pattern)
        .limit(HEAVIEST)
    )  # fmt: skip
    return [PatternWeight(*row) for row in connection.execute(query)]


def read_known_patterns(connection: Connection, alias: str, base: str) -> tuple[KnownPattern, ...]:
    """Return all patterns of an agent on a base as the last round left them, by name."""
    table = Pattern.table()
    query = select(table).where(table.c.alias == alias, table.c.base == base)
    names = KnownPattern.model_fields.keys() - {"anchors"}
    return tuple(
        KnownPattern(**{name: row[name] for name in names}, anchors=json.loads(row["anchors"]))
        for row in connection.execute(query.order_by(table.c.pattern)).mappings()
    )


def last_cycle_times(connection: Connection, alias: str, base: str) -> list[tuple[str, str]]:
    """Beginning and end of the `LAST` finished cycles of an agent on a base, the newest first."""
    table = Cycle.table().c
    query = (
        select(table.started, table.ended)
        .where(
            table.alias == alias, table.base == base,
            table.started.is_not(None), table.ended.is_not(None),
        )
        .order_by(table.number.desc())
        .limit(LAST)
    )  # fmt: skip
    return [(row.started, row.ended) for row in connection.execute(query)]


def count_between(
    connection: Connection, alias: str, base: str, purpose: Purpose, since: str, until: str
) -> int:
    """Count the rollouts of an agent on a base for one purpose that ended in `[since, until]`."""
    table = Rollout.table().c
    query = select(func.count()).where(
        table.alias == alias, table.base == base, table.purpose == purpose,
        table.time >= since, table.time <= until,
    )  # fmt: skip
    return int(connection.execute(query).scalar_one())
