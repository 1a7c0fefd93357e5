"""The four stages of a try: what each writes, and where it ends."""

from dataclasses import replace
from typing import Any

import pytest

from daemon.methods.synthesis import stages
from daemon.methods.synthesis.engine import Parts, make_parts
from daemon.methods.synthesis.planner import plan_by_rule
from daemon.methods.synthesis.protocols import Draft, PlanRequest
from daemon.methods.synthesis.stages import Attempt, Stages, SynthesisRequest
from daemon.methods.synthesis.template_writer import TemplateWriter
from daemon.proposer.candidate import FIRST_HELD_OUT, FIRST_SEED, LAST_SEED, Evaluation
from envs.attribution.examination import NoVerdict, RolloutFault
from envs.shop.environment import Shop
from envs.task import TaskDefinition, read_body
from events.envelope import derive_id
from events.learning import PlanName, TaskProposed, TaskRejected
from events.registry import REGISTRY
from events.synthesis.faults import TrajectoryVerified
from events.synthesis.plans import Plan
from tests.daemon.methods.synthesis.parts import FailingWriter, ask

PLAN = plan_by_rule(Shop(), PlanRequest("seed", 4, {"cancel": 1.0})).entries[0]


def attempt(parts: Parts | None = None, number: int = 0, **fields: Any) -> Attempt:
    """One try of a plan in shop."""
    request = ask(**fields)
    return open_stages(request, parts).attempt(PLAN, name(request), 0, number)


def open_stages(request: SynthesisRequest, parts: Parts | None = None) -> Stages:
    environment = Shop()
    environment.use_definitions(request.bodies.get)
    chosen = parts or make_parts(environment)
    return Stages(environment, request, chosen.writer)


def name(request: SynthesisRequest) -> PlanName:
    return PlanName(plans=request.plan_set, plan=PLAN.plan)


def test_a_task_that_passes_is_proposed_behind_the_verdict_on_its_rollout() -> None:
    request = ask()
    attempt = open_stages(request).attempt(PLAN, name(request), 0, 0)
    (verdict_id, verdict), (event, proposed) = attempt.events
    assert isinstance(verdict, TrajectoryVerified)
    assert isinstance(proposed, TaskProposed)
    assert (attempt.is_accepted, attempt.failures) == (True, ())
    assert (verdict.fault, verdict.task, verdict.plan) == (None, proposed.task.id, proposed.plan)
    assert (proposed.mode, proposed.cycle, proposed.plan) == (
        "synthesize",
        "cycle-1",
        name(request),
    )
    origin = (request.plan_set, PLAN.plan, "0", "0", "0", "of 3 rounds")
    assert event == derive_id("synthesis", *origin) != verdict_id
    assert proposed.definition is not None
    task = read_body(proposed.task.id, request.bodies[proposed.task.id])
    assert task.dump_body() == proposed.definition
    assert [check.check for check in proposed.verified] == [
        "schema", "gold", "provenance", "leak", "outputs", "policy", "solvable", "novelty",
        "contamination",
    ]  # fmt: skip


def test_the_verdict_on_an_accepted_rollout_can_be_read_back() -> None:
    verdict = attempt().events[0][1]
    record = verdict.model_dump_json()
    assert REGISTRY.types["TrajectoryVerified"].model_validate_json(record) == verdict


def test_a_writer_without_a_task_is_rejected_as_synthesis() -> None:
    parts = replace(make_parts(Shop()), writer=FailingWriter(Shop(), gives=False))
    tried = attempt(parts)
    ((event, rejected),) = tried.events
    assert isinstance(rejected, TaskRejected)
    assert (rejected.check, rejected.reason) == ("synthesis", "the writer has no words today")
    assert (rejected.mode, rejected.instruction) == ("synthesize", "")
    (failure,) = tried.failures
    assert (failure.event, failure.aspect, failure.check) == (event, "writing", "synthesis")


