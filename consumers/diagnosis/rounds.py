"""Closing a round: from labelled rollouts to ranked failure patterns.

Runs at `PatternsDiagnosed`, whose position says which rollouts the round may read: those folded at
or before it that no earlier round counted. Numbers are kept per (alias, base model); a pair without
judged rollouts in the round keeps its patterns as they are, since nothing was learned about them.

    deduplicate   one representative per (policy, task, trace): the smallest (time, rollout)
    attribute     each deduplicated failure to one pattern: primary category and pivot
    tag           its task with that pattern, so that later rollouts on it count as attempts
    count         attempts and passes over this round's rollouts on tagged tasks
    update        recurrence, streak, status and priority (priority.py)

Source: docs/patterns.md (after SENTINEL, arXiv 2606.12908).
"""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, select

from consumers.batch import Batch, Row
from consumers.diagnosis import round_counts
from consumers.diagnosis.priority import PatternState, Status, update
from consumers.diagnosis.round_counts import Attempts, Failures, Pair
from consumers.tables import Pattern, PatternRound, Round
from events.canonical import exact_json
from events.learning import PatternsDiagnosed
from events.position import Position, ahead


def close_round(data: PatternsDiagnosed, time: str | None, pointer: Row, batch: Batch) -> int:
    """Count the rollouts up to the event's position and move the priorities; the round's number, or
    the last one's where the position is not ahead of it."""
    batch.flush()
    connection = batch.connection
    previous, last_position = _last_round(connection)
    if previous is not None and not ahead(data.position, last_position):
        return previous
    number = 0 if previous is None else previous + 1
    round_counts.claim(connection, data.position, number)
    round_counts.tag(connection, number)
    totals, failures = (
        round_counts.totals(connection, number),
        round_counts.failures(connection, number),
    )
    for pair in sorted(totals):
        if totals[pair].judged:
            _update_pair(batch, pair, number, failures.get(pair, Failures()))
    rollouts = sum(of_pair.rollouts for of_pair in totals.values())
    judged = sum(of_pair.judged for of_pair in totals.values())
    batch.stage(
        Round,
        {
            "round": number,
            "trigger": data.trigger,
            "rollouts": rollouts,
            "judged": judged,
            "unjudged": rollouts - judged,
            "failed": sum(of_pair.total for of_pair in failures.values()),
            "patterns": sum(len(of_pair.by_pattern) for of_pair in failures.values()),
            "other": sum(of_pair.other for of_pair in failures.values()),
            "position": exact_json(data.position),
            "time": time,
            **{name: value for name, value in pointer.items() if name != "partition"},
        },
    )
    return number


def _last_round(connection: Connection) -> tuple[int | None, Position]:
    cycles = Round.table().c
    row = connection.execute(
        select(cycles.round, cycles.position).order_by(cycles.round.desc()).limit(1)
    ).first()
    return (None, {}) if row is None else (row.round, json.loads(row.position))


@dataclass(frozen=True, slots=True)
class _PatternRecord:
    state: PatternState
    first_round: int
    examples: str


def _update_pair(batch: Batch, pair: Pair, number: int, failures: Failures) -> None:
    attempts = round_counts.attempts(batch.connection, pair, number)
    older = _read_patterns(batch.connection, pair)
    # A proposed task may name a pattern without failures yet: it is none so far.
    for pattern in sorted(older.keys() | failures.by_pattern.keys()):
        known, seen = older.get(pattern), attempts.get(pattern, Attempts())
        state = update(
            known.state if known else None,
            failures=failures.by_pattern.get(pattern, 0),
            failed_total=failures.total,
            attempts=seen.attempts,
            passes=seen.passes,
        )
        _stage_pattern(batch, pair, number, pattern, known, state, failures)


def _read_patterns(connection: Connection, pair: Pair) -> dict[str, _PatternRecord]:
    patterns = Pattern.table()
    rows = connection.execute(
        select(patterns).where(patterns.c.alias == pair[0], patterns.c.base == pair[1])
    )
    return {
        row.pattern: _PatternRecord(
            PatternState(
                recurrence=row.recurrence,
                streak=row.streak,
                absent=row.absent,
                pass_rate=row.pass_rate,
                attempts=row.attempts,
                passes=row.passes,
                status=Status(row.status),
            ),
            row.first_round,
            row.examples,
        )
        for row in rows
    }


def _stage_pattern(
    batch: Batch, pair: Pair, number: int, pattern: str, known: _PatternRecord | None,
    state: PatternState,
    failures: Failures,
) -> None:  # fmt: skip
    category, pivot = pattern.split("|", 1)
    row: Row = {
        "alias": pair[0],
        "base": pair[1],
        "pattern": pattern,
        "round": number,
        "failures": failures.by_pattern.get(pattern, 0),
        "attempts": state.attempts,
        "passes": state.passes,
        "pass_rate": state.pass_rate,
        "recurrence": state.recurrence,
        "streak": state.streak,
        "absent": state.absent,
        "priority": state.priority,
        "status": state.status.value,
    }
    batch.stage(PatternRound, {**row, "failed": failures.total})
    examples = failures.examples.get(pattern)
    batch.stage(
        Pattern,
        {
            **row,
            "category": category,
            "pivot": pivot,
            "examples": exact_json(examples) if examples or not known else known.examples,
            "first_round": known.first_round if known else number,
        },
    )
