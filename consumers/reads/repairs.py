"""Typed reads of repairs: proven results, and rollouts that wait for a search."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, or_, select
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis.labelled import rollouts_with_repairs
from consumers.diagnosis.round_counts import of_agents
from consumers.rows import make_row
from consumers.tables import SKIPPED, Repair, Rollout

REPAIR_RULES: Final = "1"
"""Version of the repair search (daemon/repair). With a new version, rollouts are searched again."""


@dataclass(frozen=True, slots=True)
class RepairRow:
    """Result of the search for the smallest repair of a rollout."""

    rules: str
    outcome: str
    category: str | None
    pivot: str | None
    edits: list[dict[str, Any]]
    replays: int
    reason: str


@dataclass(frozen=True, slots=True)
class RepairCounts:
    """Numbers of failed rollouts in agents' own traffic, by the result of their repair search."""

    repaired: int = 0
    state_right: int = 0
    exhausted: int = 0
    skipped: int = 0
    """Rollouts that could not be replayed."""
    waiting: int = 0
    """Rollouts on a task of a declared environment that were not searched yet."""


@dataclass(frozen=True, slots=True)
class RepairCandidate:
    """A failed rollout for which a repair is to be searched."""

    rollout: str
    environment: str
    reason: str | None
    """Why an earlier search skipped it, if one did."""


def read_repair(connection: Connection, rollout: str) -> RepairRow | None:
    """Return the result of a rollout's repair search; None without one."""
    repairs = Repair.table()
    row = connection.execute(select(repairs).where(repairs.c.rollout == rollout)).first()
    return None if row is None else make_row(RepairRow, row, edits=json.loads(row.edits))


def filter_searched(connection: Connection, rules: str, rollouts: Sequence[str]) -> set[str]:
    """Return those of `rollouts` that have a search result of this version of the rules."""
    repairs = Repair.table().c
    query = select(repairs.rollout).where(repairs.rules == rules, repairs.rollout.in_(rollouts))
    return set(connection.execute(query).scalars())


def read_repair_candidates(
    connection: Connection,
    rules: str,
    limit: int | None,
    *,
    without: Collection[str] = (),
    away: Collection[str] = (),
    uncounted: bool = False,
    with_skipped: bool = False,
) -> list[RepairCandidate]:
    """Return failed rollouts without a search result of these rules: first those that no round has
    counted, and of those the newest first. `without` names rollouts and `away` environments to
    leave out. `uncounted` leaves out rollouts of a round; `with_skipped` adds skipped ones."""
    rollouts, repairs = Rollout.table().c, Repair.table().c
    unsearched: ColumnElement[bool] = repairs.rollout.is_(None) | (repairs.rules != rules)
    if with_skipped:
        unsearched = or_(unsearched, repairs.outcome == SKIPPED)
    query = (
        select(rollouts.rollout, rollouts.environment, repairs.reason)
        .select_from(rollouts_with_repairs())
        .where(_can_be_searched(), unsearched)
        .where(rollouts.rollout.not_in(sorted(without)))
        .where(rollouts.environment.not_in(sorted(away)))
        .order_by(rollouts.round.is_not(None), rollouts.time.desc().nulls_last(), rollouts.rollout)
        .limit(limit)
    )
    if uncounted:
        query = query.where(rollouts.round.is_(None))
    return [make_row(RepairCandidate, row) for row in connection.execute(query)]


def count_repairs(connection: Connection, rules: str) -> RepairCounts:
    """Count failed rollouts by search result. Results of other rules count as waiting."""
    repairs = Repair.table().c
    is_current = func.coalesce(repairs.rules, "") == rules
    rows = connection.execute(
        select(repairs.outcome, is_current.label("is_current"), func.count().label("rollouts"))
        .select_from(rollouts_with_repairs())
        .where(_can_be_searched())
        .group_by(repairs.outcome, is_current)
    ).all()
    counts = {row.outcome: row.rollouts for row in rows if row.is_current}
    return RepairCounts(**counts, waiting=sum(row.rollouts for row in rows if not row.is_current))


def _can_be_searched() -> ColumnElement[bool]:
    rollouts = Rollout.table().c
    return (
        rollouts.success.is_(False)
        & rollouts.category.is_not(None)
        & rollouts.task.is_not(None)
        & rollouts.environment.is_not(None)
        & of_agents(rollouts)
    )
