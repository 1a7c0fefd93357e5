"""Small reads for planning a cycle and counting its cost, within one `database.read_transaction`.
Each reads a few rows from an index, so a status command may call them every second."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Final

from sqlalchemy import Connection, func, not_, select, union

from consumers.diagnosis.answering import is_current
from consumers.diagnosis.priority import Status
from consumers.diagnosis.round_counts import LIVE_PURPOSES
from consumers.diagnosis.task_kinds import has_kind
from consumers.reads.evidence import read_clients, select_client
from consumers.tables import Cycle, Pattern, Rollout
from events.jobs import KnownPattern
from events.rollouts import Purpose

HEAVIEST: Final = 5
"""Most patterns of an agent that a status shows."""
MOST_UNUSABLE: Final = 20
"""Most pairs of API key and environment that a status shows."""
LAST: Final = 5
"""Number of last cycles whose duration a status uses."""


@dataclass(frozen=True, slots=True)
class PatternWeight:
    """An unresolved pattern after the last round."""

    pattern: str
    priority: float
    status: str


@dataclass(frozen=True, slots=True)
class UnusableFailures:
    """Failures of one API key on tasks that the agent's environment cannot write."""

    client: str | None
    """Name of the API key; None for imports or without configured keys."""
    environment: str | None
    """Environment of their tasks; None if unknown."""
    failures: int
    """Number of failures after deduplication."""

    def describe(self) -> str:
        """Return the count in words."""
        whose = "without a key" if self.client is None else f"of the key {self.client}"
        where = "on no known task" if self.environment is None else f"in {self.environment}"
        return f"{self.failures:,} {whose} {where}"


def list_open_patterns(
    connection: Connection, alias: str, base: str, kinds: Collection[str] | None = None
) -> list[PatternWeight]:
    """Return unresolved patterns (with an example on `kinds` if given), highest priority first."""
    table = Pattern.table().c
    query = (
        select(table.pattern, table.priority, table.status, table.examples)
        .where(
            table.alias == alias, table.base == base, table.priority > 0,
            table.status != Status.RESOLVED.value,
        )
        .order_by(table.priority.desc(), table.pattern)
    )  # fmt: skip
    rows = connection.execute(query).all()
    examples = {row.pattern: json.loads(row.examples) for row in rows} if kinds is not None else {}
    known = read_clients(connection, set(chain.from_iterable(examples.values())), kinds)
    return [
        PatternWeight(row.pattern, row.priority, row.status)
        for row in rows
        if kinds is None or not known.keys().isdisjoint(examples[row.pattern])
    ]


def list_unusable_failures(
    connection: Connection, alias: str, base: str, kinds: Collection[str]
) -> list[UnusableFailures]:
    """Count an agent's failures on tasks outside `kinds`, by API key and environment, since the
    round of its last cycle. Return at most `MOST_UNUSABLE` counts, the largest first."""
    table, cycles = Rollout.table().c, Cycle.table().c
    rounds = select(func.max(cycles.round)).where(cycles.alias == alias, cycles.base == base)
    last: int | None = connection.execute(rounds).scalar()
    failed = select(
        select_client(table).label("client"), table.environment, table.policy, table.trace_key
    ).where(
        table.alias == alias, table.base == base, table.purpose.in_(LIVE_PURPOSES),
        table.category.is_not(None), is_current(connection, table), not_(has_kind(table, kinds)),
    )  # fmt: skip
    # Two queries, because with OR a database would read every failure of the agent.
    since = table.round >= (-1 if last is None else last)
    different = union(failed.where(table.round.is_(None)), failed.where(since)).subquery().c
    count = func.count().label("n")
    query = (
        select(different.client, different.environment, count)
        .group_by(different.client, different.environment)
        .order_by(count.desc(), different.client, different.environment)
        .limit(MOST_UNUSABLE)
    )
    return [UnusableFailures(*row) for row in connection.execute(query)]


def heaviest_patterns(
    connection: Connection, alias: str, base: str, kinds: Collection[str] | None = None
) -> list[PatternWeight]:
    """Return the `HEAVIEST` unresolved patterns with the highest priorities."""
    return list_open_patterns(connection, alias, base, kinds)[:HEAVIEST]


def read_known_patterns(connection: Connection, alias: str, base: str) -> tuple[KnownPattern, ...]:
    """Return all patterns of an agent on a base at the end of the last round, by name."""
    table = Pattern.table()
    query = select(table).where(table.c.alias == alias, table.c.base == base)
    names = KnownPattern.model_fields.keys() - {"anchors"}
    return tuple(
        KnownPattern(**{name: row[name] for name in names}, anchors=json.loads(row["anchors"]))
        for row in connection.execute(query.order_by(table.c.pattern)).mappings()
    )


def last_cycle_times(connection: Connection, alias: str, base: str) -> list[tuple[str, str]]:
    """Return (start, end) of the `LAST` finished cycles of an agent on a base, newest first."""
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
