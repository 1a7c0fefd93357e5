"""What a cycle needs next: every state of its job and its adapter, and nothing in between."""

from dataclasses import replace
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.reads.cycle_state import BranchState, CycleState
from consumers.reads.learning import JobRow
from daemon.cycle.state_machine import (
    MOST_GATES,
    OWNER,
    BranchEnd,
    CycleEnd,
    Step,
    find_branch_step,
    list_due_steps,
    next_step,
)
from events.jobs import TaskPool
from events.learning import Directive, JobOutcome
from events.lifecycle import NEXT, State
from tests.daemon.cycle.test_account import candidate, cycle, job
from tests.daemon.serving.test_desired_state import adapter

POOLS: Final = (TaskPool(name="p", share=1.0, tasks=("t",)),)


def job_of(outcome: JobOutcome | None, reason: str = "", name: str | None = None) -> JobRow:
    return replace(job("trained", POOLS), outcome=outcome, reason=reason, branch=name)


BEGUN: Final = CycleState(
    cycle=replace(cycle("promoted", None), round=None, outcome=None, ended_because=None),
    job=None, adapter=None, been={}, gates=0, incumbent=None, cancelled=None,
)  # fmt: skip
DIAGNOSED: Final = replace(BEGUN, cycle=replace(BEGUN.cycle, round=0))
DIRECTED: Final = replace(BEGUN, cycle=replace(DIAGNOSED.cycle, directive=Directive(quotas=())))
TRAINED: Final = replace(DIRECTED, job=job_of("trained"))
CALLED_OFF: Final = "ada called it off"


def after(*states: State) -> CycleState:
    """A cycle whose adapter went this way; the reason of each step is `why` and its state."""
    been = {state: f"why {state}" for state in states}
    return replace(TRAINED, adapter=adapter("a", states[-1]), been=been)


def test_the_leader_goes_from_a_round_over_a_directive_to_tasks() -> None:
    assert next_step(BEGUN) is Step.DIAGNOSE
    assert next_step(DIAGNOSED) is Step.DIRECT
    assert next_step(DIRECTED) is Step.PROPOSE
    assert {OWNER[step] for step in (Step.DIAGNOSE, Step.DIRECT, Step.PROPOSE)} == {"schedule"}


def test_an_open_job_is_run_and_a_trained_one_waits_for_its_adapter() -> None:
    assert next_step(replace(DIRECTED, job=job_of(None))) is Step.TRAIN
    assert next_step(TRAINED) is Step.TRAIN


@pytest.mark.parametrize(
    ("outcome", "cycle"),
    [
        ("competence_gap", "nothing_learnable"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
    ],
)
def test_a_job_that_left_nothing_ends_the_cycle(outcome: str, cycle: str) -> None:
    ended = job_of(outcome, "its words")  # type: ignore[arg-type]
    assert next_step(replace(DIRECTED, job=ended)) == CycleEnd(cycle, "its words")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ((State.PRODUCED,), Step.STAGE),
        ((State.PRODUCED, State.STAGED), Step.EVALUATE),
        ((State.STAGED, State.EVALUATED), Step.EVALUATE),
        ((State.EVALUATED, State.GATED), Step.ROUTE),
        ((State.GATED, State.CANARY), Step.WATCH),
    ],
)
def test_an_adapter_goes_on_from_where_it_is(way: tuple[State, ...], expected: Step) -> None:
    assert next_step(after(*way)) is expected
    assert OWNER[expected] == "work"


