"""Count a round in SQL, so that memory never grows with the rollouts of a round."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Connection,
    Subquery,
    and_,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis import anchors
from consumers.diagnosis.answering import answers_now
from consumers.diagnosis.labelled import label_columns, rollouts_with_repairs
from consumers.diagnosis.rule_versions import follows_newest_rules, note_versions
from consumers.diagnosis.task_kinds import has_kind, is_usable
from consumers.tables import Rollout, TaskPattern
from events.position import Position, entries
from events.rollouts import NOBODY
from events.streams import ROLLOUTS

LIVE_PURPOSES: Final = ("live", "import")
"""Purposes of rollouts in the agent's own traffic. Counts of traffic include no others."""

BROKEN_ATTEMPTS: Final = 8
"""A task with at least this many judged attempts and no pass may itself be at fault."""

EXAMPLES: Final = 5
"""Most rollouts that a pattern lists as examples."""

OTHER: Final = "other"
"""Category of failures that no rule explains; they are counted but form no pattern."""


def of_agents(rollouts: Any) -> ColumnElement[bool]:
    """Return the SQL condition that a rollout is an agent's own traffic and was answered."""
    unanswered = and_(rollouts.purpose == "live", rollouts.base == NOBODY)
    return and_(rollouts.purpose.in_(LIVE_PURPOSES), not_(unanswered))


class Pair(NamedTuple):
    """An agent (its alias) and a base model. Statistics never combine two pairs."""

    alias: str
    base: str


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers of one pair's rollouts in a round."""

    rollouts: int
    judged: int
    current: int
    """Judged rollouts that count in the round's numbers; `claim` marked the others as outdated."""


@dataclass
class Failures:
    """Deduplicated failures of one pair in a round."""

    total: int = 0
    """|F|: all failures, including those that no rule explains."""
    other: int = 0
    by_pattern: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    anchors: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pattern -> anchor -> number of failures, for the anchors with the most failures."""
    broken: dict[str, int] = field(default_factory=dict)
    """Pattern -> failures on tasks with at least `BROKEN_ATTEMPTS` attempts and no pass."""


def claim(
    connection: Connection,
    position: Position,
    number: int,
    kinds: Mapping[str, Collection[str]],
) -> None:
    """Assign to round `number` the rollouts up to `position` that no earlier round claimed.

    Mark as outdated the rollouts that do not count: those of policies that do not answer now, those
    judged under older rules, and an agent's traffic on tasks outside its `kinds` (agent -> kinds).
    If the rules of a pair's verdicts changed, its patterns begin anew.
    """
    rollouts = Rollout.table()
    elsewhere = [
        and_(
            rollouts.c.alias == alias,
            rollouts.c.purpose.in_(LIVE_PURPOSES),
            not_(has_kind(rollouts.c, own)),
        )
        for alias, own in sorted(kinds.items())
    ]
    counts = and_(answers_now(connection, rollouts.c), not_(or_(false(), *elsewhere)))
    outdated = case((counts, False), else_=True)
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
                .values(round=number, outdated=outdated)
            )
    note_versions(connection, number, and_(counts, of_agents(rollouts.c)))
    connection.execute(
        update(rollouts)
        .where(rollouts.c.round == number, not_(follows_newest_rules(rollouts.c)))
        .values(outdated=True)
    )


def totals(connection: Connection, number: int) -> dict[Pair, Totals]:
    """Count the round's rollouts, its judged rollouts, and the judged ones that count, per pair."""
    rollouts = Rollout.table().c
    rows = connection.execute(
        select(
            rollouts.alias, rollouts.base, func.count().label("rollouts"),
            func.count(rollouts.success).label("judged"),
            func.count(rollouts.success).filter(rollouts.outdated.is_(False)).label("current"),
        )
        .where(rollouts.round == number, of_agents(rollouts))
        .group_by(rollouts.alias, rollouts.base)
    )  # fmt: skip
    return {
        Pair(row.alias, row.base): Totals(row.rollouts, row.judged, row.current) for row in rows
    }


def failures(connection: Connection, number: int) -> Mapping[Pair, Failures]:
    """Return the round's deduplicated failures per pair and pattern, with examples and anchors."""
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
    _add_anchors(connection, number, by_pair)
    _add_broken(connection, number, by_pair)
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


