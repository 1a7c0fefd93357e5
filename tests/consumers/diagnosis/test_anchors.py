"""Anchors: which rollouts are neighbours of a failure, and how a pattern keeps them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.diagnosis.anchors import (
    ANCHORS,
    TOOLS,
    AnchorIndex,
    add_round,
    find_wide_anchor,
    select_tools,
    sign_request,
)
from consumers.diagnosis.kinds import find_kind
from events.messages import Message


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("shop/exchange/12", "shop/exchange"),
        ("shop/exchange/12/3", "shop/exchange"),
        ("mine/deep/kind/7", "mine/deep/kind"),
        ("retail/12", None),
        ("retail/12/3", None),
        ("12", None),
        ("multi_turn_base_12", None),
        ("shop/exchange", None),
        (None, None),
    ],
)
def test_the_kind_is_read_off_the_id_of_a_generated_task(
    task: str | None, kind: str | None
) -> None:
    assert find_kind(task) == kind


def signed(text: str) -> str:
    signature = sign_request([Message(role="system", content="rules"),
                              Message(role="user", content=text)])  # fmt: skip
    assert signature is not None
    return signature


def near(first: str, second: str) -> bool:
    index = AnchorIndex([f"words:{signed(first)}"])
    return bool(index.match(None, [], signed(second), "t"))


def test_requests_that_share_most_words_are_near_and_others_are_not() -> None:
    request = "hello i want to exchange the blue shoes of my last order for a larger pair"
    assert near(request, "Hello, I want to exchange the red shoes of my order for a larger pair.")
    assert not near(request, "please cancel tomorrow's hotel booking in Lisbon and refund me")


def test_order_case_and_numbers_do_not_change_a_signature() -> None:
    assert signed("Cancel order #W123 please") == signed("please cancel ORDER #W987")


def test_a_request_without_words_has_no_signature() -> None:
    assert sign_request([Message(role="user", content="12 34")]) is None
    assert sign_request([]) is None


def test_a_rollout_lies_at_its_kind_its_tools_and_its_task() -> None:
    index = AnchorIndex(["kind:shop/exchange", "tool:cancel", "task:rollout:r", "tool:pay"])
    assert index.match("shop/exchange", ["cancel", "look"], None, "x") == {
        "kind:shop/exchange", "tool:cancel",
    }  # fmt: skip
    assert index.match(None, [], None, "rollout:r") == {"task:rollout:r"}
    assert index.match(None, ["look"], signed("something else"), "x") == set()


def test_at_a_tool_and_words_lie_the_near_rollouts_with_that_tool() -> None:
    request = "hello i want to exchange the blue shoes of my last order for a larger pair"
    anchor = f"near:{signed(request)}:pay:now"
    index = AnchorIndex([anchor, "tool:pay:now"])
    alike = signed("Hello, I want to exchange the red shoes of my order for a larger pair.")
    assert index.match(None, ["pay:now"], alike, "x") == {anchor, "tool:pay:now"}
    assert index.match(None, ["cancel"], alike, "x") == set()
    assert index.match(None, ["pay:now"], signed("refund tomorrow's hotel in Lisbon"), "x") == {
        "tool:pay:now"
    }
    assert index.match(None, ["pay:now"], None, "x") == {"tool:pay:now"}
    assert find_wide_anchor(anchor) == "tool:pay:now"
    assert find_wide_anchor("tool:pay:now") is None


def test_equal_anchors_are_kept_whatever_their_wording() -> None:
    names = [f"near:{word}{number:03d}:pay" for word in "ab" for number in range(40)]
    kept = add_round({}, dict.fromkeys(names, 1))
    assert {name[5] for name in kept} == {"a", "b"}


def test_a_row_names_a_bounded_number_of_tools() -> None:
    names = [f"tool{number:03d}" for number in range(200)]
    assert select_tools([*reversed(names), "", "x" * 101]) == names[:TOOLS]


counts = st.dictionaries(st.text(max_size=2), st.integers(1, 50), max_size=60)


@given(st.lists(counts, max_size=5))
def test_a_pattern_keeps_its_heaviest_anchors_whatever_their_order(
    rounds: list[dict[str, int]],
) -> None:
    weights: dict[str, float] = {}
    backwards: dict[str, float] = {}
    for closed in rounds:
        weights = add_round(weights, closed)
        backwards = add_round(backwards, dict(reversed(closed.items())))
    assert list(weights.items()) == list(backwards.items())
    assert len(weights) <= ANCHORS
    if len(rounds) == 1 and weights:
        left_out = [rounds[0][name] for name in rounds[0].keys() - weights.keys()]
        assert max(left_out, default=0) <= min(weights.values())


def test_an_anchor_halves_with_every_round_without_failures_and_is_forgotten() -> None:
    weights = add_round({}, {"a": 8})
    assert add_round(weights, {"b": 1}) == {"a": 4.0, "b": 1}
    for _ in range(30):
        weights = add_round(weights, {})
    assert weights == {}
