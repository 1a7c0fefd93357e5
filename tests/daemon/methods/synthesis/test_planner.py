"""The planner by rule: plans that do not overlap, every tool that can be needed, and bad input."""

from collections.abc import Callable
from random import Random

import pytest

from daemon.methods.synthesis.cells import describe_calls, list_tools, survey_kinds
from daemon.methods.synthesis.planner import (
    MOST_ALIKE,
    find_plan_problem,
    list_tool_gaps,
    measure_overlap,
    plan_by_rule,
)
from daemon.methods.synthesis.protocols import NoPlans, PlanRequest
from envs.airline.environment import Airline
from envs.environment import Environment
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import Criteria, TaskDefinition
from envs.telecom.environment import Telecom
from envs.tools import Toolset, read
from events.messages import Action
from events.synthesis.plans import Plan
from tests.envs.mini import Mini

SHOP = Shop()


class Unplanned(Shop):
    """Generates nothing."""

    capabilities: dict[str, str] = {}  # type: ignore[misc]


class Faulty(Shop):
    """Raises for one kind."""

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        if capability == "cancel":
            raise RuntimeError("the table of orders is gone")
        return super().generate(capability, seed)


class Ruined(Shop):
    """Raises for every kind."""

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        raise RuntimeError("the disk is full")


def plan(count: int = 64, environment: Environment = SHOP) -> tuple[Plan, ...]:
    return plan_by_rule(environment, PlanRequest("seed", count)).entries


@pytest.mark.parametrize(
    "environment", [SHOP, Retail(), Airline(), Telecom()], ids=lambda one: one.name
)
def test_64_plans_do_not_overlap_and_need_every_tool(environment: Environment) -> None:
    drafts = plan_by_rule(environment, PlanRequest("seed"))
    plans = drafts.entries
    assert (len(plans), drafts.trouble) == (64, "")
    assert measure_overlap(plans) <= MOST_ALIKE
    needed = survey_kinds(environment).tools
    assert set(list_tool_gaps(environment, plans)) == set(list_tools(environment)) - needed
    assert {entry.kind for entry in plans} == set(environment.capabilities)
    assert len({entry.manner for entry in plans}) >= 8
    for place, entry in enumerate(plans):
        assert find_plan_problem(environment, entry, plans[:place]) is None


def test_what_no_drawn_task_needs_is_what_is_not_covered() -> None:
    environment = Retail()
    gaps = set(list_tool_gaps(environment, plan(64, environment)))
    chance = Random("tools of retail")
    for kind in environment.capabilities:
        for _ in range(6):
            task = environment.generate(kind, chance.randrange(1 << 28, 1 << 32))
            assert not gaps & describe_calls(environment, task).tools


def test_tools_of_the_user_are_covered_too() -> None:
    environment = Telecom()
    used = {tool for entry in plan(64, environment) for tool in entry.tools}
    assert used >= {"toggle_airplane_mode", "grant_app_permission", "make_payment"}


def test_the_same_request_gives_the_same_plans_and_another_seed_others() -> None:
    assert plan_by_rule(SHOP, PlanRequest("a")) == plan_by_rule(Shop(), PlanRequest("a"))
    assert plan_by_rule(SHOP, PlanRequest("a")) != plan_by_rule(SHOP, PlanRequest("b"))


def test_kinds_get_plans_by_their_weights() -> None:
    weights = {"cancel": 3.0, "return": 1.0, "question": 0.0}
    plans = plan_by_rule(SHOP, PlanRequest("seed", 8, weights)).entries
    kinds = [entry.kind for entry in plans]
    assert (kinds.count("cancel"), kinds.count("return"), len(kinds)) == (6, 2, 8)


def test_where_there_are_fewer_plans_the_reason_is_told() -> None:
    drafts = plan_by_rule(SHOP, PlanRequest("seed", 64, {"cancel": 1.0}))
    assert 0 < len(drafts.entries) < 64
    assert f"{len(drafts.entries)} plans of the 64 that are wanted" in drafts.trouble


def test_an_environment_of_a_few_kinds_gives_what_it_has() -> None:
    drafts = plan_by_rule(Mini(), PlanRequest("seed"))
    assert drafts.entries
    assert measure_overlap(drafts.entries) <= MOST_ALIKE


VERBS = ("book", "cancel", "check", "close", "find", "open", "print", "renew", "send", "update")
NOUNS = (
    "address", "bag", "card", "coupon", "device", "flight", "invoice", "line", "menu", "order",
    "parcel", "plan", "refund", "room", "seat", "shift", "table", "ticket", "user", "visa",
)  # fmt: skip
WIDE = tuple(f"{verb}_{noun}" for verb in VERBS for noun in NOUNS)


