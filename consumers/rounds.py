"""Closing a round: from labelled rollouts to ranked failure patterns.

Runs at `PatternsDiagnosed`, whose position says which rollouts the round may read: those folded at
or before it that no earlier round counted. Numbers are kept per (alias, base model); a pair without
judged rollouts in the round keeps its patterns as they are, since nothing was learned about them.

    deduplicate   one representative per (policy, task, trace): the smallest (time, rollout)
    attribute     each deduplicated failure to one pattern: primary category and pivot
    tag           its task with that pattern, so that later rollouts on it count as attempts
    count         attempts and passes over this round's rollouts on tagged tasks
    update        recurrence, streak, status and priority (priority.py)

Source: SENTINEL, as written down in this project's ALGORITHMS notes 1.3 to 1.6.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Table, case, func, select, update
from sqlalchemy.sql import ColumnElement

from consumers.batch import Batch, Row
from consumers.priority import PatternState, Status
from consumers.priority import update as next_state
from consumers.tables import Cycle, Pattern, PatternRound, Rollout, TaskPattern
from events.canonical import exact_json
from events.learning import PatternsDiagnosed
from events.position import Position, ahead, entries
from events.streams import ROLLOUTS

LIVE_PURPOSES: Final = ("live", "import")
"""Rollouts made for training, evaluation or probes never enter the agent's statistics."""

EXAMPLES: Final = 5
"""How many rollouts a pattern names."""

OTHER: Final = "other"

Pair = tuple[str, str]
"""(alias, base model): statistics never cross it."""


@dataclass
class _Counts:
    """What one pattern saw in this round."""

    failures: int = 0
    attempts: int = 0
    passes: int = 0
    examples: list[str] = field(default_factory=list)


def close_round(data: PatternsDiagnosed, time: str | None, pointer: Row, batch: Batch) -> None:
    """Count the rollouts up to the event's position and move the priorities."""
    batch.flush()
    connection = batch.connection
    previous, last_position = _last_round(connection)
    if previous is not None and not ahead(data.position, last_position):
        return
    number = 0 if previous is None else previous + 1
    _claim(connection, data.position, number)
    failures = _failures(connection, number)
    totals = _totals(connection, number)
    for pair in sorted(totals.judged_pairs):
        _update_pair(batch, pair, number, failures.get(pair, []))
    every = [failure for of_pair in failures.values() for failure in of_pair]
    batch.stage(
        Cycle,
        {
            "round": number,
            "trigger": data.trigger,
            "rollouts": totals.rollouts,
            "judged": totals.judged,
            "unjudged": totals.rollouts - totals.judged,
            "failed": len(every),
            "patterns": len(
                {
                    (pair, failure.pattern)
                    for pair, of_pair in failures.items()
                    for failure in of_pair
                    if failure.pattern is not None
                }
            ),
            "other": sum(failure.pattern is None for failure in every),
            "position": exact_json(data.position),
            "time": time,
            **{name: value for name, value in pointer.items() if name != "partition"},
        },
    )


def _last_round(connection: Connection) -> tuple[int | None, Position]:
    cycles = Cycle.table().c
    row = connection.execute(
        select(cycles.round, cycles.position).order_by(cycles.round.desc()).limit(1)
    ).first()
    return (None, {}) if row is None else (row.round, json.loads(row.position))


def _claim(connection: Connection, position: Position, number: int) -> None:
    """Mark the rollouts that this round counts."""
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


@dataclass(frozen=True, slots=True)
class _Failure:
    """A deduplicated failure; `pattern` is None where no rule explains it."""

    rollout: str
    task_key: str
    pattern: str | None


def _failures(connection: Connection, number: int) -> dict[Pair, list[_Failure]]:
    """The round's deduplicated failures per pair, in canonical order."""
    rollouts = Rollout.table().c
    place = func.row_number().over(
        partition_by=(rollouts.alias, rollouts.base, rollouts.policy, rollouts.trace_key),
        order_by=(rollouts.time.asc().nulls_first(), rollouts.rollout),
    )
    ranked = (
        select(
            rollouts.alias, rollouts.base, rollouts.rollout, rollouts.task_key,
            rollouts.category, rollouts.pivot, rollouts.time, place.label("place"),
        )
        .where(*_counted(number))
        .subquery()
    )  # fmt: skip
    found: dict[Pair, list[_Failure]] = defaultdict(list)
    for row in connection.execute(
        select(ranked)
        .where(ranked.c.place == 1, ranked.c.category.is_not(None))
        .order_by(ranked.c.time.asc().nulls_first(), ranked.c.rollout)
    ):
        pattern = None if row.category == OTHER else f"{row.category}|{row.pivot}"
        found[row.alias, row.base].append(_Failure(row.rollout, row.task_key, pattern))
    return found


def _counted(number: int) -> tuple[ColumnElement[bool], ...]:
    """The rollouts whose outcome counts in a round."""
    rollouts = Rollout.table().c
    return (
        rollouts.round == number,
        rollouts.success.is_not(None),
        rollouts.purpose.in_(LIVE_PURPOSES),
    )