@pytest.mark.parametrize(
    ("way", "outcome", "decisive"),
    [
        ((State.CANARY, State.PROMOTED), "promoted", State.PROMOTED),
        ((State.PROMOTED, State.ROLLED_BACK), "promoted", State.PROMOTED),
        ((State.PROMOTED, State.DRAINING, State.UNLOADED), "promoted", State.PROMOTED),
        ((State.CANARY, State.ROLLED_BACK), "rolled_back", State.ROLLED_BACK),
        ((State.EVALUATED, State.REJECTED), "rejected", State.REJECTED),
        ((State.REJECTED, State.UNLOADED, State.COLLECTED), "rejected", State.REJECTED),
        ((State.CANARY, State.DRAINING), "inconclusive", State.DRAINING),
        ((State.CANARY, State.DRAINING, State.UNLOADED), "inconclusive", State.DRAINING),
        ((State.STAGED, State.DRAINING), "cancelled", State.DRAINING),
        ((State.STAGED, State.DRAINING, State.UNLOADED), "cancelled", State.DRAINING),
    ],
)
def test_how_an_adapter_came_out_is_how_its_cycle_ends(
    way: tuple[State, ...], outcome: str, decisive: State
) -> None:
    """Also where the leader looks late, when the adapter has gone on for another reason."""
    end = next_step(after(*way))
    assert isinstance(end, CycleEnd)
    assert (end.outcome, end.reason) == (outcome, f"why {decisive}")


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        (1, Step.EVALUATE),
        (MOST_GATES - 1, Step.EVALUATE),
        (
            MOST_GATES,
            CycleEnd(
                "cancelled",
                "a passed the gate against former, and other is the incumbent now; it has passed "
                f"{MOST_GATES} gates, and no more are tried",
            ),
        ),
    ],
)
def test_a_gate_against_a_former_incumbent_sends_back_to_evaluation_a_few_times(
    gates: int, expected: Step | CycleEnd
) -> None:
    passed = adapter("a", State.GATED, gate=candidate().gate, incumbent="former")
    gated = replace(TRAINED, adapter=passed, been={State.GATED: ""}, gates=gates, incumbent="other")
    assert next_step(gated) == expected
    assert isinstance(next_step(replace(gated, cancelled=CALLED_OFF)), CycleEnd)
    routed = replace(gated, adapter=replace(passed, state=State.CANARY))
    assert next_step(routed) is Step.WATCH
    assert next_step(replace(gated, incumbent="former")) is Step.ROUTE


@pytest.mark.parametrize(
    "state",
    [BEGUN, DIRECTED, after(State.PRODUCED), after(State.STAGED), after(State.GATED)],
)
def test_what_was_called_off_before_it_answered_anybody_ends(state: CycleState) -> None:
    assert next_step(replace(state, cancelled=CALLED_OFF)) == CycleEnd("cancelled", CALLED_OFF)


def test_what_was_called_off_waits_for_its_job_to_stop() -> None:
    running = replace(DIRECTED, job=job_of(None), cancelled=CALLED_OFF)
    assert next_step(running) is Step.TRAIN
    stopped = replace(running, job=job_of("cancelled", CALLED_OFF))
    assert next_step(stopped) == CycleEnd("cancelled", CALLED_OFF)


def test_what_answers_somebody_is_taken_back_and_not_called_off() -> None:
    assert next_step(replace(after(State.CANARY), cancelled=CALLED_OFF)) is Step.WATCH


@st.composite
def _ways(draw: st.DrawFn) -> tuple[State, ...]:
    """Any life of an adapter, step by step as `NEXT` allows."""
    way = [State.PRODUCED]
    for _ in range(draw(st.integers(0, 12))):
        following_states = sorted(NEXT[way[-1]])
        if not following_states:
            break
        way.append(draw(st.sampled_from(following_states)))
    return tuple(way)


@given(_ways(), st.sampled_from([None, CALLED_OFF]))
def test_an_end_is_final_once_live_traffic_or_the_gate_has_spoken(
    way: tuple[State, ...], cancelled: str | None
) -> None:
    """Whatever an adapter lives through later, the outcome that counts does not change (a person
    may still promote a rejected one: then that is how it came out)."""
    found = next_step(replace(after(*way), cancelled=cancelled))
    been = set(way)
    if State.PROMOTED in been:
        assert found == CycleEnd("promoted", "why promoted")
    elif State.ROLLED_BACK in been:
        assert found == CycleEnd("rolled_back", "why rolled_back")
    elif isinstance(found, Step):
        assert OWNER[found] == "work"
        assert found is Step.WATCH or cancelled is None


def branch(name: str | None, *states: State, outcome: JobOutcome | None = "trained") -> BranchState:
    been = {state: f"why {state}" for state in states}
    left = adapter("a", states[-1]) if states else None
    return BranchState(job_of(outcome, f"{name} is {outcome}", name), left, been)


PASSED: Final = (State.PRODUCED, State.STAGED, State.EVALUATED, State.GATED)
REFUSED: Final = (State.PRODUCED, State.STAGED, State.EVALUATED, State.REJECTED)