def test_a_failed_check_is_told_with_the_request_and_the_body_is_not_kept() -> None:
    request = ask()
    parts = replace(make_parts(Shop()), writer=FailingWriter(Shop()))
    tried = open_stages(request, parts).attempt(PLAN, name(request), 0, 0)
    ((_, rejected),) = tried.events
    assert isinstance(rejected, TaskRejected)
    assert rejected.check == "leak"
    assert "the user names the tool cancel_order" in rejected.reason
    assert "Call cancel_order for me." in rejected.instruction
    assert not request.bodies


def test_a_task_that_is_written_again_is_rejected_and_the_accepted_one_keeps_its_body() -> None:
    request = ask()
    opened = open_stages(request)
    accepted = opened.attempt(PLAN, name(request), 0, 0)
    bodies = dict(request.bodies)
    again = opened.attempt(PLAN, name(request), 0, 0)
    assert (accepted.is_accepted, again.is_accepted) == (True, False)
    assert request.bodies == bodies
    assert len(bodies) == 1


def examine_as(monkeypatch: pytest.MonkeyPatch, fault: RolloutFault | Exception) -> None:
    """Have every examination find this fault, or raise this."""

    def examine(*_: object, **__: object) -> RolloutFault:
        if isinstance(fault, Exception):
            raise fault
        return fault

    monkeypatch.setattr(stages, "examine", examine)


def test_a_fault_of_the_task_rejects_it_behind_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    examine_as(monkeypatch, RolloutFault("task", "contradiction", "the user names 'O12'"))
    tried = attempt()
    verdict, rejected = (data for _, data in tried.events)
    assert isinstance(verdict, TrajectoryVerified)
    assert isinstance(rejected, TaskRejected)
    assert (verdict.fault, verdict.rule) == ("task", "contradiction")
    assert (rejected.check, rejected.reason) == (
        "trajectory", "contradiction: the user names 'O12'",
    )  # fmt: skip
    assert not tried.is_accepted


def test_a_fault_of_the_user_speaks_against_the_rollout_and_not_against_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examine_as(monkeypatch, RolloutFault("user", "early_end", "it hung up"))
    tried = attempt()
    assert [type(data).__name__ for _, data in tried.events] == [
        "TrajectoryVerified", "TaskProposed",
    ]  # fmt: skip
    assert tried.is_accepted
    assert [(failure.aspect, failure.check) for failure in tried.failures] == [
        ("rollout", "early_end")
    ]


def test_a_fault_of_the_agent_speaks_against_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    examine_as(monkeypatch, RolloutFault("trajectory", "state", "the order is not cancelled"))
    tried = attempt()
    assert (tried.is_accepted, tried.failures) == (True, ())


def test_an_episode_that_only_a_judge_can_tell_is_accepted_with_the_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examine_as(monkeypatch, NoVerdict("only a judge can tell"))
    tried = attempt()
    verdict = tried.events[0][1]
    assert isinstance(verdict, TrajectoryVerified)
    assert (verdict.fault, verdict.trouble) == (None, "only a judge can tell")
    assert (tried.is_accepted, tried.failures) == (True, ())


def test_what_the_environment_raises_in_the_examination_is_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examine_as(monkeypatch, RuntimeError("the evaluator is gone"))
    tried = attempt()
    ((_, rejected),) = tried.events
    assert isinstance(rejected, TaskRejected)
    assert (rejected.check, rejected.reason) == (
        "trajectory", "the examination raised RuntimeError: the evaluator is gone",
    )  # fmt: skip


def test_the_same_try_gives_the_same_events_and_the_next_one_others() -> None:
    assert attempt() == attempt()
    first, second = attempt().events, attempt(number=1).events
    assert not {event for event, _ in first} & {event for event, _ in second}
    assert first[-1][1] != second[-1][1]


