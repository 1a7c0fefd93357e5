"""How far an open cycle has come: everything that its next step depends on, in one read.

Rows of several tables in one place, for the process manager (daemon/cycle/state_machine.py);
within one `database.reading`, which is one moment of the tables.
"""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, select

from consumers.reads import learning, serving
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow
from consumers.tables import Adapter, OperatorAction, ServingStep
from events.lifecycle import State

CYCLE_CANCEL = "cycle cancel"
"""What a person's action is called that calls a cycle off; it names the `cycle`."""


JOBS_CANCEL = "jobs cancel"
"""What a person's action is called that calls a job off; it names the `job`."""


@dataclass(frozen=True, slots=True)
class CycleStanding:
    """An open cycle, its job and its adapter."""

    cycle: CycleRow
    job: JobRow | None
    adapter: AdapterRow | None
    been: frozenset[State]
    """Every state that the adapter ever was in."""
    gates: int
    """That the adapter has passed."""
    incumbent: str | None
    """The adapter that the route of the alias names as incumbent; None for the base."""
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
        gates=0 if adapter is None else serving.gates_passed(connection, adapter.adapter),
        incumbent=_incumbent(connection, cycle.alias),
        cancelled=_called_off(connection, cycle.cycle),
    )


def called_off_jobs(connection: Connection) -> dict[str, str]:
    """Open jobs that nobody wants any more, and why: their cycle is over or was called off, or they
    were called off themselves."""
    named = _named(connection, JOBS_CANCEL, "job")
    found = {}
    for job in learning.open_jobs(connection):
        why = named.get(job.job)
        cycle = None if job.cycle is None else learning.cycle(connection, job.cycle)
        if why is None and cycle is not None:
            why = _called_off(connection, cycle.cycle)
            if why is None and cycle.outcome is not None:
                why = f"its cycle is over: {cycle.ended_because}"
        if why is not None:
            found[job.job] = why
    return found


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


def _incumbent(connection: Connection, alias: str) -> str | None:
    route = serving.route_row(connection, alias)
    return None if route is None else route.standing.incumbent


def _called_off(connection: Connection, cycle: str) -> str | None:
    return _named(connection, CYCLE_CANCEL, "cycle").get(cycle)


def _named(connection: Connection, action: str, what: str) -> dict[str, str]:
    """What people called off by an action: its name -> who did, and why; the first counts."""
    actions = OperatorAction.table().c
    query = select(OperatorAction.table()).where(actions.action == action)
    found: dict[str, str] = {}
    for row in connection.execute(query.order_by(actions.offset)):
        name = json.loads(row.arguments).get(what)
        if name is not None:
            reason = f": {row.reason}" if row.reason else ""
            found.setdefault(name, f"{row.actor} called it off{reason}")
    return found
