"""Counts over the loop for monitoring: few numbers by alias, however large the tables are. Call
them within one `database.read_transaction`. Times are texts as in the events (RFC 3339, UTC)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Select, func, select

from consumers.folds.adapters import has_members
from consumers.tables import (
    Adapter,
    Cycle,
    Evaluation,
    Job,
    LifecycleStep,
    Pattern,
    Rollout,
)
from events.lifecycle import State
from events.serving import GateDecided

OPEN: Final = "open"
"""Outcome of an open cycle or job."""

USER_ERROR: Final = "user_error"
"""Termination of an episode in which the model that plays the user erred (envs/episode.py)."""

_DECISIONS: Final = {State.GATED: "PROMOTE", State.REJECTED: "REJECT", State.EVALUATED: "EXTEND"}
"""State that an adapter has after a decision of the gate -> that decision."""


@dataclass(frozen=True, slots=True)
class PatternCount:
    """Number of an agent's patterns on a base with one category and status."""

    alias: str
    base: str
    category: str
    status: str
    patterns: int
    priority: float
    """Sum of the patterns' priorities after the last round."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The last measured pass rates of an adapter and of the incumbent."""

    adapter: str
    incumbent_pass: float
    candidate_pass: float


def pattern_counts(connection: Connection) -> list[PatternCount]:
    """Return counts of the failure patterns of the last round."""
    table = Pattern.table().c
    kind = (table.alias, table.base, table.category, table.status)
    total = func.sum(table.priority).label("priority")
    query = select(*kind, func.count().label("patterns"), total).group_by(*kind).order_by(*kind)
    return [PatternCount(**row) for row in connection.execute(query).mappings()]


def cycle_counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return (alias, outcome or `OPEN`) -> cycles."""
    table = Cycle.table().c
    return _count_by_alias(connection, table.alias, table.outcome)


def job_counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return (alias, outcome or `OPEN`) -> jobs."""
    table = Job.table().c
    return _count_by_alias(connection, table.alias, table.outcome)


def adapter_counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return (alias, state) -> adapters."""
    table = Adapter.table().c
    return _count_by_alias(connection, table.alias, table.state)


def gate_counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return (alias, decision) -> number of such decisions of the gate."""
    moves = _moves(connection, LifecycleStep.table().c.type == GateDecided.TYPE)
    return {(alias, _DECISIONS[State(state)]): count for (alias, state), count in moves.items()}


def state_entry_counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return (alias, state) -> how often adapters entered it; a repeated staging counts again."""
    return _moves(connection)


def task_counts(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return alias -> (accepted, rejected): numbers of tasks that the alias' cycles wrote."""
    table = Cycle.table().c
    sums = func.sum(table.accepted).label("accepted"), func.sum(table.rejected).label("rejected")
    query = select(table.alias, *sums).group_by(table.alias)
    return {row.alias: (int(row.accepted), int(row.rejected)) for row in connection.execute(query)}


def successes(connection: Connection) -> dict[tuple[str, str], str]:
    """Return (alias, stop of daemon/cycle/state_machine.py) -> time of the stop's last success."""
    cycles, jobs, steps = Cycle.table().c, Job.table().c, LifecycleStep.table().c
    # Jobs that train users belong to no cycle.
    of_loop = jobs.teaches.is_distinct_from("user")
    trained = (jobs.outcome == "trained") & of_loop
    asked = {
        "diagnose": select(cycles.alias, func.max(cycles.diagnosed)).group_by(cycles.alias),
        "propose": select(jobs.alias, func.max(jobs.requested)).where(of_loop).group_by(jobs.alias),
        "train": select(jobs.alias, func.max(jobs.ended)).where(trained).group_by(jobs.alias),
        "gate": _last_entry(State.GATED),
        "compose": _steps(steps.state == State.PRODUCED.value, has_members()).add_columns(
            func.max(steps.time)
        ),
        "canary": _last_entry(State.CANARY),
        "route": _last_entry(State.PROMOTED),
    }
    return {
        (alias, stop): time
        for stop, query in asked.items()
        for alias, time in connection.execute(query)
        if time is not None
    }


def count_user_errors(connection: Connection, since: str) -> dict[tuple[str, str], int]:
    """Return (alias, purpose) -> rollouts since `since` (RFC 3339, UTC) ended by a user error."""
    table = Rollout.table().c
    query = (
        select(table.alias, table.purpose, func.count().label("errors"))
        .where(table.time >= since, table.termination == USER_ERROR)
        .group_by(table.alias, table.purpose)
    )
    return {(row.alias, row.purpose): row.errors for row in connection.execute(query)}


@dataclass(frozen=True, slots=True)
class Over:
    """The last finished cycle of an agent."""

    started: str | None
    ended: str


def last_over(connection: Connection) -> dict[str, Over]:
    """Return alias -> its last finished cycle."""
    table = Cycle.table().c
    order = (table.ended.desc(), table.cycle.desc())
    place = func.row_number().over(partition_by=table.alias, order_by=order)
    ranked = (
        select(table.alias, table.started, table.ended, place.label("place"))
        .where(table.ended.is_not(None))
        .subquery()
    )
    rows = connection.execute(select(ranked).where(ranked.c.place == 1))
    return {row.alias: Over(row.started, row.ended) for row in rows}


def last_measurements(connection: Connection) -> dict[str, Measurement]:
    """Return alias -> the last measurement of one of its adapters."""
    adapters, table = Adapter.table().c, Evaluation.table().c
    place = func.row_number().over(partition_by=adapters.alias, order_by=table.offset.desc())
    rates = (table.adapter, table.incumbent_pass, table.candidate_pass)
    ranked = (
        select(adapters.alias, *rates, place.label("place"))
        .where(adapters.adapter == table.adapter)
        .subquery()
    )
    rows = connection.execute(select(ranked).where(ranked.c.place == 1))
    return {
        row.alias: Measurement(row.adapter, row.incumbent_pass, row.candidate_pass) for row in rows
    }


def read_measurements(connection: Connection, names: Iterable[str]) -> dict[str, Measurement]:
    """Return adapter -> its last measurement, without unmeasured adapters."""
    table = Evaluation.table().c
    rates = select(table.adapter, table.incumbent_pass, table.candidate_pass)
    rows = connection.execute(rates.where(table.adapter.in_(names)).order_by(table.offset))
    return {row.adapter: Measurement(*row) for row in rows}


def _count_by_alias(connection: Connection, alias: Any, kind: Any) -> dict[tuple[str, str], int]:
    query = select(alias, kind, func.count()).group_by(alias, kind)
    return {(name, of or OPEN): count for name, of, count in connection.execute(query)}


def _steps(*where: Any) -> Select[Any]:
    steps, adapters = LifecycleStep.table().c, Adapter.table().c
    own = (steps.kind == "adapter", steps.subject == adapters.adapter, steps.refused.is_(None))
    return select(adapters.alias).where(*own, *where).group_by(adapters.alias)


def _moves(connection: Connection, *where: Any) -> dict[tuple[str, str], int]:
    state = LifecycleStep.table().c.state
    query = _steps(state.is_not(None), *where).add_columns(state, func.count()).group_by(state)
    return {(alias, into): count for alias, into, count in connection.execute(query)}


def _last_entry(state: State) -> Select[Any]:
    steps, adapters = LifecycleStep.table().c, Adapter.table().c
    own = (steps.state == state.value, adapters.role == "agent")
    return _steps(*own).add_columns(func.max(steps.time))