def declare(name: str) -> Callable[..., str]:
    def call(self: Toolset) -> str:
        return name

    verb, noun = name.split("_")
    call.__name__, call.__doc__ = name, f"{verb.title()} one {noun} of the customer."
    return read(call)


class Wide(Mini):
    """Has 200 tools and four kinds; a task needs one tool."""

    name = "wide"
    toolset = type("WideTools", (Toolset,), {name: declare(name) for name in WIDE})  # type: ignore[assignment]
    capabilities = {kind: f"asks for one thing of the {kind} desk" for kind in "abcd"}
    per_task = 1

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        own = WIDE["abcd".index(capability) * 50 :][:50]
        first = seed % (50 // self.per_task) * self.per_task
        names = own[first : first + self.per_task]
        task = super().generate("tell", seed)
        gold = tuple(Action(name=name, arguments={}) for name in names)
        return task.model_copy(
            update={"capability": capability, "criteria": Criteria(gold_actions=gold)}
        )


class WideTasks(Wide):
    """A task needs five tools."""

    per_task = 5


@pytest.mark.parametrize(
    ("environment", "plans", "gaps"), [(Wide(), 64, 136), (WideTasks(), 40, 0)]
)
def test_plans_of_an_environment_with_200_tools_cover_as_many_as_their_number_allows(
    environment: Environment, plans: int, gaps: int
) -> None:
    """Kinds and manners alone would not tell so many apart: what tools do is in the text then."""
    drafts = plan_by_rule(environment, PlanRequest("seed"))
    assert len(drafts.entries) == plans
    assert measure_overlap(drafts.entries) <= MOST_ALIKE
    assert len(list_tool_gaps(environment, drafts.entries)) == gaps
    for place, entry in enumerate(drafts.entries):
        assert find_plan_problem(environment, entry, drafts.entries[:place]) is None


@pytest.mark.parametrize("count", [0, -1, 65, 1000])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(NoPlans, match=rf"{count} plans are asked for; ask for 1 to 64"):
        plan(count)


def test_an_environment_without_kinds_has_no_plans() -> None:
    with pytest.raises(NoPlans, match="generates no tasks, so there is no kind to plan"):
        plan(4, Unplanned())


def test_unknown_kinds_and_weights_without_any_are_refused() -> None:
    with pytest.raises(NoPlans, match="has no kind 'fly'; it has cancel, return"):
        plan_by_rule(SHOP, PlanRequest("seed", 4, {"fly": 1.0}))
    with pytest.raises(NoPlans, match="have none above 0"):
        plan_by_rule(SHOP, PlanRequest("seed", 4, {"cancel": 0.0}))


def test_a_kind_whose_generator_raises_is_left_out_and_named() -> None:
    drafts = plan_by_rule(Faulty(), PlanRequest("seed", 16))
    assert "cancel" not in {entry.kind for entry in drafts.entries}
    assert "generator of cancel raised RuntimeError: the table of orders is gone" in drafts.trouble
    with pytest.raises(NoPlans, match="the disk is full"):
        plan(4, Ruined())


def changed(entry: Plan, **fields: object) -> Plan:
    return entry.model_copy(update=fields)


def test_a_plan_that_repeats_an_earlier_one_is_refused_with_both_names() -> None:
    first, second = plan(2)
    same = changed(first, plan="again")
    problem = find_plan_problem(SHOP, same, [first, second])
    assert problem
    assert f"plan again repeats plan {first.plan}" in problem
    alike = changed(first, plan="alike", manner="formal" if first.manner != "formal" else "terse")
    problem = find_plan_problem(SHOP, alike, [second, first])
    assert problem == (
        f"plan alike is 100% like plan {first.plan}, and 50% may be; write it in other words or "
        "about something else"
    )
    problem = find_plan_problem(SHOP, first, [first])
    assert problem
    assert "has the name of an earlier one" in problem


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": ("find_user", "teleport")}, "needs the tool 'teleport', which environment shop"),
        ({"kind": "fly"}, "is of the kind 'fly', which environment shop has not"),
        ({"manner": "rude"}, "has the manner 'rude'; there is as_is"),
        ({"tool_mode": "both_parties"}, "has the user act, and users of shop have no tools"),
        ({"tools": ()}, "names no tool; name some"),
    ],
)
def test_a_plan_with_what_is_not_there_is_refused(fields: dict[str, object], reason: str) -> None:
    problem = find_plan_problem(SHOP, changed(plan(1)[0], **fields))
    assert problem
    assert reason in problem