@dataclass(frozen=True, slots=True)
class _Totals:
    rollouts: int
    judged: int
    judged_pairs: set[Pair]


def _totals(connection: Connection, number: int) -> _Totals:
    rollouts = Rollout.table().c
    rows = connection.execute(
        select(
            rollouts.alias, rollouts.base, func.count().label("rollouts"),
            func.count(rollouts.success).label("judged"),
        )
        .where(rollouts.round == number, rollouts.purpose.in_(LIVE_PURPOSES))
        .group_by(rollouts.alias, rollouts.base)
    ).all()  # fmt: skip
    return _Totals(
        rollouts=sum(row.rollouts for row in rows),
        judged=sum(row.judged for row in rows),
        judged_pairs={(row.alias, row.base) for row in rows if row.judged},
    )


def _update_pair(batch: Batch, pair: Pair, number: int, failures: list[_Failure]) -> None:
    alias, base = pair
    for failure in failures:
        if failure.pattern is not None:
            batch.stage(
                TaskPattern,
                {
                    "alias": alias,
                    "base": base,
                    "task_key": failure.task_key,
                    "pattern": failure.pattern,
                },
            )
    batch.keep()
    batch.flush()
    counts = _attempts(batch.connection, pair, number)
    for failure in failures:
        if failure.pattern is not None:
            seen = counts[failure.pattern]
            seen.failures += 1
            if len(seen.examples) < EXAMPLES:
                seen.examples.append(failure.rollout)
    older = _states(batch.connection, pair)
    for pattern in sorted(older.keys() | counts.keys()):
        known = older.get(pattern)
        if known is None and counts[pattern].failures == 0:
            continue  # a proposed task names it, but nothing has failed yet
        _stage_pattern(batch, pair, number, pattern, known, counts[pattern], len(failures))


def _attempts(connection: Connection, pair: Pair, number: int) -> defaultdict[str, _Counts]:
    """Attempts and passes of this round per pattern, over the tasks tagged with it.

    A pass is a success that no rule objects to: a success below the failure threshold of the shaped
    reward counts as a failure of its pattern, and cannot count as a pass of it too.
    """
    rollouts, tags = Rollout.table().c, TaskPattern.table().c
    passed = case((rollouts.success & rollouts.category.is_(None), 1), else_=0)
    counts: defaultdict[str, _Counts] = defaultdict(_Counts)
    for row in connection.execute(
        select(tags.pattern, func.count().label("attempts"), func.sum(passed).label("passes"))
        .join_from(TaskPattern.table(), Rollout.table(), _same_task())
        .where(tags.alias == pair[0], tags.base == pair[1], *_counted(number))
        .group_by(tags.pattern)
    ):
        counts[row.pattern] = _Counts(attempts=row.attempts, passes=int(row.passes))
    return counts


def _same_task() -> ColumnElement[bool]:
    rollouts, tags = Rollout.table().c, TaskPattern.table().c
    return (
        (rollouts.alias == tags.alias)
        & (rollouts.base == tags.base)
        & (rollouts.task_key == tags.task_key)
    )


@dataclass(frozen=True, slots=True)
class _Known:
    state: PatternState
    first_round: int
    examples: str


def _states(connection: Connection, pair: Pair) -> dict[str, _Known]:
    patterns: Table = Pattern.table()
    rows: Iterable[Any] = connection.execute(
        select(patterns).where(patterns.c.alias == pair[0], patterns.c.base == pair[1])
    )
    return {
        row.pattern: _Known(
            PatternState(
                recurrence=row.recurrence,
                streak=row.streak,
                absent=row.absent,
                pass_rate=row.pass_rate,
                attempts=row.attempts,
                passes=row.passes,
                status=Status(row.status),
                rounds=row.round - row.first_round + 1,
            ),
            row.first_round,
            row.examples,
        )
        for row in rows
    }


def _stage_pattern(
    batch: Batch, pair: Pair, number: int, pattern: str, known: _Known | None, counts: _Counts,
    failed: int,
) -> None:  # fmt: skip
    state = next_state(
        known.state if known else None,
        failures=counts.failures,
        failed_total=failed,
        attempts=counts.attempts,
        passes=counts.passes,
    )
    category, pivot = pattern.split("|", 1)
    row: Row = {
        "alias": pair[0],
        "base": pair[1],
        "pattern": pattern,
        "round": number,
        "failures": counts.failures,
        "attempts": counts.attempts,
        "passes": counts.passes,
        "pass_rate": state.pass_rate,
        "recurrence": state.recurrence,
        "streak": state.streak,
        "absent": state.absent,
        "priority": state.priority,
        "status": state.status.value,
    }
    batch.stage(PatternRound, {**row, "failed": failed})
    examples = exact_json(counts.examples) if counts.examples or known is None else known.examples
    first = known.first_round if known else number
    batch.stage(
        Pattern,
        {**row, "category": category, "pivot": pivot, "examples": examples, "first_round": first},
    )
