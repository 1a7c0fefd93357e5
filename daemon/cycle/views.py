"""Read the next step of an open cycle from the tables.

    read_next_step(connection, settings, cycle, pair)   how far a cycle is, and its next step
    read_due_steps(connection, settings, cycle, pair)   the same, with the next step of each branch
    read_step(connection, settings, cycle)              the next step as text, for who only looks

The leader, the worker, the status document, the metrics and doctor all ask here, within one
`database.read_transaction`, so they agree about a cycle. The rule itself is pure
(state_machine.py).
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents
from consumers.reads.cycle_state import BranchState, CycleState, read_cycle_state
from consumers.reads.learning import CycleRow
from daemon.cycle.methods import find_chooser_obstacle
from daemon.cycle.state_machine import (
    BranchEnd,
    CycleEnd,
    DueStep,
    Step,
    find_branch_step,
    list_due_steps,
    next_step,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Settings

ENDING: Final = "end"
"""The step of a cycle that is over but for the leader's event."""


class NextStep(NamedTuple):
    """How far an open cycle is, and what follows."""

    state: CycleState
    step: Step | CycleEnd
    """What it needs next, or how it ended."""


def read_next_step(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> NextStep:
    """What an open cycle needs next; `pair` names the base on which the agent runs now."""
    state = _read_state(connection, settings, cycle, pair)
    return NextStep(state, next_step(state))


def read_due_steps(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> tuple[CycleState, tuple[DueStep, ...]]:
    """Everything that an open cycle needs now; nothing of one that is over but for its end."""
    state = _read_state(connection, settings, cycle, pair)
    due = list_due_steps(state)
    return state, () if isinstance(due, CycleEnd) else due


def _read_state(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> CycleState:
    """Return a cycle as the process manager sees it: on another base than `pair` names it is called
    off, and a chooser that nothing can teach is none."""
    state = read_cycle_state(connection, cycle)
    if state.cancelled is None and cycle.base != pair.base:
        reason = f"{cycle.alias} runs on {pair.base} now, and not on {cycle.base}"
        state = replace(state, cancelled=reason)
    state = replace(state, trains_chooser=settings.improve.trains_chooser)
    if next_step(state) is Step.CHOOSER and find_chooser_obstacle(connection, state) is not None:
        state = replace(state, trains_chooser=False)
    return state


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


def find_environment(settings: "Settings", alias: str) -> str | None:
    """The environment in which the tasks of an agent are played; None without one."""
    agent = settings.find_agent(alias)
    return None if agent is None else agent.environment


def has_passed(branch: BranchState) -> bool:
    """Return whether the adapter of a branch passed its gate, or that of a chooser is staged."""
    end = find_branch_step(branch)
    return isinstance(end, BranchEnd) and end.outcome == "passed"


def list_passed_adapters(state: CycleState) -> "list[AdapterRow]":
    """Return the adapters of a cycle's branches that passed the gate of a member."""
    return [
        branch.adapter
        for branch in state.branches
        if branch.adapter is not None and has_passed(branch)
    ]
