"""Read the next step of an open cycle from the tables (rule: state_machine.py).

All callers read within one `database.read_transaction`, so they agree about a cycle.
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
"""Step of a cycle that is over, but whose end the leader has not recorded yet."""


class NextStep(NamedTuple):
    """The state of an open cycle, and its next step."""

    state: CycleState
    step: Step | CycleEnd


def read_next_step(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> NextStep:
    """Return an open cycle's next step. `pair` has the base that the agent runs on now."""
    state = _read_state(connection, settings, cycle, pair)
    return NextStep(state, next_step(state))


def read_due_steps(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> tuple[CycleState, tuple[DueStep, ...]]:
    """Return all steps of an open cycle that can be taken now; () if only its end is missing."""
    state = _read_state(connection, settings, cycle, pair)
    due = list_due_steps(state)
    return state, () if isinstance(due, CycleEnd) else due


def _read_state(
    connection: "Connection", settings: "Settings", cycle: CycleRow, pair: Pair
) -> CycleState:
    """Return a cycle's state. It is cancelled if the agent runs on another base now (`pair`). It
    trains no chooser if there is an obstacle."""
    state = read_cycle_state(connection, cycle)
    if state.cancelled is None and cycle.base != pair.base:
        reason = f"{cycle.alias} runs on {pair.base} now, and not on {cycle.base}"
        state = replace(state, cancelled=reason)
    state = replace(state, trains_chooser=settings.improve.trains_chooser)
    if next_step(state) is Step.CHOOSER and find_chooser_obstacle(connection, state) is not None:
        state = replace(state, trains_chooser=False)
    return state


def read_step(connection: "Connection", settings: "Settings", cycle: CycleRow) -> str | None:
    """Return the name of a cycle's next step; None if the cycle has ended."""
    if cycle.outcome is not None:
        return None
    bases = {pair.alias: pair.base for pair in agents.present(connection)}
    pair = Pair(cycle.alias, bases.get(cycle.alias, cycle.base))
    return step_name(read_next_step(connection, settings, cycle, pair).step)


def step_name(step: Step | CycleEnd) -> str:
    """Return the name of a step; `ENDING` for an end that is not recorded yet."""
    return ENDING if isinstance(step, CycleEnd) else step.value


def step_start(state: CycleState) -> str | None:
    """Return the time of the cycle's last event, which is when its present step began."""
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
    """Return the environment of an agent's tasks, if the settings name one."""
    agent = settings.find_agent(alias)
    return None if agent is None else agent.environment


def has_passed(branch: BranchState) -> bool:
    """Return whether a branch's adapter passed its gate; a chooser has passed once it is staged."""
    end = find_branch_step(branch)
    return isinstance(end, BranchEnd) and end.outcome == "passed"


def list_passed_adapters(state: CycleState) -> "list[AdapterRow]":
    """Return the adapters of branches that passed their gate; the chooser's is left out."""
    return [
        branch.adapter
        for branch in state.branches
        if branch.adapter is not None and has_passed(branch)
    ]
