"""Close a round: from labelled rollouts to ranked failure patterns.

A `PatternsDiagnosed` event closes it. The event's position says up to which rollouts the round may
read. Rollouts of earlier rounds do not count again. Numbers are kept per (alias, base model); the
patterns of a pair without judged rollouts of its present policies stay as they are.

    claim         the rollouts, and mark those that count in no number; where rules changed, the
                  pair begins anew (round_counts.py)
    deduplicate   one representative per (policy, task, trace): the smallest (time, rollout)
    attribute     each deduplicated failure to one pattern: primary category and pivot
    locate        each failure at an anchor, which its pattern keeps with a weight
    count         attempts and passes around the anchors (neighbourhood.py)
    update        recurrence, streak, status and priority (priority.py)
    override      patterns that a person pinned or muted

Source: docs/patterns.md (after SENTINEL, arXiv 2606.12908).
"""

import json
from collections.abc import Mapping

from sqlalchemy import Connection, select

from consumers.batch import Batch, Row
from consumers.diagnosis import round_counts
from consumers.diagnosis.anchors import add_round
from consumers.diagnosis.neighbourhood import Neighbourhood, count_neighbours
from consumers.diagnosis.priority import (
    Override,
    PatternState,
    RoundEvidence,
    Status,
    apply_overrides,
    update,
)
from consumers.diagnosis.round_counts import Failures, Pair
from consumers.tables import Pattern, PatternRound, Round
from events.canonical import exact_json
from events.learning import PatternsDiagnosed
from events.position import Position, ahead


def close_round(data: PatternsDiagnosed, time: str | None, pointer: Row, batch: Batch) -> int:
    """Count the rollouts up to the event's position and update the priorities. Return the round's
    number. If the position is not beyond the last round's, do nothing and return the last
    number."""
    batch.flush()
    connection = batch.connection
    previous, last_position = _last_round(connection)
    if previous is not None and not ahead(data.position, last_position):
        return previous
    number = 0 if previous is None else previous + 1
    round_counts.claim(connection, data.position, number, data.kinds)
    round_counts.tag(connection, number)
    totals, failures = (
        round_counts.totals(connection, number),
        round_counts.failures(connection, number),
    )
    for pair in sorted(totals):
        if totals[pair].current:
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


def override_pattern(
    batch: Batch, alias: str, pattern: str, override: Override | None, reason: str | None
) -> None:
    """Pin, mute or release (None) a known pattern of an agent on every base. It keeps the status of
    its last round, but a pinned pattern is never RESOLVED."""
    batch.flush()
    patterns = Pattern.table().c
    bases = select(patterns.base).where(patterns.alias == alias, patterns.pattern == pattern)
    for base in batch.connection.execute(bases.order_by(patterns.base)).scalars().all():
        rows = _read_patterns(batch.connection, Pair(alias, base))
        status = _read_round_status(batch.connection, rows[pattern])
        if override == "pinned" and status == Status.RESOLVED:
            status = Status.ACTIVE.value
        words = {"operator": override, "operator_reason": reason, "status": status}
        row = {**rows[pattern], **words}
        _stage_patterns(batch, {**rows, pattern: row})


def _read_round_status(connection: Connection, row: Row) -> str:
    """Return the status that a pattern had at the end of the round in `row`."""
    history = PatternRound.table().c
    query = select(history.status).where(
        *(history[name] == row[name] for name in ("alias", "base", "pattern", "round"))
    )
    return str(connection.execute(query).scalar_one())


def _update_pair(batch: Batch, pair: Pair, number: int, failures: Failures) -> None:
    older = _read_patterns(batch.connection, pair)
    # A pattern that only a proposed task names does not exist yet.
    names = sorted(older.keys() | failures.by_pattern.keys())
    anchors = {
        name: add_round(
            json.loads(older[name]["anchors"]) if name in older else {},
            failures.anchors.get(name, {}),
        )
        for name in names
    }
    neighbours = count_neighbours(batch.connection, pair, number, anchors)
    rows = {}
    for name in names:
        state = _next_state(older.get(name), number, failures, name, neighbours[name])
        rows[name] = {
            **_next_row(pair, number, name, older.get(name), failures),
            **_state_columns(state),
            "anchors": exact_json(anchors[name]),
        }
    history = _stage_patterns(batch, rows)
    columns = PatternRound.table().columns.keys()
    for row in history:
        of_round = {name: value for name, value in row.items() if name in columns}
        batch.stage(PatternRound, {**of_round, "failed": failures.total})


def _next_state(
    older: Row | None, number: int, failures: Failures, pattern: str, seen: Neighbourhood
) -> PatternState:
    evidence = RoundEvidence(
        failures=failures.by_pattern.get(pattern, 0),
        failed_total=failures.total,
        attempts=seen.attempts,
        passes=seen.passes,
        share=seen.share,
        weight=seen.weight,
        broken=failures.broken.get(pattern, 0),
    )
    pinned = older is not None and older["operator"] == "pinned"
    # When rules change, a pattern with an override keeps its row, but its state begins anew.
    goes_on = older is not None and older["first_round"] < number
    return update(_parse_state(older) if older and goes_on else None, evidence, pinned=pinned)


def _next_row(pair: Pair, number: int, pattern: str, older: Row | None, failures: Failures) -> Row:
    category, pivot = pattern.split("|", 1)
    examples = failures.examples.get(pattern)
    return {
        "alias": pair.alias,
        "base": pair.base,
        "pattern": pattern,
        "category": category,
        "pivot": pivot,
        "round": number,
        "failures": failures.by_pattern.get(pattern, 0),
        "examples": exact_json(examples) if examples or older is None else older["examples"],
        "first_round": number if older is None else older["first_round"],
        "operator": None if older is None else older["operator"],
        "operator_reason": None if older is None else older["operator_reason"],
    }


def _stage_patterns(batch: Batch, rows: Mapping[str, Row]) -> list[Row]:
    """Stage and return all patterns of a pair, with priorities after the operator's overrides."""
    priorities = apply_overrides(
        {name: _parse_state(row).priority for name, row in rows.items()},
        {name: row["operator"] for name, row in rows.items() if row["operator"] is not None},
    )
    staged = [{**row, "priority": priorities[name]} for name, row in rows.items()]
    for row in staged:
        batch.stage(Pattern, row)
    return staged


def _read_patterns(connection: Connection, pair: Pair) -> dict[str, Row]:
    patterns = Pattern.table()
    query = select(patterns).where(patterns.c.alias == pair.alias, patterns.c.base == pair.base)
    rows = connection.execute(query.order_by(patterns.c.pattern)).mappings()
    return {row["pattern"]: dict(row) for row in rows}


_STATE = (
    "recurrence", "streak", "absent", "pass_rate", "attempts", "passes", "learnability",
)  # fmt: skip


def _parse_state(row: Row) -> PatternState:
    return PatternState(**{name: row[name] for name in _STATE}, status=Status(row["status"]))


def _state_columns(state: PatternState) -> Row:
    return {name: getattr(state, name) for name in _STATE} | {"status": state.status.value}
