"""A set of plans as it was when a cycle began: events, folds, tables and the log are real."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.methods.synthesis.history import SetPast, read_plan_history
from consumers.methods.synthesis.plans import list_plan_sets
from consumers.reads import learning
from daemon.config.settings import Log, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.methods.synthesis.plan_sets import (
    SetChoice,
    SetDemand,
    build_history,
    choose_set,
    explain_refusal,
    find_set_events,
)
from envs.registry import open_environment
from events.envelope import derive_id
from events.learning import Decision, PlanName, TaskProposed, TaskRejected
from events.rollouts import Task
from events.streams import LEARNING
from events.synthesis.faults import TrajectoryVerified
from events.synthesis.plans import Plan, PlanRevision, PlanRule, PlansRevised, PlansWritten
from tests.consumers.cycling import PATTERN, cycle_id, directed, started

SET = derive_id("plans", "set")
PLAN = Plan(
    plan="p00", domain="orders", kind="cancel", complexity="simple", tool_mode="write",
    tools=("cancel_order",), manner="terse", writing="Write.", judging="Judge.",
)  # fmt: skip


def change(plan: Plan, check: str) -> Plan:
    rule = PlanRule(aspect="writing", check=check, text=f"Mind {check}.")
    return plan.model_copy(update={"rules": (*plan.rules, rule)})


FIRST = change(PLAN, "leak")
SECOND = change(FIRST, "novelty")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(Settings(home=tmp_path, log=Log(durability="process"))) as app:
        app.settle()
        record(app, [started(), directed(), write()])
        yield app


def record(app: App, decisions: Sequence[Decision]) -> int:
    """Append decisions; the offset of `learning` behind them."""
    (begin,) = app.log.end(LEARNING.name)
    events = {derive_id("test", str(begin + n)): data for n, data in enumerate(decisions)}
    Decisions(app).record(events, "test")
    (end,) = app.log.end(LEARNING.name)
    return end


def write() -> PlansWritten:
    return PlansWritten(
        plans=SET, alias="agent", base="base", environment="shop", cycle=cycle_id(),
        patterns=(PATTERN,), entries=(PLAN,), overlap=0.0, uncovered=(),
    )  # fmt: skip


def accept(number: int, revision: int = 0) -> TaskProposed:
    return TaskProposed(
        alias="agent", base="base", task=Task(id=f"shop/cancel/{number}", environment="shop"),
        pattern=PATTERN, cycle=cycle_id(), mode="synthesize", plan=name(revision),
    )  # fmt: skip


def reject(check: str, revision: int = 0) -> TaskRejected:
    return TaskRejected.model_validate(
        {
            "cycle": cycle_id(), "alias": "agent", "base": "base", "pattern": PATTERN,
            "mode": "synthesize", "check": check, "reason": f"{check} fails",
            "instruction": "Cancel it.", "plan": name(revision).model_dump(),
        }
    )  # fmt: skip


def name(revision: int = 0) -> PlanName:
    return PlanName(plans=SET, plan="p00", revision=revision)


def revise(
    number: int, plan: Plan, revision: int, *, kept: bool, stopped: str = ""
) -> PlansRevised:
    tried = PlanRevision(
        before=name(revision), plan=plan, reason="it failed", failures=("event",), tries_before=2,
        accepted_before=1, tries=1, accepted=1, kept=kept,
    )  # fmt: skip
    return PlansRevised(
        plans=SET, alias="agent", base="base", cycle=cycle_id(), round=number, revisions=(tried,),
        stopped=stopped,
    )  # fmt: skip


def read(app: App, before: int | None) -> SetPast:
    with app.reading() as connection:
        (line,) = list_plan_sets(connection)
        return read_plan_history(connection, line, before, lambda line: find_set_events(app, line))


def test_tries_and_failures_are_those_of_the_present_revision(app: App) -> None:
    record(
        app,
        [accept(0), reject("leak"), accept(1, revision=1), revise(1, FIRST, 0, kept=True),
         reject("novelty", 1), accept(2, revision=1)],
    )  # fmt: skip
    (history,) = build_history(read(app, None))
    assert (history.plan, history.name) == (FIRST, name(1))
    # The tries by which it was judged, and those since.
    assert (history.tries, history.accepted) == (3, 2)
    assert [(failure.check, failure.aspect) for failure in history.failures] == [
        ("novelty", "writing")
    ]
    assert history.failures[0].instruction == "Cancel it."
    assert history.refused == ()


def test_what_a_cycle_wrote_itself_counts_for_nothing_in_its_redo(app: App) -> None:
    begin = record(app, [accept(0), reject("leak")])
    before = read(app, begin)
    record(
        app,
        [accept(1), reject("leak"), accept(2, revision=1), revise(1, FIRST, 0, kept=True),
         reject("novelty", 1), revise(2, SECOND, 1, kept=False, stopped="two are enough")],
    )  # fmt: skip
    again = read(app, begin)
    assert build_history(again) == build_history(before)
    assert (again.line.rounds, again.line.stopped) == (0, "")
    now = read(app, None)
    (history,) = build_history(now)
    assert (history.plan, history.refused) == (FIRST, (SECOND,))
    assert (now.line.rounds, now.line.stopped) == (2, "two are enough")


def test_tries_of_a_plan_that_the_set_has_not_count_for_nothing(app: App) -> None:
    """A model that planned again names its plans otherwise, and the first set counts."""
    other = PlanName(plans=SET, plan="p00-again", revision=0)
    begin = record(
        app,
        [
            accept(0),
            accept(1).model_copy(update={"plan": other}),
            reject("leak").model_copy(update={"plan": other}),
            TrajectoryVerified(
                alias="agent", base="base", task="shop/cancel/1", rollout="played", plan=other,
                fault="user", rule="hung up",
            ),
        ],
    )  # fmt: skip
    before = read(app, None)
    (history,) = build_history(before)
    assert (history.tries, history.accepted, history.failures) == (1, 1, [])
    renamed = revise(1, PLAN.model_copy(update={"plan": "p00-again"}), 0, kept=True)
    (tried,) = renamed.revisions
    strange = tried.model_copy(update={"before": other})
    record(app, [accept(2), renamed.model_copy(update={"revisions": (strange,)})])
    assert build_history(read(app, begin)) == build_history(before)
    record(app, [accept(3)])
    (later,) = build_history(read(app, None))
    assert (later.plan, later.tries) == (PLAN, 3)


def test_a_later_redo_finds_the_revisions_of_earlier_cycles(app: App) -> None:
    begin = record(app, [accept(0), accept(1, revision=1), revise(1, FIRST, 0, kept=True)])
    before = read(app, begin)
    record(app, [reject("novelty", 1), revise(2, SECOND, 1, kept=True)])
    again = read(app, begin)
    assert build_history(again) == build_history(before)
    assert again.line.rounds == 1
    assert [plan.plan for plan in read(app, None).plans] == [SECOND]


def test_faults_of_rollouts_speak_against_what_they_are_of(app: App) -> None:
    def fail(rollout: str, fault: str, opinion: str | None = None) -> TrajectoryVerified:
        said = None if opinion is None else {"model": "big", "fault": opinion}
        return TrajectoryVerified.model_validate(
            {
                "alias": "agent", "base": "base", "task": "shop/cancel/0", "rollout": rollout,
                "plan": name().model_dump(), "fault": fault, "rule": f"rule of {fault}",
                "opinion": said,
            }
        )  # fmt: skip

    record(
        app,
        [accept(0), fail("r1", "task"), fail("r2", "user"), fail("r3", "trajectory"),
         fail("r4", "trajectory", "user")],
    )  # fmt: skip
    (history,) = build_history(read(app, None))
    # A fault of the agent alone says nothing against a plan.
    assert [(failure.event, failure.aspect) for failure in history.failures] == [
        ("r1", "writing"), ("r2", "rollout"), ("r4", "judging"),
    ]  # fmt: skip


def test_a_set_without_further_rounds_is_used_while_half_is_accepted(app: App) -> None:
    shop = open_environment("shop")
    tools = tuple(sorted(set(shop.toolset.tools()) - {"cancel_order"}))
    other = write().model_copy(
        update={"plans": derive_id("plans", "other"), "uncovered": tools, "environment": "shop"}
    )
    record(app, [other])
    with app.reading() as connection:
        line = list_plan_sets(connection)[-1]
        past = read_plan_history(connection, line, None, lambda line: find_set_events(app, line))
    assert explain_refusal(shop, past) == ""
    (plan,) = past.plans
    stopped = SetPast(replace(line, stopped="three rounds"), past.plans)
    plan.tries, plan.accepted = 4, 2
    assert explain_refusal(shop, stopped) == ""
    plan.accepted = 1
    assert "1 of their 4 tries were accepted" in explain_refusal(shop, stopped)
    assert explain_refusal(shop, past) == "", "rounds of revisions may follow"
    never_revised = explain_refusal(shop, past, SetDemand(rounds=0))
    assert "no round of revisions follows (improve.synthesis_rounds is 0)" in never_revised
    plan.accepted = 2
    assert explain_refusal(shop, past, SetDemand(rounds=0)) == ""


def test_a_set_of_other_kinds_or_for_far_fewer_tasks_is_refused(app: App) -> None:
    shop = open_environment("shop")
    tools = tuple(sorted(set(shop.toolset.tools()) - {"cancel_order"}))
    past = read(app, None)
    past = SetPast(replace(past.line, uncovered=tools), past.plans)
    for kinds in ((), ("cancel",), ("address", "cancel")):
        assert explain_refusal(shop, past, SetDemand(kinds=kinds)) == ""
    reason = explain_refusal(shop, past, SetDemand(kinds=("address",)))
    assert "they are of cancel, and the tasks that fail now are of address" in reason
    reason = explain_refusal(shop, past, SetDemand(plans=2))
    assert "they are 1, and 2 may be written now" in reason
    limited = SetPast(replace(past.line, trouble="no other fits"), past.plans)
    assert explain_refusal(shop, limited, SetDemand(plans=64)) == ""


def test_kinds_that_fail_in_turn_use_their_sets_again(app: App) -> None:
    shop = open_environment("shop")
    tools = tuple(sorted(shop.toolset.tools()))
    for kind in ("cancel", "address"):
        plan = PLAN.model_copy(update={"kind": kind})
        ours = {"plans": derive_id("plans", kind), "entries": (plan,), "uncovered": tools}
        record(app, [write().model_copy(update=ours)])

    def choose(kind: str) -> SetChoice:
        with app.reading() as connection:
            cycle = learning.find_cycle(connection, cycle_id())
            demand = SetDemand(kinds=(kind,))
            return choose_set(app, connection, shop, cycle, PATTERN, None, demand)

    for kind in ("cancel", "address", "cancel"):
        choice = choose(kind)
        assert choice.past is not None
        assert choice.past.line.plans == derive_id("plans", kind)
    none = choose("compound")
    assert none.past is None
    assert "they are of address, and the tasks that fail now are of compound" in none.refusal


def test_a_set_without_a_tool_that_came_later_is_refused(app: App) -> None:
    reason = explain_refusal(open_environment("shop"), read(app, None))
    assert "has tools that were not there when they were written" in reason
    assert "exchange_item" in reason
