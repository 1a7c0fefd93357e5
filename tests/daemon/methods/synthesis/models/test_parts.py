"""The data engine with a model in it: every way of failing ends in an event with its reason."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from daemon.config.settings import Models, ProposerModel, Redaction, Settings
from daemon.methods.synthesis.engine import synthesize
from daemon.methods.synthesis.models.parts import make_model_parts
from daemon.methods.synthesis.stages import SynthesisRequest
from envs.shop.environment import Shop
from events.learning import Decision, TaskProposed, TaskRejected
from events.synthesis.faults import TrajectoryVerified
from events.synthesis.plans import PlansRevised, PlansWritten
from tests.daemon.methods.synthesis.models.shop_model import PLAN, ShopModel
from tests.envs.model_server import NO_ANSWER, Json, ModelServer, Reply, said

Answering = Callable[[Json], Reply | Json]


def answer_all(model: Answering) -> Answering:
    """A model that plans `PLAN`, revises it, and writes as `model` does."""

    def answer(body: Json) -> Reply | Json:
        form = body.get("response_format", {}).get("json_schema", {}).get("name")
        if form == "plan":
            fields = PLAN.model_dump(exclude={"plan", "rules"})
            return said(json.dumps(fields))
        if form == "revision":
            rule = {"aspect": "writing", "text": "Speak as a customer speaks."}
            check = json.loads(body["messages"][1]["content"])["failures"]["f1"]["check"]
            fields = PLAN.model_dump(include={"writing", "judging", "manner"})
            revision = {"rules": [{**rule, "check": check}], "failures": ["f1"], "reason": "So."}
            return said(json.dumps(fields | revision))
        return model(body)

    return answer


def synthesize_with(model: Answering, tasks: int = 2, **settings: Any) -> list[Decision]:
    """The events of one plan with this model as the writer."""
    return synthesize_by(answer_all(model), tasks, **settings)


def synthesize_by(model: Answering, tasks: int, **settings: Any) -> list[Decision]:
    """The events of one plan with this model as planner, writer and reviser."""
    shop = Shop()
    request = SynthesisRequest("c" * 32, "agent", "base", "pattern", tasks, plans=1)
    shop.use_definitions(request.bodies.get)
    with ModelServer(model) as server:
        proposer = ProposerModel(url=server.url, model="big", **settings)
        parts = make_model_parts(shop, Settings(models=Models(proposer=proposer)))
        assert parts is not None
        return [data for _, data in synthesize(shop, request, parts)]


def select_rejections(events: list[Decision]) -> list[TaskRejected]:
    """The rejections among events."""
    return [data for data in events if isinstance(data, TaskRejected)]


def test_without_a_model_in_the_settings_there_are_no_such_parts() -> None:
    assert make_model_parts(Shop(), Settings()) is None


def test_a_model_plans_and_writes_and_its_name_is_on_record() -> None:
    events = synthesize_with(ShopModel())
    plans, *others = events
    assert isinstance(plans, PlansWritten)
    assert (plans.writer, plans.trouble) == ("big", "")
    assert [entry.writing for entry in plans.entries] == [PLAN.writing]
    proposals = [data for data in others if isinstance(data, TaskProposed)]
    assert len(proposals) == 2
    assert {(data.text_by, data.mode) for data in proposals} == {("big", "synthesize")}
    assert any(isinstance(data, TrajectoryVerified) for data in others)
    assert select_rejections(events) == []


@pytest.mark.parametrize(
    ("model", "check", "reason"),
    [
        (
            ShopModel(change={"communicate_info": ["Answer: tea."]}),
            "outputs",
            "no tool answers",
        ),
        (ShopModel(change={"reason_for_call": "cancel_order ORDER"}), "leak", "cancel_order"),
        (ShopModel(change={"known_info": ""}), "synthesis", "by which find_user finds them"),
        (lambda _: said("READY"), "synthesis", "never called cancel_order"),
        (
            ShopModel(change={"reason_for_call": "I want to cancel my order O9999."}),
            "synthesis",
            "which no call has or is answered",
        ),
        (lambda _: Reply(b"<html>"), "synthesis", "is no message"),
    ],
)
def test_what_a_model_gets_wrong_is_a_rejection_with_its_reason(
    model: Answering, check: str, reason: str
) -> None:
    rejections = select_rejections(synthesize_with(model, tasks=1))
    assert {rejection.check for rejection in rejections} == {check}
    assert all(reason in rejection.reason for rejection in rejections)
    assert all(rejection.plan is not None for rejection in rejections)
    assert len(rejections) == 3


def test_a_model_that_never_answers_in_time_is_on_record_and_rules_go_on() -> None:
    events = synthesize_by(lambda _: NO_ANSWER, 2, timeout_seconds=0.1)
    plans = events[0]
    assert isinstance(plans, PlansWritten)
    assert plans.writer is None
    assert "the proposer big: no whole answer within 0.1 s; 1 plans are by rule" in plans.trouble
    rejections = select_rejections(events)
    assert {rejection.check for rejection in rejections} == {"synthesis"}
    assert all("no whole answer within 0.1 s" in data.reason for data in rejections)
    assert len(rejections) == 2
    writers = [data.text_by for data in events if isinstance(data, TaskProposed)]
    assert writers == [None, None]


def test_failures_of_a_model_have_it_revise_its_plan() -> None:
    model = ShopModel(change={"reason_for_call": "cancel_order ORDER"})
    events = synthesize_with(model, tasks=4)
    revised = [data for data in events if isinstance(data, PlansRevised)]
    assert revised
    assert revised[0].writer == "big"
    (revision,) = revised[0].revisions
    assert revision.plan.rules[0].text == "Speak as a customer speaks."
    assert not revision.kept


def test_a_round_that_rules_revise_names_no_model_but_its_trouble() -> None:
    good = answer_all(ShopModel(change={"reason_for_call": "cancel_order ORDER"}))

    def answer(body: Json) -> Reply | Json:
        form = body.get("response_format", {}).get("json_schema", {}).get("name")
        return said("no") if form == "revision" else good(body)

    revised = [data for data in synthesize_by(answer, 4) if isinstance(data, PlansRevised)]
    assert revised
    assert revised[0].writer is None
    assert "the proposer big gave no answer of the schema" in revised[0].trouble


def test_a_budget_that_ends_midway_is_on_record_and_templates_go_on() -> None:
    events = synthesize_with(ShopModel(), tasks=4, max_tokens=45_000)
    (rejection,) = select_rejections(events)
    assert rejection.check == "synthesis"
    assert "raise models.proposer.max_tokens" in rejection.reason
    writers = [data.text_by for data in events if isinstance(data, TaskProposed)]
    assert writers[0] == "big"
    assert writers[-1] is None
    assert len(writers) == 4


@pytest.mark.parametrize("blocks", ["plan", "task"])
def test_a_slow_model_is_asked_no_more_once_its_minutes_are_over(blocks: str) -> None:
    """Each of its answers is in time, and a cycle would wait for hundreds."""
    over = threading.Event()
    good = answer_all(ShopModel())

    def answer(body: Json) -> Reply | Json:
        form = body.get("response_format", {}).get("json_schema", {}).get("name")
        if blocks == "plan" or form != "plan":
            over.wait(30)
        return good(body)

    try:
        events = synthesize_by(answer, 2, minutes=0.05)
    finally:
        over.set()
    plans = events[0]
    assert isinstance(plans, PlansWritten)
    spent = "it was waited for 0.05 minutes in this cycle; raise models.proposer.minutes"
    rejections = select_rejections(events)
    if blocks == "plan":
        assert spent in plans.trouble
        assert rejections == []
    else:
        (rejection,) = rejections
        assert rejection.check == "synthesis"
        assert spent in rejection.reason
    writers = [data.text_by for data in events if isinstance(data, TaskProposed)]
    assert writers == [None, None]


def test_the_operators_redaction_holds_for_what_is_sent() -> None:
    shop = Shop()
    with ModelServer(answer_all(ShopModel())) as server:
        settings = Settings(
            models=Models(proposer=ProposerModel(url=server.url, model="big")),
            redaction=Redaction(rules=("email",)),
        )
        parts = make_model_parts(shop, settings, "It writes to ada@example.org too often.")
        assert parts is not None
        request = SynthesisRequest("c" * 32, "agent", "base", "pattern", 1, plans=1)
        shop.use_definitions(request.bodies.get)
        list(synthesize(shop, request, parts))
        sent = json.dumps(server.requests)
    assert "ada@example.org" not in sent
    assert "[redacted:email]" in sent