def _add_anchors(connection: Connection, number: int, by_pair: Mapping[Pair, Failures]) -> None:
    failed = _select_failures(number).c
    anchor = case(
        (failed.kind.is_not(None), literal(anchors.KIND) + failed.kind),
        (
            and_(failed.pivot != "*", failed.words.is_not(None)),
            literal(anchors.NEAR_TOOL) + failed.words + literal(":") + failed.pivot,
        ),
        (failed.pivot != "*", literal(anchors.TOOL) + failed.pivot),
        (failed.words.is_not(None), literal(anchors.WORDS) + failed.words),
        else_=literal(anchors.TASK) + failed.task_key,
    )
    counted = (
        select(failed.alias, failed.base, failed.pattern, anchor.label("anchor"),
               func.count().label("n"), func.min(failed.trace_key).label("key"))
        .where(failed.category != OTHER)
        .group_by(failed.alias, failed.base, failed.pattern, anchor)
        .subquery()
    )  # fmt: skip
    place = func.row_number().over(
        partition_by=(counted.c.alias, counted.c.base, counted.c.pattern),
        # A hash breaks ties (see add_round).
        order_by=(counted.c.n.desc(), counted.c.key, counted.c.anchor),
    )
    ranked = select(counted, place.label("place")).subquery()
    for row in connection.execute(select(ranked).where(ranked.c.place <= anchors.ANCHORS)):
        by_anchor = by_pair[Pair(row.alias, row.base)].anchors.setdefault(row.pattern, {})
        by_anchor[row.anchor] = row.n


def _add_broken(connection: Connection, number: int, by_pair: Mapping[Pair, Failures]) -> None:
    failed = _select_failures(number).c
    tried = (
        select(failed.alias, failed.base, failed.task_key, failed.pattern,
               func.count().label("n"), func.max(failed.rules).label("rules"))
        .where(failed.category != OTHER)
        .group_by(failed.alias, failed.base, failed.task_key, failed.pattern)
        .subquery()
    )  # fmt: skip
    attempts = Rollout.table().alias("attempts")
    # Every judged rollout on the task that a round has claimed, for any purpose, but none
    # that was judged under older rules.
    outcomes = (
        select(func.count())
        .where(
            attempts.c.alias == tried.c.alias,
            attempts.c.base == tried.c.base,
            attempts.c.task_key == tried.c.task_key,
            attempts.c.round <= number,
            attempts.c.success.is_not(None),
            func.coalesce(attempts.c.rules >= tried.c.rules, True),
        )
        .correlate(tried)
    )
    passed = outcomes.where(attempts.c.success, attempts.c.category.is_(None))
    for row in connection.execute(
        select(tried.c.alias, tried.c.base, tried.c.pattern, func.sum(tried.c.n).label("n"))
        .where(outcomes.scalar_subquery() >= BROKEN_ATTEMPTS, passed.scalar_subquery() == 0)
        .group_by(tried.c.alias, tried.c.base, tried.c.pattern)
    ):
        by_pair[Pair(row.alias, row.base)].broken[row.pattern] = int(row.n)


def count_refusals(connection: Connection, pair: Pair, number: int) -> dict[str, tuple[int, int]]:
    """Return pattern -> (deduplicated failures, how many of them have a failed tool call)."""
    failed = _select_failures(number).c
    refused = func.sum(case((failed.tool_errors > 0, 1), else_=0)).label("refused")
    rows = connection.execute(
        select(failed.pattern, func.count().label("n"), refused)
        .where(failed.alias == pair.alias, failed.base == pair.base, failed.category != OTHER)
        .group_by(failed.pattern)
        .order_by(failed.pattern)
    )
    return {row.pattern: (int(row.n), int(row.refused)) for row in rows}


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


def representatives(number: int, kinds: Collection[str] | None = None) -> Subquery:
    """Return a subquery with one rollout for each (policy, task, trace): the smallest (time,
    rollout). It reads a round's judged rollouts that are not outdated, on tasks of `kinds` only, if
    given."""
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
            rollouts.rules, rollouts.kind, rollouts.words, rollouts.trace_key, rollouts.tool_errors,
            rollouts.session, place.label("place"),
            (category + literal("|") + pivot).label("pattern"),
        )
        .select_from(rollouts_with_repairs())
        .where(*_build_conditions(number), is_usable(rollouts, kinds))
        .subquery()
    )  # fmt: skip
    return select(ranked).where(ranked.c.place == 1).subquery("representatives")


def _select_failures(number: int) -> Subquery:
    seen = representatives(number)
    return select(seen).where(seen.c.category.is_not(None)).subquery("failed")


def _build_conditions(number: int) -> tuple[ColumnElement[bool], ...]:
    rollouts = Rollout.table().c
    return (
        rollouts.round == number,
        rollouts.success.is_not(None),
        rollouts.outdated.is_(False),
        of_agents(rollouts),
    )
