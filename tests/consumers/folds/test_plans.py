"""Counts of plans in the tables: tries, and whose fault the rollouts of their tasks were."""

from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Engine, select

from consumers.methods.synthesis.verdicts import VerdictLine, read_task_verdicts
from consumers.reads import learning, rollouts
from consumers.rebuild import rebuild
from consumers.tables import PlanLine
from events.learning import PlanName
from events.memory import MemoryLog
from events.rollouts import Task
from events.synthesis.faults import Fault, FaultOpinion, TrajectoryVerified
from events.synthesis.plans import Plan, PlanRevision, PlansRevised, PlansWritten
from tests.consumers.cycling import Leading, cycle_id, over, proposed, rejected, started
from tests.consumers.folding import at, ended, fold, fresh, hash_of

PLAN: Final = Plan(
    plan="p1", domain="orders", kind="cancel", complexity="simple", tool_mode="write",
    tools=("cancel_order",), manner="reserved", writing="Have an order cancelled.",
    judging="One order is cancelled.",
)  # fmt: skip
NAME: Final = PlanName(plans="set", plan="p1")
REVISED: Final = PlanName(plans="set", plan="p1", revision=1)


@pytest.fixture
def leading(engine: Engine) -> Leading:
    leading = Leading(engine)
    leading.say(write_plans(), "plans")
    return leading


def write_plans() -> PlansWritten:
    other = PLAN.model_copy(update={"plan": "p2"})
    return PlansWritten(
        plans="set", alias="agent", base="base", environment="shop", entries=(PLAN, other),
        overlap=0.1,
    )  # fmt: skip


def revise() -> PlansRevised:
    """A revision that is kept, on two tries that both passed."""
    revision = PlanRevision(
        before=NAME, plan=PLAN, reason="one failed", failures=("event",), tries_before=1,
        accepted_before=0, tries=2, accepted=2, kept=True,
    )  # fmt: skip
    return PlansRevised(plans="set", alias="agent", base="base", round=1, revisions=(revision,))


def verify(
    rollout: str = "r", fault: Fault | None = "task", plan: PlanName | None = NAME, **fields: Any
) -> TrajectoryVerified:
    return TrajectoryVerified(
        alias="agent", base="base", task="shop/1", rollout=rollout, plan=plan, fault=fault,
        rule="" if fault is None else "gold", **fields,
    )  # fmt: skip


def give_opinion(fault: Fault | None) -> FaultOpinion:
    return FaultOpinion(model="big", fault=fault, reason="I think so.")


def read_counts(leading: Leading, plan: str = "p1") -> tuple[int, ...]:
    """Revision, tries, accepted, faults of task, user and trajectory, and disagreements, once a
    rebuild has agreed."""
    assert rebuild(leading.log, leading.engine).equal
    lines = PlanLine.table().c
    query = select(
        lines.revision, lines.tries, lines.accepted, lines.task_faults, lines.user_faults,
        lines.trajectory_faults, lines.disagreements,
    ).where(lines.plan == plan)  # fmt: skip
    with leading.tables() as connection:
        assert rollouts.dead_letters(connection) == []
        return tuple(connection.execute(query).one())


def read_verdicts(leading: Leading) -> list[VerdictLine]:
    with leading.tables() as connection:
        return read_task_verdicts(connection, "shop/1", "agent")


def test_each_fault_is_counted_for_its_plan_and_an_acceptance_is_none(leading: Leading) -> None:
    faults: tuple[Fault | None, ...] = ("task", "user", "trajectory", None)
    for rollout, fault in zip("abcd", faults, strict=True):
        leading.say(verify(rollout, fault), rollout)
    leading.say(verify("e", "task", None), "e")
    assert read_counts(leading) == (0, 0, 0, 1, 1, 1, 0)
    assert read_counts(leading, "p2") == (0, 0, 0, 0, 0, 0, 0)
    assert [line.fault for line in read_verdicts(leading)] == [
        "task", "user", "trajectory", None, "task",
    ]  # fmt: skip


def test_the_first_verdict_on_a_rollout_counts_and_no_other(leading: Leading) -> None:
    leading.say(verify("r", "task", reason="it is refused", siblings=("shop/2",)), "one")
    leading.say(verify("r", "trajectory"), "two")
    leading.say(verify("r", "task", reason="it is refused", siblings=("shop/2",)), "one")
    assert read_counts(leading) == (0, 0, 0, 1, 0, 0, 0)
    (line,) = read_verdicts(leading)
    assert (line.fault, line.rule, line.reason) == ("task", "gold", "it is refused")
    assert line.siblings == ("shop/2",)
    assert line.describe() == "the task's fault (gold): it is refused; 1 siblings reviewed"


