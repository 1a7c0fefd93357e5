"""What an open cycle needs next, and what the scheduler decides on, read from the tables.

    read_next_step(connection, settings, cycle, pair)   how far a cycle is, and its next step
    read_due_steps(connection, settings, cycle, pair)   the same, with the next step of each branch
    read_facts(connection, settings, pair, now)         what `scheduler.decide` decides on
    read_step(connection, settings, cycle)              the next step as text, for who only looks
    find_agent(settings, alias)                         what the settings say of an agent

The leader, the worker, the status document, the metrics and doctor all ask here, within one
`database.read_transaction`, so they agree about a cycle. The rule itself is pure
(state_machine.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents
from consumers.reads.cycle_state import BranchState, CycleState, read_cycle_state
from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import Scheduling, scheduling
from daemon.core.task_kinds import find_kinds
from daemon.cycle.methods import find_chooser_obstacle
from daemon.cycle.state_machine import (
    AdapterView,
    BranchEnd,
    BranchView,
    CycleEnd,
    JobView,
    Step,
    View,
    find_branch_step,
    list_due_steps,
    next_step,
)
from events.gate import SIBLING

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Agent, Settings
    from events.gate import GateReport
    from events.lifecycle import State

ENDING: Final = "end"
"""The step of a cycle that is over but for the leader's event."""


class NextStep(NamedTuple):
    """How far an open cycle is, and what follows."""

    state: CycleState
    step: Step | CycleEnd
    """What it needs next, or how it ended."""


class DueBranch(NamedTuple):
    """A step that can be taken now."""

    step: Step
    branch: BranchState | None
    """Whose; None: the cycle's."""


def read_next_step(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> NextStep:
    """What an open cycle needs next; `pair` names the base on which the agent runs now."""
    state, view = _read_view(connection, settings, cycle, pair)
    return NextStep(state, next_step(view))


def read_due_steps(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> tuple[CycleState, list[DueBranch]]:
    """Everything that an open cycle needs now; nothing of one that is over but for its end."""
    state, view = _read_view(connection, settings, cycle, pair)
    due = list_due_steps(view)
    if isinstance(due, CycleEnd):
        return state, []
    branches = {branch.job.branch: branch for branch in state.all_branches}
    return state, [
        DueBranch(item.step, None if item.branch is None else branches[item.branch.name])
        for item in due
    ]


def _read_view(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> tuple[CycleState, View]:
    """Return a cycle, and how the process manager sees it. A chooser that nothing can teach is
    none."""
    state = read_cycle_state(connection, cycle)
    view = build_view(state, settings, pair)
    if next_step(view) is Step.CHOOSER and find_chooser_obstacle(connection, state) is not None:
        view = replace(view, trains_chooser=False)
    return state, view


def read_step(connection: "Connection", settings: "Settings", cycle: CycleRow) -> str | None:
    """The next step of a cycle as text; None where the cycle is over."""
    if cycle.outcome is not None:
        return None
    bases = {pair.alias: pair.base for pair in agents.present(connection)}
    pair = Pair(cycle.alias, bases.get(cycle.alias, cycle.base))
    return step_name(read_next_step(connection, settings, cycle, pair).step)


def step_name(step: Step | CycleEnd) -> str:
    """A step as text: `ENDING` for a cycle whose end only has to be recorded."""
    return ENDING if isinstance(step, CycleEnd) else step.value


def step_start(state: CycleState) -> str | None:
    """When the last thing happened that brought a cycle to where it is."""
    cycle = state.cycle
    jobs = [state.job, *(branch.job for branch in state.all_branches)]
    adapters = [state.adapter, *(branch.adapter for branch in state.all_branches)]
    moments = (
        cycle.started, cycle.diagnosed, cycle.directed,
        *(moment for job in jobs if job is not None for moment in (job.requested, job.ended)),
        *(adapter.since for adapter in adapters if adapter is not None),
    )  # fmt: skip
    return max((moment for moment in moments if moment is not None), default=None)


def find_agent(settings: "Settings", alias: str) -> "Agent | None":
    """What the settings say of an agent; None where they do not name it."""
    return next((agent for agent in settings.agents if agent.alias == alias), None)


def find_environment(settings: "Settings", alias: str) -> str | None:
    """The environment in which the tasks of an agent are played; None without one."""
    agent = find_agent(settings, alias)
    return None if agent is None else agent.environment


def read_facts(
    connection: "Connection", settings: "Settings", pair: Pair, now: datetime
) -> Scheduling | None:
    """What the scheduler decides on; None for an agent whose tasks cannot be played."""
    environment = find_environment(settings, pair.alias)
    if environment is None:
        return None
    kinds = find_kinds(settings, environment)
    return scheduling(connection, pair.alias, pair.base, now, kinds)


def build_view(state: CycleState, settings: "Settings", pair: Pair) -> View:
    """A cycle as the process manager sees it; `pair` says on which base the agent runs now."""
    cycle, job, adapter = state.cycle, state.job, state.adapter
    cancelled = state.cancelled
    if cancelled is None and cycle.base != pair.base:
        cancelled = f"{cycle.alias} runs on {pair.base} now, and not on {cycle.base}"
    return View(
        cycle=cycle.cycle,
        diagnosed=cycle.round is not None,
        directed=cycle.directive is not None,
        job=None if job is None or state.branches else JobView(job.outcome, job.reason or ""),
        adapter=None
        if adapter is None
        else AdapterView(
            adapter.state,
            _explain_states(adapter, state.been),
            _explain_stale_gate(state),
            state.gates,
        ),
        cancelled=cancelled,
        branches=tuple(build_branch_view(branch) for branch in state.branches),
        chooser=None if state.chooser is None else build_branch_view(state.chooser),
        trains_chooser=settings.improve.trains_chooser,
    )


def build_branch_view(branch: BranchState) -> BranchView:
    """Return a branch of a cycle as the process manager sees it."""
    job, adapter = branch.job, branch.adapter
    return BranchView(
        job.branch,
        JobView(job.outcome, job.reason or ""),
        None
        if adapter is None
        else AdapterView(adapter.state, _explain_states(adapter, branch.been)),
    )


def has_passed(branch: BranchState) -> bool:
    """Return whether the adapter of a branch passed its gate, or that of a chooser is staged."""
    end = find_branch_step(build_branch_view(branch))
    return isinstance(end, BranchEnd) and end.outcome == "passed"


def list_passed_adapters(state: CycleState) -> "list[AdapterRow]":
    """Return the adapters of a cycle's branches that passed the gate of a member."""
    return [
        branch.adapter
        for branch in state.branches
        if branch.adapter is not None and has_passed(branch)
    ]


def _explain_states(adapter: "AdapterRow", been: "Mapping[State, str]") -> "dict[State, str]":
    """Return each state that an adapter was in with the reason in words: where a gate decided, its
    checks."""
    return {step: reason or _explain_gate(adapter.gate) for step, reason in been.items()}


def _explain_gate(report: "GateReport | None") -> str:
    """Return why the gate said no, in words; without the checks that decide nothing."""
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


def _explain_stale_gate(state: CycleState) -> str:
    """Why the gate of a cycle's adapter counts no more: the incumbent changed after it."""
    adapter, incumbent = state.adapter, state.incumbent
    if adapter is None or adapter.gate is None or adapter.incumbent == incumbent:
        return ""
    return (
        f"{adapter.adapter} passed the gate against {adapter.incumbent or adapter.base}, and "
        f"{incumbent or adapter.base} is the incumbent now"
    )
