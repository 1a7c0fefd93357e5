"""Tasks as data, and where an environment finds them."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from pydantic import ValidationError

from envs.database import Database
from envs.environment import UnknownTask
from envs.lessons.making import make_lessons
from envs.shop.environment import Shop
from envs.task import Criteria, Scenario, TaskDefinition, read_body, write_body
from tests.envs.mini import Mini, task


def test_a_body_keeps_the_order_of_arguments_that_a_policy_is_shown() -> None:
    shop = Shop()
    lessons = make_lessons(shop, [shop.generate("return", 1)], 8, 0).lessons
    assert {
        tuple(call.arguments) for made in lessons for call in made.criteria.gold_actions or ()
    } > {("order_id", "item", "payment_id")}
    for made in lessons:
        read = read_body(made.id, write_body(made.dump_body()))
        assert read.model_dump_json() == made.model_dump_json()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"capability": "tell"},
        {"scenario": Scenario(reason_for_call="Else.")},
        {"script": None},
        {"criteria": Criteria(outputs=("x",))},
        {"criteria": Criteria(gold_actions=())},
        {"criteria": Criteria(gold_actions=None)},
    ],
)
def test_any_change_is_another_digest(change: dict[str, Any]) -> None:
    assert task().model_copy(update=change).digest() != task().digest()


def test_a_rollout_names_its_task_with_what_diagnosis_needs() -> None:
    made = task("tell", 2)
    record = made.record()
    assert (record.id, record.environment, record.capability) == ("mini/tell/2", "mini", "tell")
    assert record.instruction == "Reason for call: Please tell me about order w3."
    assert record.gold_actions == made.criteria.gold_actions
    assert (record.outputs, record.reward_basis) == (("1002",), ("DB", "COMMUNICATE"))
    assert record.definition == made.digest()


@pytest.mark.parametrize(
    "wrong",
    [{"id": ""}, {"id": "x" * 300}, {"seed": 2**63}, {"capability": ""}, {"goal": "x"}],
)
def test_a_task_that_no_log_could_hold_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TaskDefinition(**(task().model_dump() | wrong))
    with pytest.raises(ValidationError):
        Criteria(reward_basis=("VIBES",))


def test_every_task_is_found_by_its_id_and_so_is_any_seed() -> None:
    environment = Mini()
    for made in environment.tasks():
        assert environment.task(made.id) == made
    assert environment.task("mini/cancel/123456789012345678").seed == 123456789012345678
    assert [made.id for made in environment.tasks()][:3] == [
        "mini/cancel/0", "mini/tell/0", "mini/cancel/1",
    ]  # fmt: skip
    assert environment.splits == {"generated": 6}


@pytest.mark.parametrize(
    "name",
    [
        "", "mini", "mini/cancel", "mini/cancel/", "mini/cancel/x", "mini/cancel/-1", "cancel/0",
        "mini/cancel/0/", "mini/cancel/0/else", "mini/cancel/00", "mini/cancel/007", "mini//0",
        "mini/cancel/²", "mini/cancel/٣", "mini/other/0", "shop/cancel/0", "/mini/cancel/0",
        "mini/cancel/" + "9" * 30, "mini/cancel/" + "9" * 5000,
    ],
)  # fmt: skip
def test_no_other_id_is_a_task(name: str) -> None:
    with pytest.raises(UnknownTask, match=r"ids are mini/CAPABILITY/SEED with a capability of"):
        Mini().task(name)


def test_a_mixture_has_the_shares_that_were_asked_for_and_no_task_twice() -> None:
    environment = Mini()
    made = list(islice(environment.mixture({"cancel": 3, "tell": 1}, seed=4), 2_000))
    shares = Counter(one.capability for one in made)
    assert 1_400 < shares["cancel"] < 1_600
    assert len({one.id for one in made}) == 2_000
    again = list(islice(environment.mixture({"cancel": 3, "tell": 1}, seed=4), 50))
    assert again == made[:50]
    later = list(islice(environment.mixture({"cancel": 1}, first_task=2_000), 5))
    assert [one.seed for one in later] == [2_000, 2_001, 2_002, 2_003, 2_004]


@pytest.mark.parametrize(
    "shares", [{}, {"cancel": 0}, {"cancel": -1, "tell": 2}, {"cancel": float("nan")}]
)
def test_shares_that_are_none_are_refused_at_once(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be non-negative with a positive sum"):
        Mini().mixture(shares)


def test_a_share_of_an_unknown_capability_is_named() -> None:
    with pytest.raises(UnknownTask, match="no capability 'fly'; it has cancel, tell"):
        Mini().mixture({"fly": 1})


def test_a_state_that_was_changed_while_it_was_made_is_the_one_a_task_begins_in() -> None:
    class Prepared(Mini):
        def pristine(self, task: TaskDefinition) -> Database:
            database = super().pristine(task)
            self.toolset(database).call("cancel_order", {"order_id": "w3"})
            return database

    environment = Prepared()
    for _ in range(2):
        state = environment.reset(task())
        assert state["orders"]["w3"]["status"] == "cancelled"
        state.edit("orders", "w3")["status"] = "lost"


def test_states_are_made_once_per_task_and_not_all_are_kept() -> None:
    class Counting(Mini):
        made: Counter[str] = Counter()

        def pristine(self, task: TaskDefinition) -> Database:
            self.made[task.id] += 1
            return super().pristine(task)

    environment = Counting()
    for _ in range(3):
        environment.reset(task("cancel", 0))
    assert environment.made == {"mini/cancel/0": 1}
    for seed in range(1, 100):
        environment.reset(task("cancel", seed))
    environment.reset(task("cancel", 0))
    assert environment.made["mini/cancel/0"] == 2