def test_a_model_of_another_opinion_is_counted_and_changes_no_fault(leading: Leading) -> None:
    opinions: tuple[tuple[Fault | None, Fault | None, bool], ...] = (
        ("task", "task", True),
        (None, None, True),
        ("task", None, False),
        (None, "user", False),
        ("user", "trajectory", False),
    )
    for number, (fault, opinion, _) in enumerate(opinions):
        leading.say(verify(f"r{number}", fault, opinion=give_opinion(opinion)), f"r{number}")
    assert read_counts(leading) == (0, 0, 0, 2, 1, 0, 3)
    assert [(line.fault, line.opinion, line.agrees) for line in read_verdicts(leading)] == list(
        opinions
    )
    assert {line.opinion_by for line in read_verdicts(leading)} == {"big"}


def test_where_no_model_gave_an_opinion_none_differs(leading: Leading) -> None:
    leading.say(verify(trouble="big: no answer"), "one")
    assert read_counts(leading)[-1] == 0
    (line,) = read_verdicts(leading)
    assert (line.agrees, line.opinion_by, line.trouble) == (None, None, "big: no answer")


def test_what_failed_before_a_revision_counts_for_no_later_one(leading: Leading) -> None:
    leading.say(verify("a"), "a")
    leading.say(revise(), "revised")
    assert read_counts(leading) == (1, 2, 2, 0, 0, 0, 0)
    leading.say(verify("b"), "b")
    leading.say(verify("c", "user", REVISED, opinion=give_opinion("task")), "c")
    assert read_counts(leading) == (1, 2, 2, 0, 1, 0, 1)
    assert len(read_verdicts(leading)) == 3


def test_a_verdict_of_an_unknown_plan_is_kept_and_counted_nowhere(leading: Leading) -> None:
    leading.say(verify("r", plan=PlanName(plans="another", plan="p1")), "one")
    assert read_counts(leading) == (0, 0, 0, 0, 0, 0, 0)
    assert len(read_verdicts(leading)) == 1


def test_each_try_of_a_plan_counts_once(leading: Leading) -> None:
    leading.claim(1)
    leading.say(started(), "started", 1)
    task = proposed("shop/1").model_copy(update={"plan": NAME})
    refusal = rejected("it leaks").model_copy(update={"plan": NAME})
    for _ in range(2):
        leading.say(task, "task", 1)
        leading.say(refusal, "refusal", 1)
    assert read_counts(leading) == (0, 2, 1, 0, 0, 0, 0)
    leading.say(rejected("it leaks").model_copy(update={"plan": REVISED}), "another", 1)
    leading.say(proposed("shop/2"), "of no plan", 1)
    assert read_counts(leading) == (0, 2, 1, 0, 0, 0, 0)
    leading.say(revise(), "revised")
    leading.say(proposed("shop/3").model_copy(update={"plan": REVISED}), "later", 1)
    leading.say(refusal, "late refusal", 1)
    assert read_counts(leading) == (1, 3, 3, 0, 0, 0, 0)


def test_a_try_of_a_leader_of_another_epoch_or_of_a_cycle_that_is_over_counts_nowhere(
    leading: Leading,
) -> None:
    leading.claim(1)
    leading.say(started(), "started", 1)
    leading.claim(2, "another")
    task = proposed("shop/1").model_copy(update={"plan": NAME})
    leading.say(task, "late", 1)
    leading.say(verify(), "late verdict", 1)
    assert read_counts(leading) == (0, 0, 0, 0, 0, 0, 0)
    assert read_verdicts(leading) == []
    leading.say(over(), "over", 2)
    leading.say(task, "after", 2)
    with leading.tables() as connection:
        cycle = learning.cycle(connection, cycle_id())
    assert cycle is not None
    assert read_counts(leading)[1] == cycle.accepted == 0


def test_nothing_depends_on_whether_a_rollout_or_its_verdict_is_folded_first(
    leading: Leading, tmp_path: Path
) -> None:
    """Rollouts and decisions are in partitions of their own."""
    played = ended("r", at(1), task=Task(id="shop/1"))
    leading.say(verify(), "verdict")
    leading.log.append([played])
    fold(leading.log, leading.engine)
    whole, log = fresh(tmp_path, "whole"), MemoryLog()
    log.append([played])
    fold(log, whole)
    other = Leading(whole, log)
    other.say(write_plans(), "plans")
    other.say(verify(), "verdict")
    assert hash_of(whole) == hash_of(leading.engine)
    assert read_counts(other) == (0, 0, 0, 1, 0, 0, 0)
