"""The same case in other words, and another case of the same kind."""

import pytest

from envs.environment import UnknownTask
from envs.shop.environment import Shop
from envs.shop.kinds import KINDS
from tests.envs.mini import Mini
from tests.envs.shop.play import played, verdict


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("kind", KINDS)
def test_other_words_change_nothing_but_the_words(shop: Shop, kind: str) -> None:
    task = shop.generate(kind, 7)
    made = [shop.rephrase(task, seed) for seed in range(40)]
    found = [one for one in made if one is not None]
    assert len(found) >= 10
    for one in found:
        assert one.criteria == task.criteria
        assert (one.seed, one.capability, one.split) == (task.seed, kind, task.split)
        assert shop.state_key(one) == shop.state_key(task)
        assert shop.task(one.id) == one
        assert verdict(played(shop, one, shop.oracle(one))).reward == 1.0
    assert len({one.script.opening for one in found if one.script}) >= 3
    assert len({one.id for one in found}) == len(found)
    assert any(one.scenario.reason_for_call != task.scenario.reason_for_call for one in found)


def test_phrases_that_ask_for_other_calls_are_not_other_words(shop: Shop) -> None:
    task = shop.generate("two_writes", 7)
    assert None in [shop.rephrase(task, seed) for seed in range(20)]


def test_other_words_of_other_words_are_of_the_same_case(shop: Shop) -> None:
    task = shop.generate("cancel", 7)
    first = shop.rephrase(task, 1)
    assert first is not None
    assert first.id == "shop/cancel/7/1"
    assert shop.rephrase(first, 2) == shop.rephrase(task, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_like_another_is_a_fresh_one_of_its_kind(shop: Shop, kind: str) -> None:
    task = shop.generate(kind, 7)
    assert shop.like(task, 8) == shop.generate(kind, 8)


@pytest.mark.parametrize(
    "task_id",
    ["shop/cancel/7/", "shop/cancel/7/x", "shop/cancel/7/01", "shop/cancel/7/1/2", "shop/none/7/1",
     "shop/cancel/07/1", "shop/7/1"],
)  # fmt: skip
def test_no_other_id_gives_a_task(shop: Shop, task_id: str) -> None:
    with pytest.raises(UnknownTask):
        shop.task(task_id)


def test_an_environment_without_other_words_says_so() -> None:
    mini = Mini()
    task = next(mini.tasks())
    assert mini.rephrase(task, 1) is None
    assert mini.like(task, 5) == mini.generate(task.capability, 5)
    assert mini.like(task.model_copy(update={"split": "test"}), 5) is None
