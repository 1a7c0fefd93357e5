"""The evidence of outputs: which records were read, and which numbers were seen."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.comparison.evidence import (
    MAX_UNSEEN_VALUES,
    count_unseen_values,
    find_breaches,
    find_outputs_without_source,
    has_lookup,
    holds,
)
from envs.comparison.numerals import find_numbers, says
from envs.grading import find_absent_actions, get_version
from envs.task import Criteria, Rules, Source
from events.messages import Action, Message, ToolCall, executed_calls
from tests.envs.mini import Mini, called, calls, graded, heard, said, task

LOOK = called("get_order", order_id="w1")
PRICE = Source(identity={"order_id": "w1"}, fields=("price",))
TELL = task("tell", rules=Rules(sources=((PRICE,),)))
"""Say "1000" once order w1 has been read."""


def answered(call: Message, *results: str, error: bool = False) -> list[Message]:
    """A message with calls, and what the tools answered."""
    return [call, *(Message(role="tool", content=text, error=error) for text in results)]


def by_user(name: str, **arguments: Any) -> Message:
    return Message(role="user", tool_calls=(ToolCall(name=name, arguments=arguments),))


@pytest.mark.parametrize(
    ("messages", "reward"),
    [
        ([LOOK, said("It is 1,000.")], 1),
        ([LOOK, said("It is $1,000.00.")], 1),
        ([said("It is 1,000."), LOOK], 0),
        ([said("It is 1,000."), LOOK, said("It is 1,000.")], 1),
        ([LOOK.model_copy(update={"content": "It is 1,000."})], 0),
        ([called("get_order", order_id="w2"), said("It is 1,000.")], 0),
        ([called("get_order", order_id="w9"), said("It is 1,000.")], 0),
        ([called("get_order"), said("It is 1,000.")], 0),
        ([said("It is 1,000.")], 0),
        ([LOOK, said("It is 11000 or 1000.5 or x1000.")], 0),
        ([LOOK, said(" ".join(map(str, range(3000))))], 0),
        ([LOOK, said("Perhaps 2 3 4 5 6 7 8 9 or 1000.")], 1),
        ([LOOK, said("Perhaps 2 3 4 5 6 7 8 9 10 or 1000.")], 0),
        ([LOOK, said("<think>It is 1,000.</think>I do not know.")], 0),
        ([LOOK, said("It may be 1,000.</think>I do not know.")], 0),
        ([LOOK, said("I do not know. <think>It is 1,000.")], 0),
        ([LOOK, said("It is 1,000. <think>Is it?</think>")], 1),
        ([LOOK, said("so</think>It <think>may</think> be <think>or not</think>1,000.")], 1),
        ([LOOK, said("<think>It</think>is <think>1,000.")], 0),
        ([LOOK, said("<think>2 3 4 5 6 7 8 9 10 11 12</think>It is 1,000.")], 1),
    ],
)
def test_an_output_counts_where_it_is_said_after_its_record_was_read(
    messages: list[Message], reward: float
) -> None:
    verdict = graded(TELL, *messages)
    assert verdict.parts["COMMUNICATE"] == reward
    assert bool(verdict.missing or verdict.violations) is not bool(reward)


def test_a_task_without_rules_is_judged_as_tau2_bench_judges_it() -> None:
    loaded = task("tell")
    assert graded(loaded, said(" ".join(map(str, range(3000))))).reward == 1
    assert graded(loaded, said("11000")).reward == 1
    assert (get_version(loaded), get_version(TELL)) == ("1", "2")
    gold = (Action(name="cancel_order", arguments={"order_id": "w1"}),)
    asked = task(gold_actions=gold, reward_basis=("ACTION",))
    assert graded(asked, called("cancel_order")).reward == 1


@pytest.mark.parametrize(
    ("compare", "arguments", "error", "matches"),
    [
        (None, {"a": 1, "b": 2}, False, True),
        (None, {"a": 1}, False, False),
        (None, {}, False, False),
        (None, {"a": 1, "b": 2}, True, False),
        (("a",), {"a": 1, "b": 3}, False, True),
        (("a",), {"b": 2}, False, False),
        ((), {"b": 3}, False, True),
        ((), {"b": 3}, True, False),
        ((), '{"b": 3', False, False),
    ],
)
def test_under_rules_a_call_must_succeed_with_every_argument_that_counts(
    compare: tuple[str, ...] | None, arguments: dict[str, Any] | str, error: bool, matches: bool
) -> None:
    action = Action(name="t", arguments={"a": 1, "b": 2}, compare=compare)
    criteria = Criteria(gold_actions=(action,), rules=Rules())
    executed = executed_calls(answered(calls(("t", arguments)), "?", error=error))
    assert find_absent_actions(criteria, executed) == (() if matches else (action,))
    assert find_absent_actions(criteria, executed_calls([calls(("t", arguments))])) == (action,)


@pytest.mark.parametrize(
    ("arguments", "result", "identity", "fields", "read"),
    [
        ({}, '{"id": "w1", "price": 3}', {"id": "w1"}, ("price",), True),
        ({}, '{"id": "w1"}', {"id": "w1"}, ("price",), False),
        ({}, '{"id": "w2", "price": 3}', {"id": "w1"}, ("price",), False),
        ({}, '{"own": ["w1"], "price": 3}', {"id": "w1"}, ("price",), False),
        ({}, '[{"all": {"w1": {"id": "w1", "price": null}}}]', {"id": "w1"}, ("price",), True),
        ({"id": "w1"}, '{"price": 3}', {"id": "w1"}, ("price",), True),
        ({"id": "w1"}, '{"id": "w2", "price": 3}', {"id": "w1"}, ("price",), False),
        ({"id": "w1", "price": 3}, '{"done": true}', {"id": "w1"}, ("price",), False),
        ({"flight": "K1", "day": 2}, "delayed", {"flight": "K1", "day": 2}, (), True),
        ({"flight": "K1", "day": 3}, "delayed", {"flight": "K1", "day": 2}, (), False),
        ({"flight": "K1"}, "[]", {"flight": "K1"}, (), False),
        ({"flight": "K1"}, "delayed", {"flight": "K1"}, ("status",), False),
        ('{"id": "w1"', '{"price": 3}', {"id": "w1"}, ("price",), False),
        ({}, '{"id": 5.0, "price": 0.1}', {"id": 5, "price": 0.1}, (), True),
        ({}, "[" * 100_000, {"id": 5}, (), False),
    ],
)
def test_a_result_holds_a_record_where_an_object_of_it_has_the_fields(
    arguments: dict[str, Any] | str,
    result: str,
    identity: dict[str, Any],
    fields: tuple[str, ...],
    read: bool,
) -> None:
    source = Source(identity=identity, fields=fields)
    item = executed_calls(answered(calls(("t", arguments)), result))[0]
    assert holds(item, source) is read
    failed = executed_calls(answered(calls(("t", arguments)), result, error=True))[0]
    assert not holds(failed, source)
    assert not holds(executed_calls([calls(("t", arguments))])[0], source)


def test_an_output_may_need_several_records_and_either_party_may_read_them() -> None:
    other = Source.of({"user": "u1", "level": "gold"}, "user", "level")
    rules = Rules(sources=((PRICE, other),))
    first = answered(LOOK, '{"price": 1000}')
    second = answered(by_user("show", user="u1"), '{"level": "gold"}')
    for read, supported in ((first, False), (second, False), (first + second, True)):
        unsupported = find_outputs_without_source(("1000",), rules, [*read, said("1000")])
        assert unsupported == (() if supported else ("1000",))
    assert find_outputs_without_source(("1000",), rules, [said("Hi.")]) == (), "it was never said"
    both = [*first, *second, said("1000 x")]
    assert find_outputs_without_source(("1000", "x"), rules, both) == ()
    with pytest.raises(KeyError, match="rank"):
        Source.of({"user": "u1"}, "user", "rank")


def test_what_a_prefix_read_and_said_counts() -> None:
    begun = [m.model_copy(update={"sampled": False}) for m in answered(LOOK, '{"price": 1000}')]
    rules = Rules(sources=((PRICE,),))
    assert find_outputs_without_source(("1000",), rules, [*begun, said("1000")]) == ()
    numbers = said(" ".join(map(str, range(100)))).model_copy(update={"sampled": False})
    assert count_unseen_values("", [numbers, said("It is 40.")]) == 0


@pytest.mark.parametrize(
    ("messages", "unseen"),
    [
        ([said("1, 2 and 2.0, and -2")], 2),
        ([heard("I want 2 bags."), said("So 2.")], 0),
        ([said("So 2."), heard("I want 2 bags.")], 1),
        ([*answered(LOOK, '{"prices": [120,130]}'), said("120 or 130, not 120130")], 1),
        ([*answered(LOOK, "250.0"), said("$250")], 0),
        ([*answered(LOOK, '{"2024-05-15": 0.1}'), said("May 15, 2024, for 0.10")], 0),
        ([*answered(LOOK, "250", error=True), said("250")], 1),
        ([*answered(called("echo", text="7 8"), "7 8 9"), said("7 8 9")], 2),
        ([*answered(calls(("echo", "[7, 8")), "7 8"), said("7 8")], 2),
        ([*answered(called("note", text="7"), "ok"), *answered(LOOK, "7"), said("7")], 1),
        ([heard("7"), *answered(called("find", number=7), '{"number": 7}'), said("7")], 0),
        ([said("Order w1, #A250B and 7th.")], 3),
            ([heard("Order w1, #A250B, May 7."), said("Order w1, #A250B, on the 7th.")], 0),
            ([said("250.75")], 1),
            ([said(" ".join(f"2024-05-{day:02}" for day in range(1, 32)))], 31),
        ([said("28")], 0),
        ([said(f"{'9' * 100_000} 1e5 ٣")], 3),
        ([Message(role="tool", content="7"), said("7")], 1),
    ],
)  # fmt: skip
def test_a_value_is_unseen_where_nothing_showed_it_before(
    messages: list[Message], unseen: int
) -> None:
    assert count_unseen_values("Rule 28.", messages) == unseen


def test_a_calculator_shows_no_number() -> None:
    sums = [
        message
        for count in range(9)
        for message in answered(called("calculate", expression=f"{count}+300"), str(count + 300))
    ]
    told = [*sums, said(" ".join(str(count + 300) for count in range(9)))]
    assert count_unseen_values("300", told) == 0
    assert count_unseen_values("300", told, {"calculate"}) == 8


def test_an_agent_that_adds_up_six_prices_stays_below_the_limit() -> None:
    prices = [312, 1250, 87, 640, 455, 98]
    talk = [heard("What did I pay in all?")]
    for place, price in enumerate(prices):
        talk += answered(called("get_order", order_id=f"w{place}"), f'{{"price": {price}}}')
    sums = [sum(prices[: count + 1]) for count in range(len(prices))]
    steps = ", ".join(
        f"{before} + {price} = {after}"
        for before, price, after in zip(sums, prices[1:], sums[1:], strict=False)
    )
    assert count_unseen_values("", [*talk, said(steps)]) == len(prices) - 1 <= MAX_UNSEEN_VALUES


@pytest.mark.parametrize("output", ["2026-05-24", "555-0142", "24.5.2026"])
def test_what_has_several_numbers_is_said_as_a_text(output: str) -> None:
    assert says(f"It is {output}.", output)
    assert not says(f"It is {output[:4]} and {output[-4:]}.", output)


def test_a_lookup_is_a_reading_call_of_either_party_that_did_not_fail() -> None:
    lookups = Mini().lookups
    assert lookups == {"get_order", "broken"}
    assert has_lookup(answered(LOOK, "{}"), lookups)
    assert has_lookup(answered(by_user("get_order"), "{}"), lookups)
    assert not has_lookup(answered(LOOK, "{}", error=True), lookups)
    assert not has_lookup([LOOK], lookups)
    assert not has_lookup(answered(called("cancel_order"), "{}"), lookups)


texts = st.text(alphabet="0123456789.,-+$ x", max_size=40)


@given(st.integers(0, 10**6), texts)
def test_a_number_that_is_said_was_seen_or_counts_as_unseen(number: int, text: str) -> None:
    output = str(number)
    counted = count_unseen_values("", [said(text)])
    assert not says(text, output) or counted
    assert count_unseen_values("", [heard(text), said(text)]) == 0
    assert says(text, output) == (Decimal(number) in find_numbers(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3) | st.text(), st.text())
def test_no_transcript_makes_evidence_fail(arguments: dict[str, Any] | str, result: str) -> None:
    messages = [*answered(calls(("t", arguments)), result), said(result)]
    rules = Rules(sources=((Source(identity={"a": 1}),), (PRICE,)))
    list(find_breaches(("1000", result), rules, result, messages))


def test_a_text_is_guessed_by_no_number() -> None:
    counting = [said(" ".join(map(str, range(100))))]
    assert list(find_breaches(("blue",), Rules(), "", counting)) == []
    assert list(find_breaches(("17 May",), Rules(), "", counting)) != []
