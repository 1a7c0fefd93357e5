"""A cycle as a process manager: a pure function from the log to the next step.

    step        role       module
    DIAGNOSE    schedule   leader.py
    DIRECT      schedule   planner.py (controller/)
    PROPOSE     schedule   planner.py (proposer/), job_spec.py
    TRAIN       work       jobs/training_runs.py
    STAGE       work       worker.py (serving/staging.py)
    EVALUATE    work       worker.py (evaluation/candidate_evaluation.py)
    CHOOSER     schedule   planner.py
    COMPOSE     work       worker.py
    ROUTE       work       worker.py (serving/publisher.py)
    WATCH       work       serving/canary_monitor.py
    an end      schedule   leader.py

If another incumbent answers before the adapter is routed, the adapter is evaluated again, up to
`MOST_GATES` gates. Each branch of a cycle takes TRAIN, STAGE and EVALUATE until it passed or
failed. Then the branches that passed become the members of one version, which takes the steps of an
adapter. A member's gate is never repeated: the version's own gate follows. Guarantee: the log is
the only memory. Each step ends in an event whose id follows from the cycle, so a step may be taken
twice, also by two processes at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from consumers.reads.cycle_state import BranchState, CycleState
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow
from events.jobs import CHOOSER
from events.learning import CycleOutcome
from events.lifecycle import State

Role = Literal["schedule", "work"]


class Step(StrEnum):
    """The steps of a cycle, in order."""

    DIAGNOSE = "diagnose"
    """Close a round of the training history at the cycle's position."""
    DIRECT = "direct"
    PROPOSE = "propose"
    """The Proposer writes tasks and checks them; then a job is requested."""
    TRAIN = "train"
    STAGE = "stage"
    """Every replica loads the adapter and is proven to answer with it."""
    EVALUATE = "evaluate"
    """Adapter and incumbent play fresh tasks, and the gate decides."""
    CHOOSER = CHOOSER
    """A job is requested that trains a chooser among the members that passed."""
    COMPOSE = "compose"
    """The members and the chooser become one version."""
    ROUTE = "route"
    WATCH = "watch"
    """Live traffic decides between candidate and incumbent (serving/canary_monitor.py)."""


OWNER: Final[Mapping[Step, Role]] = {
    Step.DIAGNOSE: "schedule",
    Step.DIRECT: "schedule",
    Step.PROPOSE: "schedule",
    Step.TRAIN: "work",
    Step.STAGE: "work",
    Step.EVALUATE: "work",
    Step.CHOOSER: "schedule",
    Step.COMPOSE: "work",
    Step.ROUTE: "work",
    Step.WATCH: "work",
}
"""Step -> the role that takes it."""

MOST_GATES: Final = 3
"""Most gates that an adapter passes before it is routed; each new incumbent requires another."""

STOPS: Final = ("diagnose", "propose", "train", "gate", "compose", "canary", "route")
"""Stages of a cycle that users see."""


@dataclass(frozen=True, slots=True)
class CycleEnd:
    """The outcome of a cycle and its reason."""

    outcome: CycleOutcome
    reason: str


class DueStep(NamedTuple):
    """A step that is to be taken now, for the whole cycle or for one branch."""

    step: Step
    branch: BranchState | None = None
    """The branch that needs the step; None if the whole cycle needs it."""


BranchOutcome = Literal["passed", "rejected", "failed", "competence_gap", "cancelled"]


@dataclass(frozen=True, slots=True)
class BranchEnd:
    """The outcome of one branch of a cycle and its reason."""

    outcome: BranchOutcome
    reason: str = ""


def next_step(state: CycleState) -> Step | CycleEnd:
    """Return an open cycle's next step or outcome; of branches, the least advanced one's step."""
    if state.adapter is None and state.branches:
        due = _list_branch_steps(state)
        return due if isinstance(due, CycleEnd) else min(due, key=_rank_step).step
    if state.adapter is not None:
        step = _step_after_adapter(state, state.adapter)
        called_off = state.cancelled is not None and step in _BEFORE_TRAFFIC
        return CycleEnd("cancelled", state.cancelled or "") if called_off else step
    if state.job is not None and state.job.outcome is not None:
        return _step_after_job(state.job)
    if state.cancelled is not None and state.job is None:
        return CycleEnd("cancelled", state.cancelled)
    if state.job is not None:
        return Step.TRAIN
    if state.cycle.round is None:
        return Step.DIAGNOSE
    return Step.DIRECT if state.cycle.directive is None else Step.PROPOSE


def list_due_steps(state: CycleState) -> tuple[DueStep, ...] | CycleEnd:
    """Return all due steps (the cycle's, or those of its branches), or the cycle's outcome."""
    if state.adapter is None and state.branches:
        return _list_branch_steps(state)
    step = next_step(state)
    return step if isinstance(step, CycleEnd) else (DueStep(step),)


