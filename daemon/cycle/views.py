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

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents
from consumers.reads.cycle_state import BranchState, CycleState, read_cycle_state
from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import Scheduling, scheduling
from daemon.core.task_kinds import find_kinds
from daemon.cycle.scheduler import Facts
from daemon.cycle.state_machine import (
    AdapterView,
    CycleEnd,
    JobView,
    Step,
    View,
    list_due_steps,
    next_step,
)
from daemon.methods.skills.panel_parts import (
    build_branch_view,
    explain_states,
    find_router_obstacle,
)
from events.envelope import parse_timestamp

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Agent, Settings

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
    branches = {branch.job.skill: branch for branch in (*state.branches, state.router) if branch}
    return state, [
        DueBranch(item.step, None if item.branch is None else branches[item.branch.skill])
        for item in due
    ]


def _read_view(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> tuple[CycleState, View]:
    """A cycle, and how the process manager sees it. A router that nothing can teach is none."""
    state = read_cycle_state(connection, cycle)
    view = build_view(state, settings, pair)
    if next_step(view) is Step.ROUTER and find_router_obstacle(connection, state) is not None:
        view = replace(view, trains_router=False)
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
    branches = [branch for branch in (*state.branches, state.router) if branch is not None]
    jobs = [state.job, *(branch.job for branch in branches)]
    adapters = [state.adapter, *(branch.adapter for branch in branches)]
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
) -> Facts | None:
    """What the scheduler decides on; None for an agent whose tasks cannot be played."""
    environment = find_environment(settings, pair.alias)
    if environment is None:
        return None
    kinds = find_kinds(settings, environment)
    unread = scheduling(connection, pair.alias, pair.base, now, kinds)
    return build_facts(unread, pair, environment)


def build_facts(unread: Scheduling, pair: Pair, environment: str) -> Facts:
    """What the scheduler decides on."""
    return Facts(
        alias=pair.alias,
        base=pair.base,
        environment=environment,
        position=unread.position,
        number=unread.number,
        is_open=unread.open_cycle is not None,
        rollouts=unread.rollouts,
        failures=unread.failed,
        priority=unread.priority,
        first_seen=_parse_moment(unread.first_seen),
        last_started=_parse_moment(unread.last_started),
        last_ended=_parse_moment(unread.last_ended),
        fruitless=unread.fruitless,
        minutes_today=unread.job_seconds / 60,
        asked=unread.asked,
    )


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
            explain_states(adapter, state.been),
            _explain_stale_gate(state),
            state.gates,
        ),
        cancelled=cancelled,
        branches=tuple(build_branch_view(branch) for branch in state.branches),
        router=None if state.router is None else build_branch_view(state.router),
        trains_router=settings.improve.skills_router != "labels",
    )


def _explain_stale_gate(state: CycleState) -> str:
    """Why the gate of a cycle's adapter counts no more: the incumbent changed after it."""
    adapter, incumbent = state.adapter, state.incumbent
    if adapter is None or adapter.gate is None or adapter.incumbent == incumbent:
        return ""
    return (
        f"{adapter.adapter} passed the gate against {adapter.incumbent or adapter.base}, and "
        f"{incumbent or adapter.base} is the incumbent now"
    )


def _parse_moment(text: str | None) -> datetime | None:
    return None if text is None else parse_timestamp(text)
