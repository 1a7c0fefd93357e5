"""Manners: each leaves calls and values as they are, and the perfect agent still wins."""

import pytest

from daemon.methods.synthesis.manners import (
    AS_IS,
    MANNERS,
    find_identity,
    give_manner,
    vary_manner,
)
from daemon.proposer.candidate import FIRST_SEED, Candidate, CandidateFacts
from daemon.proposer.verification import verify
from envs.airline.environment import Airline
from envs.environment import Environment
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import is_content_id, write_body
from envs.telecom.environment import Telecom
from tests.envs.mini import Mini

SHOP = Shop()
RETAIL = Retail()


@pytest.mark.parametrize(
    "environment", [SHOP, RETAIL, Telecom(), Airline(), Mini()], ids=lambda one: one.name
)
def test_the_perfect_agent_wins_in_every_manner(environment: Environment) -> None:
    bodies: dict[str, str] = {}
    environment.use_definitions(bodies.get)
    kinds = list(environment.capabilities)
    for place, name in enumerate(MANNERS):
        drawn = environment.generate(kinds[place % len(kinds)], FIRST_SEED + place)
        task = give_manner(drawn, name)
        if task is None:
            continue
        assert is_content_id(task.id)
        assert (task.criteria, task.seed, task.setup) == (drawn.criteria, drawn.seed, drawn.setup)
        bodies[task.id] = write_body(task.dump_body())
        candidate = Candidate(task, "synthesize", None, drawn.id)
        verdict = verify(CandidateFacts(environment, candidate))
        assert verdict.failed is None, (name, verdict.reason)


@pytest.mark.parametrize("name", [name for name in MANNERS if name != AS_IS])
def test_a_manner_changes_the_lines_of_some_environment(name: str) -> None:
    drawn = [
        environment.generate(kind, FIRST_SEED + seed)
        for environment in (SHOP, RETAIL)
        for kind in environment.capabilities
        for seed in range(2)
    ]
    tasks = [(task, give_manner(task, name)) for task in drawn]
    changed = [(before, after) for before, after in tasks if after is not None]
    assert changed
    for before, after in changed:
        assert before.script
        assert after.script
        assert after.script.opening != before.script.opening
        assert after.scenario.persona == MANNERS[name].persona


def test_each_manner_comes_in_turn_and_a_task_that_cannot_have_it_keeps_its_words() -> None:
    task = SHOP.generate("cancel", FIRST_SEED)
    assert vary_manner(task, 1, ()) is task
    turns = ("polite", "reserved", "terse")
    assert give_manner(task, "reserved") is None
    varied = [vary_manner(task, place, turns) for place in range(4)]
    assert varied[0] == varied[3] == give_manner(task, "polite")
    assert varied[1] is task
    assert varied[2] == give_manner(task, "terse")


def test_a_reserved_user_opens_with_the_request_alone() -> None:
    drawn = next(
        task
        for seed in range(20)
        if (task := RETAIL.generate("cancel", FIRST_SEED + seed)).script
        and task.scenario.known_info in task.script.opening
    )
    reserved = give_manner(drawn, "reserved")
    assert reserved
    assert reserved.script
    assert reserved.script.opening == drawn.scenario.reason_for_call
    assert any(drawn.scenario.known_info in answer.says for answer in reserved.script.answers)


def test_no_user_of_shop_is_reserved_because_its_perfect_agent_asks_nobody() -> None:
    assert give_manner(SHOP.generate("cancel", FIRST_SEED), "reserved") is None


def test_a_correction_breaks_off_before_the_first_value() -> None:
    drawn = SHOP.generate("cancel", FIRST_SEED)
    task = give_manner(drawn, "corrects_itself")
    assert task
    assert task.script
    order = str((drawn.criteria.gold_actions or ())[1].arguments["order_id"])
    head, again, rest = task.script.opening.partition("let me begin again.")
    assert again
    assert order not in head
    assert order in rest


def test_an_agent_that_works_alone_has_no_user_with_a_manner() -> None:
    drawn = SHOP.generate("cancel", FIRST_SEED).make_solo("shop/cancel/1/solo", "Cancel it.")
    assert give_manner(drawn, "polite") is None


def test_a_task_without_a_script_gets_the_lines_that_are_improvised() -> None:
    drawn = SHOP.generate("cancel", FIRST_SEED).model_copy(update={"script": None})
    task = give_manner(drawn, "polite")
    assert task
    assert task.script
    assert drawn.scenario.reason_for_call in task.script.opening


def test_an_identity_is_told_in_the_first_person() -> None:
    drawn = SHOP.generate("cancel", FIRST_SEED)
    assert drawn.script
    identity = find_identity(drawn, drawn.script)
    assert identity
    assert "You are" not in identity
    assert str((drawn.criteria.gold_actions or ())[0].arguments["zip"]) in identity
