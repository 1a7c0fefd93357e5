"""The writer by templates: tasks with the calls and the manner of their plan; what it refuses."""

import pytest

from daemon.methods.synthesis.cells import describe_calls
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.planner import plan_by_rule
from daemon.methods.synthesis.protocols import NoTask, PlanRequest
from daemon.methods.synthesis.template_writer import TemplateWriter
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from daemon.proposer.verification import seed_of
from envs.shop.environment import Shop
from envs.task import TaskDefinition, is_content_id
from envs.telecom.environment import Telecom
from events.synthesis.plans import Plan, PlanRule

SHOP = Shop()
PLANS = plan_by_rule(SHOP, PlanRequest("seed")).entries


@pytest.mark.parametrize("environment", [SHOP, Telecom()], ids=lambda one: one.name)
def test_a_task_has_the_calls_and_the_manner_of_its_plan(environment: Shop) -> None:
    writer = TemplateWriter(environment)
    for entry in plan_by_rule(environment, PlanRequest("seed")).entries[8:40]:
        draft = writer.write(entry, FIRST_SEED + 5)
        cell = describe_calls(environment, draft.task)
        assert (cell.kind, cell.complexity, cell.mode) == (
            entry.kind, entry.complexity, entry.tool_mode,
        )  # fmt: skip
        assert cell.tools >= set(entry.tools)
        assert draft.task.scenario.persona == MANNERS[entry.manner].persona
        assert is_content_id(draft.task.id)
        seed = seed_of(draft.drawn)
        assert seed is not None
        assert FIRST_SEED <= seed <= LAST_SEED
        assert environment.task(draft.drawn).seed == draft.task.seed


def test_the_same_seed_gives_the_same_task_and_another_one_another() -> None:
    first, again, other = (
        TemplateWriter(Shop()).write(PLANS[0], FIRST_SEED + seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def with_rule(entry: Plan, check: str, aspect: str = "writing") -> Plan:
    rule = PlanRule.model_validate({"aspect": aspect, "check": check, "text": "Do otherwise."})
    return entry.model_copy(update={"rules": (rule,)})


def test_a_rule_about_the_words_leaves_them_as_they_were() -> None:
    entry = next(entry for entry in PLANS if entry.manner == "formal")
    writer = TemplateWriter(SHOP)
    plain = writer.write(with_rule(entry, "leak"), FIRST_SEED)
    assert plain.task.scenario.persona == ""
    assert plain.task.script == SHOP.task(plain.drawn).script
    assert writer.write(with_rule(entry, "leak", "rollout"), FIRST_SEED).task.scenario.persona


def test_a_rule_about_repetition_has_it_said_in_other_words() -> None:
    entry = next(entry for entry in PLANS if entry.kind == "cancel")
    writer = TemplateWriter(SHOP)
    pairs = [
        (writer.write(entry, seed).task, writer.write(with_rule(entry, "novelty"), seed).task)
        for seed in range(FIRST_SEED, FIRST_SEED + 10)
    ]
    assert all(first.signature == second.signature for first, second in pairs)
    assert any(
        first.scenario.reason_for_call != second.scenario.reason_for_call for first, second in pairs
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": ("teleport",)}, "needs the tool 'teleport'"),
        ({"kind": None}, "names no kind, and templates have nothing else to draw"),
        ({"complexity": "long"}, "and none can be said in the manner|0 have the calls of plan"),
    ],
)
def test_a_plan_that_cannot_be_followed_gives_no_task(
    fields: dict[str, object], reason: str
) -> None:
    entry = next(entry for entry in PLANS if entry.kind == "cancel")
    with pytest.raises(NoTask, match=reason):
        TemplateWriter(SHOP).write(entry.model_copy(update=fields), FIRST_SEED)


def test_what_the_generator_raises_is_the_reason() -> None:
    class Faulty(Shop):
        def generate(self, capability: str, seed: int) -> TaskDefinition:
            raise RuntimeError("the disk is full")

    with pytest.raises(NoTask, match="raised RuntimeError: the disk is full; mend environment"):
        TemplateWriter(Faulty()).write(PLANS[0], FIRST_SEED)