def find_branch_step(branch: BranchState) -> Step | BranchEnd:
    """Return a branch's next step, or its outcome if it has ended."""
    adapter, job = branch.adapter, branch.job
    if adapter is None:
        if job.outcome is None or job.outcome == "trained":
            # The role `work` records the adapter after the job's end.
            return Step.TRAIN
        return BranchEnd(job.outcome, job.reason or "")
    for state in _OUT:
        if state in branch.been:
            return BranchEnd("rejected", branch.been[state] or f"it is {state}")
    if adapter.state is State.PRODUCED:
        return Step.STAGE
    if job.branch is None or adapter.state in _PASSED:
        return BranchEnd("passed")
    return Step.EVALUATE


_OUT: Final = (State.REJECTED, State.ROLLED_BACK, State.DRAINING)
"""States that keep an adapter out of its cycle's version, even if it leaves the state again."""
_PASSED: Final = (State.GATED, State.CANARY, State.PROMOTED)


def _rank_step(due: DueStep) -> int:
    return list(Step).index(due.step)


def _list_branch_steps(state: CycleState) -> tuple[DueStep, ...] | CycleEnd:
    """Return the branches' steps; if no branch needs one, the step that composes the version."""
    steps = [(branch, find_branch_step(branch)) for branch in state.all_branches]
    due = tuple(DueStep(step, branch) for branch, step in steps if isinstance(step, Step))
    if state.cancelled is not None:
        running = tuple(item for item in due if item.step is Step.TRAIN)
        return running or CycleEnd("cancelled", state.cancelled)
    if due:
        return due
    ends = [(branch, end) for branch, end in steps if isinstance(end, BranchEnd)]
    members = [(branch, end) for branch, end in ends if branch.job.branch is not None]
    if all(end.outcome != "passed" for _, end in members):
        return _end_without_members(members)
    # A chooser that learnt nothing does no harm: the base then chooses among the members.
    asks = state.trains_chooser and state.chooser is None
    return (DueStep(Step.CHOOSER if asks else Step.COMPOSE),)


_CYCLE_OUTCOMES: Final[Mapping[BranchOutcome, CycleOutcome]] = {
    "rejected": "rejected",
    "failed": "failed",
    "competence_gap": "nothing_learnable",
    "cancelled": "cancelled",
}
"""Outcome of a branch -> the cycle's if no branch passed; the first one that occurs counts."""


def _end_without_members(ends: Sequence[tuple[BranchState, BranchEnd]]) -> CycleEnd:
    """Return the end of a cycle in which no branch passed, with each branch's reason."""
    seen = {end.outcome for _, end in ends}
    outcome = next(cycle for branch, cycle in _CYCLE_OUTCOMES.items() if branch in seen)
    reasons = (f"{branch.job.branch} {end.outcome}: {end.reason}" for branch, end in ends)
    return CycleEnd(outcome, "; ".join(reasons).replace("competence_gap", "not learnable"))


def _step_after_job(job: JobRow) -> Step | CycleEnd:
    if job.outcome == "trained":
        # The role `work` records the adapter after the job's end.
        return Step.TRAIN
    if job.outcome == "competence_gap":
        return CycleEnd("nothing_learnable", job.reason or "")
    return CycleEnd("cancelled" if job.outcome == "cancelled" else "failed", job.reason or "")


_STEPS: Final[Mapping[State, Step]] = {
    State.PRODUCED: Step.STAGE,
    State.STAGED: Step.EVALUATE,
    State.EVALUATED: Step.EVALUATE,
    State.GATED: Step.ROUTE,
    State.CANARY: Step.WATCH,
}
"""State of an adapter -> next step. An unloaded adapter is never staged a second time."""

_BEFORE_TRAFFIC: Final = (Step.STAGE, Step.EVALUATE, Step.ROUTE)
"""Steps before the adapter's first session; taking it back later is a rollback, and no end."""

_ENDS: Final[tuple[tuple[State, CycleOutcome], ...]] = (
    (State.PROMOTED, "promoted"),
    (State.ROLLED_BACK, "rolled_back"),
    (State.REJECTED, "rejected"),
)
"""State that was ever reached -> the cycle's outcome, with that move's reason. The leader may look
late, when the adapter has moved on; a promotion that is taken back later still counts."""


def _step_after_adapter(state: CycleState, adapter: AdapterRow) -> Step | CycleEnd:
    for reached, outcome in _ENDS:
        if reached in state.been:
            return CycleEnd(outcome, state.been[reached])
    taken_back = state.been.get(State.DRAINING, "")
    if State.CANARY in state.been and adapter.state is not State.CANARY:
        return CycleEnd("inconclusive", taken_back)
    if adapter.state is State.GATED and state.stale_gate:
        return _step_after_stale_gate(state)
    if adapter.state in _STEPS:
        return _STEPS[adapter.state]
    return CycleEnd("cancelled", taken_back or f"the adapter is {adapter.state}")


def _step_after_stale_gate(state: CycleState) -> Step | CycleEnd:
    """Return another evaluation, or the cycle's end after `MOST_GATES` gates."""
    if state.gates < MOST_GATES:
        return Step.EVALUATE
    return CycleEnd(
        "cancelled",
        f"{state.stale_gate}; it has passed {state.gates} gates, and no more are tried",
    )
