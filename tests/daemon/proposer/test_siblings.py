"""Siblings: passed tasks that ask in the words of failed ones, and fresh tasks like them."""

from collections import Counter

import pytest

from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from daemon.proposer.siblings import (
    NEIGHBOURS,
    Request,
    draw_siblings,
    find_regressions,
    find_siblings,
)
from daemon.proposer.verification import seed_of
from envs.shop.environment import Shop

SHOP = Shop()


def request(name: str, words: str, *writes: str) -> Request:
    return Request(name, name.split("/")[1], frozenset(words.split()), writes)


def shop_request(kind: str, seed: int) -> Request:
    return Request.of(SHOP.generate(kind, seed), SHOP.writes)


def test_siblings_ask_in_the_words_of_a_failed_task_and_have_another_generator() -> None:
    failed = {request("e/swap/1", "swap the red mug or the blue", "exchange"): 1.0}
    passed = [
        request("e/swap/2", "swap the red mug or the blue", "exchange"),
        request("e/change/1", "swap the red mug", "exchange"),
        request("e/return/1", "return the red mug", "refund"),
        request("e/cancel/1", "cancel my order", "cancel"),
        request("e/cancel/2", "cancel it", "cancel"),
        request("e/cancel/3", "stop it", "cancel"),
    ]
    weights = find_siblings(failed, passed)
    assert "e/swap/2" not in weights, "it is a target itself"
    assert max(weights, key=lambda task: weights[task]) == "e/return/1", "near, with other writes"
    assert weights["e/change/1"] > 0, "near, with the same writes"
    assert sum(weights.values()) == pytest.approx(1)


def test_failed_tasks_give_their_weights_to_their_siblings() -> None:
    passed = [
        request(f"e/{kind}/{n}", kind, kind) for kind in ("a", "b") for n in range(NEIGHBOURS)
    ]
    failed = {request("e/x/1", "a", "y"): 3.0, request("e/x/2", "b", "y"): 1.0}
    weights = find_siblings(failed, passed)
    assert sum(weights[f"e/a/{n}"] for n in range(NEIGHBOURS)) == pytest.approx(3)
    assert sum(weights[f"e/b/{n}"] for n in range(NEIGHBOURS)) == pytest.approx(1)
    assert find_siblings(failed, []) == {}
    assert find_siblings({}, passed) == {}


def test_what_is_refused_in_the_words_of_a_failure_is_a_sibling_of_it() -> None:
    """`ineligible` asks as `cancel`, `return` and others do, and nothing may be written for it."""
    plain = ("question", "cancel", "return", "exchange", "payment", "address", "ineligible")
    passed = [shop_request(kind, seed) for kind in plain for seed in range(12)]
    failed = {shop_request("cancel", seed): 1.0 for seed in range(100, 108)}
    weights = find_siblings(failed, passed)
    kinds: dict[str, float] = {}
    for task, weight in weights.items():
        kind = SHOP.task(task).capability
        kinds[kind] = kinds.get(kind, 0.0) + weight
    assert "cancel" not in kinds
    assert kinds["ineligible"] == max(kinds.values())


def test_drawn_siblings_are_fresh_tasks_of_the_same_generators() -> None:
    near = {"shop/exchange/3": 3.0, "shop/cancel/4": 1.0}
    siblings = draw_siblings(SHOP, [near], 80, "cycle")
    assert siblings == draw_siblings(SHOP, [near], 80, "cycle")
    assert siblings != draw_siblings(SHOP, [near], 80, "another")
    kinds = Counter(SHOP.task(task).capability for task in siblings)
    assert kinds.keys() == {"exchange", "cancel"}
    assert 45 <= kinds["exchange"] <= 74
    assert all(FIRST_SEED <= (seed_of(task) or 0) <= LAST_SEED for task in siblings)
    assert draw_siblings(SHOP, [{}], 80, "cycle") == ()


def test_regressions_are_the_generators_that_lost_on_the_whole() -> None:
    differences = {
        "shop/exchange/1": -1.0, "shop/exchange/2": -0.5, "shop/exchange/3": 0.0,
        "shop/cancel/1": -0.5, "shop/cancel/2": 0.0,
        "shop/question/1": -1.0, "shop/question/2": 1.0, "shop/question/3": 0.5,
    }  # fmt: skip
    assert find_regressions(differences) == {
        "shop/exchange/1": 0.75, "shop/exchange/2": 0.75, "shop/cancel/1": 0.5,
    }  # fmt: skip
    assert find_regressions({"shop/cancel/2": 0.0}) == {}


def test_what_is_near_and_what_was_lost_are_replayed_equally_often() -> None:
    groups = ({"shop/payment/1": 40.0}, {"shop/exchange/2": 1.0})
    siblings = draw_siblings(SHOP, groups, 200, "cycle")
    kinds = Counter(SHOP.task(task).capability for task in siblings)
    assert 70 <= kinds["payment"] <= 130
    assert kinds["payment"] + kinds["exchange"] == 200