def test_a_rejected_branch_costs_the_others_nothing() -> None:
    state = replace(
        DIRECTED,
        branches=(branch("a", *REFUSED), branch("b", outcome=None), branch("c", State.PRODUCED)),
    )
    due = list_due_steps(state)
    assert not isinstance(due, CycleEnd)
    assert [(item.step, item.branch and item.branch.job.branch) for item in due] == [
        (Step.TRAIN, "b"), (Step.STAGE, "c"),
    ]  # fmt: skip
    settled = (branch("a", *REFUSED), branch("b", *PASSED), branch("c", outcome="failed"))
    assert next_step(replace(state, branches=settled)) is Step.COMPOSE
    by_chooser = replace(state, branches=settled, trains_chooser=True)
    assert next_step(by_chooser) is Step.CHOOSER
    for chooser, step in (
        (branch(None, outcome=None), Step.TRAIN),
        (branch(None, State.PRODUCED), Step.STAGE),
        (branch(None, State.PRODUCED, State.STAGED), Step.COMPOSE),
    ):
        assert next_step(replace(by_chooser, chooser=chooser)) is step
    for lost in (branch(None, outcome="failed"), branch(None, State.PRODUCED, State.REJECTED)):
        assert next_step(replace(by_chooser, chooser=lost)) is Step.COMPOSE, "the base chooses"
    version = adapter("a", State.GATED)
    assert next_step(replace(by_chooser, adapter=version, been={State.GATED: ""})) is Step.ROUTE


@pytest.mark.parametrize(
    ("branches", "outcome", "reason"),
    [
        ((branch("a", *REFUSED), branch("b", outcome="failed")), "rejected", "b failed: b is"),
        ((branch("a", outcome="competence_gap"),), "nothing_learnable", "a not learnable: a is"),
        ((branch("a", outcome="failed"),), "failed", "a failed: a is failed"),
        ((branch("a", outcome="cancelled"),), "cancelled", "a cancelled: a is cancelled"),
    ],
)
def test_without_a_member_the_cycle_ends_with_each_reason(
    branches: tuple[BranchState, ...], outcome: str, reason: str
) -> None:
    end = next_step(replace(DIRECTED, branches=branches))
    assert isinstance(end, CycleEnd)
    assert end.outcome == outcome
    assert reason in end.reason


_OUTCOMES: Final[tuple[JobOutcome | None, ...]] = (None, *get_args(JobOutcome))


@st.composite
def _branches(draw: st.DrawFn, name: str | None) -> BranchState:
    if draw(st.booleans()):
        return branch(name, outcome=draw(st.sampled_from(_OUTCOMES)))
    return branch(name, *draw(_ways()))


@given(
    st.tuples(*(_branches(name) for name in "abc")),
    st.none() | _branches(None),
    st.booleans(),
    st.sampled_from([None, CALLED_OFF]),
)
def test_branches_in_any_state_have_steps_or_an_end_and_no_step_twice(
    branches: tuple[BranchState, ...],
    chooser: BranchState | None,
    trains_chooser: bool,
    cancelled: str | None,
) -> None:
    state = replace(
        DIRECTED,
        branches=branches,
        chooser=chooser,
        trains_chooser=trains_chooser,
        cancelled=cancelled,
    )
    due, first = list_due_steps(state), next_step(state)
    if isinstance(due, CycleEnd):
        assert first == due
        assert due.reason
        running = [item for item in branches if find_branch_step(item) is Step.TRAIN]
        assert not running, "a job of a cycle that ended would be nobody's"
        return
    assert due
    assert first in {item.step for item in due}
    owners = [item.branch for item in due]
    assert len(owners) == len({id(owner) for owner in owners})
    assert all(OWNER[item.step] == "work" for item in due if item.branch is not None)
    if owners == [None]:
        ends = [find_branch_step(item) for item in branches]
        assert all(isinstance(end, BranchEnd) for end in ends)
        assert BranchEnd("passed") in ends
        asks = trains_chooser and chooser is None
        assert first is (Step.CHOOSER if asks else Step.COMPOSE)
    if cancelled is not None:
        assert {item.step for item in due} == {Step.TRAIN}
