"""Counting a round, in SQL: what it holds never depends on how many rollouts a round has.

The questions are asked in this order (rounds.py): `claim` marks the round's rollouts, `failures`
counts the deduplicated failures per pattern, `tag` remembers on which tasks they happened, and
`attempts` counts what the round's rollouts made of the tagged tasks.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Subquery, and_, case, func, literal, not_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis.labelled import label_columns, rollouts_with_repairs
from consumers.tables import Rollout, TaskPattern
from events.position import Position, entries
from events.rollouts import NOBODY
from events.streams import ROLLOUTS

LIVE_PURPOSES: Final = ("live", "import")
"""Rollouts made for training, evaluation or probes never enter the agent's statistics."""

EXAMPLES: Final = 5
"""How many rollouts a pattern names."""

OTHER: Final = "other"
"""The category of failures that no rule explains: counted, and never a pattern."""


def of_agents(rollouts: Any) -> ColumnElement[bool]:
    """Whether a rollout (columns of the table) is an agent's own traffic. A live rollout that no
    engine answered is not."""
    unanswered = and_(rollouts.purpose == "live", rollouts.base == NOBODY)
    return and_(rollouts.purpose.in_(LIVE_PURPOSES), not_(unanswered))


class Pair(NamedTuple):
    """An agent on a base: statistics never cross it."""

    alias: str
    base: str


@dataclass(frozen=True, slots=True)
class Totals:
    """What a round holds of one pair."""

    rollouts: int
    judged: int


@dataclass
class Failures:
    """Deduplicated failures of one pair in a round."""

    total: int = 0
    """|F|: those that no rule explains included."""
    other: int = 0
    by_pattern: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Judged rollouts of a round on tasks tagged with a pattern."""

    attempts: int = 0
    passes: int = 0


def claim(connection: Connection, position: Position, number: int) -> None:
    """Mark the rollouts at or before `position` that no earlier round counted."""
    rollouts = Rollout.table()
    for stream, partition, source, sequence in entries(position):
        if stream == ROLLOUTS.name:
            connection.execute(
                update(rollouts)
                .where(
                    rollouts.c.round.is_(None),
                    rollouts.c.partition == partition,
                    rollouts.c.event_source == source,
                    rollouts.c.sequence <= sequence,
                )
                .values(round=number)
            )


def totals(connection: Connection, number: int) -> dict[Pair, Totals]:
    """Count the rollouts of the round, and those with a verdict, per pair."""
    rollouts = Rollout.table().c
    rows = connection.execute(
        select(
            rollouts.alias, rollouts.base, func.count().label("rollouts"),
            func.count(rollouts.success).label("judged"),
        )
        .where(rollouts.round == number, of_agents(rollouts))
        .group_by(rollouts.alias, rollouts.base)
    )  # fmt: skip
    return {Pair(row.alias, row.base): Totals(row.rollouts, row.judged) for row in rows}


def failures(connection: Connection, number: int) -> Mapping[Pair, Failures]:
    """The round's deduplicated failures per pair and pattern, with their earliest rollouts."""
    failed = _select_failures(number).c
    by_pair: defaultdict[Pair, Failures] = defaultdict(Failures)
    for row in connection.execute(
        select(failed.alias, failed.base, failed.category, failed.pattern, func.count().label("n"))
        .group_by(failed.alias, failed.base, failed.category, failed.pattern)
        .order_by(failed.alias, failed.base, failed.pattern)
    ):
        seen = by_pair[Pair(row.alias, row.base)]
        seen.total += row.n
        if row.category == OTHER:
            seen.other += row.n
        else:
            seen.by_pattern[row.pattern] = row.n
    _add_examples(connection, number, by_pair)
    return by_pair


def _add_examples(connection: Connection, number: int, by_pair: Mapping[Pair, Failures]) -> None:
    failed = _select_failures(number).c
    earliest = func.row_number().over(
        partition_by=(failed.alias, failed.base, failed.pattern),
        order_by=(failed.time.asc().nulls_first(), failed.rollout),
    )
    ranked = select(
        failed.alias, failed.base, failed.category, failed.pattern, failed.rollout,
        earliest.label("rank"),
    ).subquery()  # fmt: skip
    for row in connection.execute(
        select(ranked)
        .where(ranked.c["rank"] <= EXAMPLES, ranked.c.category != OTHER)
        .order_by(ranked.c.alias, ranked.c.base, ranked.c.pattern, ranked.c["rank"])
    ):
        by_pair[Pair(row.alias, row.base)].examples.setdefault(row.pattern, []).append(row.rollout)


def tag(connection: Connection, number: int) -> None:
    """Tag each task with the patterns that the round's failures on it were attributed to."""
    failed = _select_failures(number).c
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(
        dialect.insert(TaskPattern.table())
        .from_select(
            ["alias", "base", "task_key", "pattern"],
            select(failed.alias, failed.base, failed.task_key, failed.pattern)
            .where(failed.category != OTHER)
            .distinct(),
        )
        .on_conflict_do_nothing()
    )


def attempts(connection: Connection, pair: Pair, number: int) -> dict[str, Attempts]:
    """Attempts and passes of the round per pattern, over the tasks tagged with it.

    A pass is a success that no rule objects to: a success below the failure threshold of the shaped
    reward counts as a failure of its pattern, and cannot count as a pass of it too.
    """
    rollouts, tags = Rollout.table().c, TaskPattern.table().c
    passed = case((rollouts.success & rollouts.category.is_(None), 1), else_=0)
    same_task = (
        (rollouts.alias == tags.alias)
        & (rollouts.base == tags.base)
        & (rollouts.task_key == tags.task_key)
    )
    rows = connection.execute(
        select(tags.pattern, func.count().label("attempts"), func.sum(passed).label("passes"))
        .join_from(TaskPattern.table(), Rollout.table(), same_task)
        .where(tags.alias == pair[0], tags.base == pair[1], *_build_conditions(number))
        .group_by(tags.pattern)
    )
    return {row.pattern: Attempts(row.attempts, int(row.passes)) for row in rows}


def representatives(number: int) -> Subquery:
    """One rollout of each (policy, task, trace) of a round: the smallest (time, rollout) of all
    judged ones with its key, passed ones included."""
    rollouts = Rollout.table().c
    category, pivot = label_columns()
    place = func.row_number().over(
        partition_by=(rollouts.alias, rollouts.base, rollouts.policy, rollouts.trace_key),
        order_by=(rollouts.time.asc().nulls_first(), rollouts.rollout),
    )
    ranked = (
        select(
            rollouts.alias, rollouts.base, rollouts.rollout, rollouts.task_key, rollouts.time,
            category.label("category"), rollouts.success, rollouts.reward, pivot.label("pivot"),
            (category + literal("|") + pivot).label("pattern"),
            place.label("place"),
        )
        .select_from(rollouts_with_repairs())
        .where(*_build_conditions(number))
        .subquery()
    )  # fmt: skip
    return select(ranked).where(ranked.c.place == 1).subquery("representatives")


def _select_failures(number: int) -> Subquery:
    """The representatives that failed."""
    seen = representatives(number)
    return select(seen).where(seen.c.category.is_not(None)).subquery("failed")


def _build_conditions(number: int) -> tuple[ColumnElement[bool], ...]:
    """The rollouts whose outcome counts in a round."""
    rollouts = Rollout.table().c
    return (
        rollouts.round == number,
        rollouts.success.is_not(None),
        of_agents(rollouts),
    )