class SeededWriter:
    """Draws from a seed of its own, and may say that it drew from another."""

    def __init__(self, seed: int, drawn: str | None = None) -> None:
        self._seed, self._drawn = seed, drawn

    def write(self, plan: Plan, seed: int) -> Draft:
        draft = TemplateWriter(Shop()).write(plan, self._seed)
        return Draft(draft.task, self._drawn or draft.drawn)


@pytest.mark.parametrize("seed", [0, 2**24, FIRST_HELD_OUT, FIRST_SEED - 1, LAST_SEED + 1])
def test_a_task_begun_in_a_state_of_traffic_reports_or_gates_is_refused(seed: int) -> None:
    tried = attempt(replace(make_parts(Shop()), writer=SeededWriter(seed)))
    ((_, rejected),) = tried.events
    assert isinstance(rejected, TaskRejected)
    assert rejected.check == "contamination"
    assert f"shop/cancel/{seed}, whose seed is none of those kept" in rejected.reason


@pytest.mark.parametrize("seed", [FIRST_SEED, LAST_SEED])
def test_a_task_begun_in_a_state_of_a_written_seed_passes(seed: int) -> None:
    assert attempt(replace(make_parts(Shop()), writer=SeededWriter(seed))).is_accepted


def test_a_writer_that_names_another_state_than_its_own_is_refused() -> None:
    writer = SeededWriter(FIRST_HELD_OUT, f"shop/cancel/{FIRST_SEED}")
    ((_, rejected),) = attempt(replace(make_parts(Shop()), writer=writer)).events
    assert isinstance(rejected, TaskRejected)
    assert (rejected.check, rejected.reason) == (
        "contamination",
        f"it does not begin in the state of shop/cancel/{FIRST_SEED}, as its writer says",
    )


def test_a_task_that_something_is_evaluated_with_is_refused() -> None:
    drawn: TaskDefinition = TemplateWriter(Shop()).write(PLAN, FIRST_SEED).task
    assert drawn.signature
    tried = attempt(
        replace(make_parts(Shop()), writer=SeededWriter(FIRST_SEED)),
        evaluation=Evaluation(signatures=frozenset({drawn.signature})),
    )
    assert [data.check for _, data in tried.events if isinstance(data, TaskRejected)] == [
        "contamination"
    ]


def test_a_task_is_known_to_those_that_follow() -> None:
    request = ask()
    opened = open_stages(request, replace(make_parts(Shop()), writer=SeededWriter(FIRST_SEED)))
    assert opened.attempt(PLAN, name(request), 0, 0).is_accepted
    ((_, rejected),) = opened.attempt(PLAN, name(request), 1, 0).events
    assert isinstance(rejected, TaskRejected)
    assert rejected.check == "novelty"


def test_a_definition_that_is_too_large_to_store_is_refused() -> None:
    class Verbose(SeededWriter):
        def write(self, plan: Plan, seed: int) -> Draft:
            draft = super().write(plan, seed)
            scenario = draft.task.scenario.model_copy(update={"persona": "x" * 300_000})
            task = draft.task.model_copy(update={"scenario": scenario}).name_by_content()
            return Draft(task, draft.drawn)

    ((_, rejected),) = attempt(replace(make_parts(Shop()), writer=Verbose(FIRST_SEED))).events
    assert isinstance(rejected, TaskRejected)
    assert rejected.check == "schema"
    assert "and 262,144 are stored; shorten it" in rejected.reason


def test_the_sampler_of_the_policy_is_asked_where_there_is_one() -> None:
    tried = attempt(sampler=lambda _: 8)
    ((_, rejected),) = tried.events
    assert isinstance(rejected, TaskRejected)
    assert (rejected.check, rejected.reason) == ("informative", "the current policy passes 8 of 8")
    accepted = attempt(sampler=lambda _: 3).events[-1][1]
    assert isinstance(accepted, TaskProposed)
    assert accepted.verified[-1].note == "3 of 8"
