"""How far an open cycle has come: everything that its next step depends on, in one read.

Rows of several tables in one place, for the process manager (daemon/cycle.py); within one
`database.reading`, which is one moment of the tables.
"""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, select

from consumers import learning, serving
from consumers.learning import CycleRow, JobRow
from consumers.serving import AdapterRow
from consumers.tables import Adapter, OperatorAction, ServingStep
from events.lifecycle import State

CYCLE_CANCEL = "cycle cancel"
"""What a person's action is called that calls a cycle off; it names the `cycle`."""


@dataclass(frozen=True, slots=True)
class CycleStanding:
    """An open cycle, its job and its adapter."""

    cycle: CycleRow
    job: JobRow | None
    adapter: AdapterRow | None
    been: frozenset[State]
    """Every state that the adapter ever was in."""
    cancelled: str | None
    """Why a person called it off; None where nobody did."""


def standing(connection: Connection, cycle: CycleRow) -> CycleStanding:
    """How far a cycle has come."""
    job = None if cycle.job is None else learning.job(connection, cycle.job)
    adapter = None if cycle.job is None else _adapter_of(connection, cycle.job)
    return CycleStanding(
        cycle=cycle,
        job=job,
        adapter=adapter,
        been=frozenset() if adapter is None else _been(connection, adapter.adapter),
        cancelled=_called_off(connection, cycle.cycle),
    )


def _adapter_of(connection: Connection, job: str) -> AdapterRow | None:
    adapters = Adapter.table().c
    name = connection.execute(select(adapters.adapter).where(adapters.job == job)).scalar()
    return None if name is None else serving.adapter_row(connection, name)


def _been(connection: Connection, adapter: str) -> frozenset[State]:
    steps = ServingStep.table().c
    query = select(steps.state).where(
        steps.kind == "adapter", steps.subject == adapter, steps.state.is_not(None)
    )
    return frozenset(State(state) for state in connection.execute(query).scalars())


def _called_off(connection: Connection, cycle: str) -> str | None:
    actions = OperatorAction.table().c
    query = select(actions).where(actions.action == CYCLE_CANCEL).order_by(actions.offset)
    for row in connection.execute(query):
        if json.loads(row.arguments).get("cycle") == cycle:
            return f"{row.actor} called it off" + (f": {row.reason}" if row.reason else "")
    return None
