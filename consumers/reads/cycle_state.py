"""The state of an open cycle: all facts on which its next step depends, in one read. Call it within
`database.read_transaction`, so that all rows are of one moment."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from consumers.reads import learning, serving
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow
from consumers.tables import LifecycleStep, OperatorAction
from events.gate import SIBLING, GateReport
from events.jobs import CHOOSER
from events.lifecycle import State

CYCLE_CANCEL = "cycle cancel"
"""Name of the action by which a person cancels a cycle; its argument is `cycle`."""


JOBS_CANCEL = "jobs cancel"
"""Name of the action by which a person cancels a job; its argument is `job`."""


@dataclass(frozen=True, slots=True)
class BranchState:
    """A job of a cycle with branches, the job's adapter, and the adapter's past states."""

    job: JobRow
    adapter: AdapterRow | None
    been: Mapping[State, str]


@dataclass(frozen=True, slots=True)
class CycleState:
    """An open cycle, its first job and its adapter."""

    cycle: CycleRow
    job: JobRow | None
    adapter: AdapterRow | None
    """Adapter of the job, or the version that the branches became."""
    been: Mapping[State, str]
    """Each past state of the adapter -> reason of the first step into it, or the gate's reason."""
    gates: int
    """Number of gates that the adapter has passed."""
    incumbent: str | None
    """Incumbent of the alias' route; None for the base."""
    cancelled: str | None
    """Reason that a person gave for cancelling the cycle, if any."""
    branches: tuple[BranchState, ...] = ()
    """Its branches in the order of their requests; empty if the cycle has a single job."""
    chooser: BranchState | None = None
    """The job that teaches the version's chooser; None until it is requested."""
    trains_chooser: bool = False
    """Whether the chooser is an adapter of its own: a setting, which `read_cycle_state` leaves
    out."""

    @property
    def all_branches(self) -> tuple[BranchState, ...]:
        """Return the cycle's branches, and last the chooser's job if there is one."""
        return self.branches if self.chooser is None else (*self.branches, self.chooser)

    @property
    def stale_gate(self) -> str:
        """Return why the adapter's passed gate no longer holds (the incumbent changed); else ""."""
        adapter, incumbent = self.adapter, self.incumbent
        if adapter is None or adapter.gate is None or adapter.incumbent == incumbent:
            return ""
        return (
            f"{adapter.adapter} passed the gate against {adapter.incumbent or adapter.base}, and "
            f"{incumbent or adapter.base} is the incumbent now"
        )


def read_cycle_state(connection: Connection, cycle: CycleRow) -> CycleState:
    """Return the state of a cycle."""
    jobs = [] if cycle.job is None else learning.list_cycle_jobs(connection, cycle.cycle)
    job = next((job for job in jobs if job.job == cycle.job), None)
    states = [] if job is None or job.branch is None else [read_branch(connection, j) for j in jobs]
    if states:
        adapter = None if cycle.version is None else serving.adapter_row(connection, cycle.version)
    else:
        adapter = None if cycle.job is None else serving.read_job_adapter(connection, cycle.job)
    return CycleState(
        cycle=cycle,
        job=job,
        adapter=adapter,
        been={} if adapter is None else _been(connection, adapter),
        gates=0 if adapter is None else serving.count_gate_passes(connection, adapter.adapter),
        incumbent=_incumbent(connection, cycle.alias),
        cancelled=find_cycle_cancellation(connection, cycle.cycle),
        branches=tuple(state for state in states if state.job.branch is not None),
        chooser=next((state for state in states if state.job.teaches == CHOOSER), None),
    )


def read_branch(connection: Connection, job: JobRow) -> BranchState:
    """Return the state of a branch, or of the job that teaches a chooser."""
    adapter = serving.read_job_adapter(connection, job.job)
    been = {} if adapter is None else _been(connection, adapter)
    return BranchState(job, adapter, been)


def find_job_cancellations(connection: Connection) -> dict[str, str]:
    """Return open job -> reason to cancel it: it or its cycle was cancelled, or that is over."""
    named = _read_cancellations(connection, JOBS_CANCEL, "job")
    reasons = {}
    for job in learning.open_jobs(connection):
        why = named.get(job.job)
        cycle = None if job.cycle is None else learning.cycle(connection, job.cycle)
        if why is None and cycle is not None:
            why = find_cycle_cancellation(connection, cycle.cycle)
            if why is None and cycle.outcome is not None:
                why = f"its cycle is over: {cycle.ended_because}"
        if why is not None:
            reasons[job.job] = why
    return reasons


def _been(connection: Connection, adapter: AdapterRow) -> dict[State, str]:
    steps = LifecycleStep.table().c
    query = select(steps.state, steps.reason).where(
        steps.kind == "adapter", steps.subject == adapter.adapter, steps.state.is_not(None)
    )
    been: dict[State, str] = {}
    for state, reason in connection.execute(query.order_by(steps.number)):
        been.setdefault(State(state), reason or _explain_gate(adapter.gate))
    return been


def _explain_gate(report: GateReport | None) -> str:
    """Return the gate's decision and the failed checks that decided it."""
    if report is None:
        return ""
    failed = [
        check
        for check in report.checks
        if check.verdict != "PASS" and not check.name.startswith(SIBLING)
    ]
    details = "; ".join(
        f"{check.name} {check.value:+.3f} (limit {check.limit:+.3f}, {check.tasks} tasks)"
        for check in failed
    )
    return f"gate {report.decision}: {details or 'every check passed'}"


def _incumbent(connection: Connection, alias: str) -> str | None:
    route = serving.route_row(connection, alias)
    return None if route is None else route.standing.incumbent


def find_cycle_cancellation(connection: Connection, cycle: str) -> str | None:
    """Return a sentence with the person who cancelled a cycle and the reason, or None."""
    return _read_cancellations(connection, CYCLE_CANCEL, "cycle").get(cycle)


def _read_cancellations(connection: Connection, action: str, what: str) -> dict[str, str]:
    """Return name of the cycle or job -> sentence on its first cancellation by this action."""
    actions = OperatorAction.table().c
    query = select(OperatorAction.table()).where(actions.action == action)
    reasons: dict[str, str] = {}
    for row in connection.execute(query.order_by(actions.offset)):
        name = json.loads(row.arguments).get(what)
        if name is not None:
            reason = f": {row.reason}" if row.reason else ""
            reasons.setdefault(name, f"{row.actor} called it off{reason}")
    return reasons
