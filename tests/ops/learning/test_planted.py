"""The writer with planted faults: what it plants is what it says, at the rates that it is given."""

from collections import Counter
from dataclasses import replace

import pytest

from daemon.proposer.candidate import FIRST_SEED
from daemon.synthesis.engine import make_parts, synthesize
from daemon.synthesis.planner import plan_by_rule
from daemon.synthesis.protocols import PlanRequest
from daemon.synthesis.stages import SynthesisRequest
from envs.attribution.observability import Knowledge
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.learning import TaskProposed, TaskRejected
from events.messages import Action
from events.synthesis.plans import PlanRule
from ops.learning.synthesis.planted import KINDS, RULES, FaultKind, FaultRates, FaultyWriter

SHOP = Shop()
PLANS = plan_by_rule(SHOP, PlanRequest("seed")).entries
WRITES = [plan for plan in PLANS if plan.tool_mode == "write"][:12]


def write(
    kind: FaultKind, rate: float = 1.0, **settings: float
) -> list[tuple[TaskDefinition, FaultKind | None, TaskDefinition]]:
    """Tasks of several plans, what was planted in each, and the task that it was drawn from."""
    writer = FaultyWriter(SHOP, FaultRates({kind: rate}, **settings))
    drafts = [
        writer.write(plan, FIRST_SEED + seed)
        for seed, plan in enumerate(plan for plan in WRITES for _ in range(4))
    ]
    return [(draft.task, writer.faults[draft.task.id], SHOP.task(draft.drawn)) for draft in drafts]


def list_calls(task: TaskDefinition) -> tuple[Action, ...]:
    return task.criteria.gold_actions or ()


def text(task: TaskDefinition) -> str:
    assert task.script
    return f"{task.scenario.text()} {task.script.opening}"


def test_a_wrong_gold_succeeds_and_differs_from_what_was_drawn() -> None:
    planted = [item for item in write("wrong_gold") if item[1]]
    assert len(planted) > 30
    for task, _, drawn in planted:
        assert list_calls(task) != list_calls(drawn)
        tools = SHOP.open_tools(task, SHOP.reset(task))
        assert not any(tools.call(a.name, a.arguments).error for a in list_calls(task))


def test_a_contradiction_changes_the_text_and_keeps_the_calls() -> None:
    planted = [item for item in write("contradiction") if item[1]]
    assert len(planted) > 30
    for task, _, drawn in planted:
        assert list_calls(task) == list_calls(drawn)
        values = {str(value) for a in list_calls(drawn)[1:] for value in a.arguments.values()}
        lost = [v for v in values if v in text(drawn) and v not in text(task)]
        assert lost


def test_a_leak_names_a_tool_or_an_internal_id() -> None:
    for task, kind, _ in write("leak"):
        assert kind == "leak"
        assert "Call " in text(task) or "Its internal id is " in text(task)


def test_what_cannot_be_known_is_missing_from_what_an_agent_can_find() -> None:
    tasks = write("unknowable")
    assert any(kind for _, kind, _ in tasks)
    for task, kind, _ in tasks:
        assert bool(Knowledge(SHOP, task).missing) == (kind == "unknowable")


def test_an_unsolvable_user_refuses_what_it_wants() -> None:
    for task, kind, _ in write("unsolvable"):
        assert kind == "unsolvable"
        assert task.script
        assert any(answer.says == "No." for answer in task.script.answers)


def test_only_what_was_written_before_is_repeated() -> None:
    seen: set[str | None] = set()
    kinds = []
    for task, kind, drawn in write("near_duplicate"):
        kinds.append(kind)
        assert (kind == "near_duplicate") == (drawn.id in seen)
        assert task.signature == drawn.signature
        seen.add(drawn.id)
    assert {None, "near_duplicate"} == set(kinds)


def test_rates_differ_between_plans_around_the_mean_and_0_and_1_are_exact() -> None:
    writer = FaultyWriter(SHOP, FaultRates({"leak": 0.3, "wrong_gold": 1.0}))
    rates = [writer.rate(f"plan-{number}", "leak") for number in range(400)]
    assert sum(rates) / len(rates) == pytest.approx(0.3, abs=0.03)
    assert max(rates) - min(rates) > 0.4
    assert (writer.rate("plan", "wrong_gold"), writer.rate("plan", "unknowable")) == (1.0, 0.0)


@pytest.mark.parametrize(("compliance", "planted"), [(1.0, 0), (0.0, 24)])
def test_a_rule_is_obeyed_in_the_share_of_the_tries_that_is_set(
    compliance: float, planted: int
) -> None:
    rule = PlanRule(aspect="writing", check="leak", text="Name no tool.")
    plan = WRITES[0].model_copy(update={"rules": (rule,)})
    writer = FaultyWriter(SHOP, FaultRates({"leak": 1.0}, compliance))
    for seed in range(24):
        writer.write(plan, FIRST_SEED + seed)
    assert Counter(writer.faults.values())["leak"] == planted


def test_each_kind_has_rules_against_it() -> None:
    assert set(RULES) == set(KINDS)
    assert all(RULES.values())


def test_the_engine_refuses_what_its_checks_are_for_and_accepts_what_is_sound() -> None:
    environment, bodies = Shop(), dict[str, str]()
    environment.use_definitions(bodies.get)
    rates: dict[FaultKind, float] = dict.fromkeys(KINDS, 0.15)
    writer = FaultyWriter(environment, FaultRates({**rates, "near_duplicate": 0.5}))
    request = SynthesisRequest(
        "cycle", "agent", "base", "any", 60, plans=4, rounds=0, bodies=bodies
    )
    parts = replace(make_parts(environment), writer=writer)
    decisions = [data for _, data in synthesize(environment, request, parts)]
    written = Counter(writer.faults.values())
    accepted = Counter(writer.faults[d.task.id] for d in decisions if isinstance(d, TaskProposed))
    rejections = Counter(data.check for data in decisions if isinstance(data, TaskRejected))
    assert accepted[None] == written[None]
    assert accepted.total() + rejections.total() == written.total()
    # A value that contradicts the text may still be one that a look-up shows: the rules miss it.
    assert set(accepted) <= {None, "wrong_gold", "contradiction"}
    assert accepted["contradiction"] < written["contradiction"] / 2
    assert rejections["leak"] == written["leak"] > 0
    assert rejections["novelty"] == written["near_duplicate"] > 0
    assert rejections["trajectory"] > 0


def test_a_redo_plants_the_same() -> None:
    assert write("wrong_gold", 0.5) == write("wrong_gold", 0.5)
