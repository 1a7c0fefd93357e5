"""Each rule on small rollouts that show it and on such that almost do; pivot, dedup key, order."""

import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.diagnosis.detectors import CATEGORIES, Diagnosis, dedup_key, diagnose
from consumers.diagnosis.matching import value_key
from consumers.diagnosis.response_patterns import asks, hands_over, overflows, refuses
from envs.catalog import CATALOGS, ToolCatalog, catalog, restore_catalog
from events.canonical import canonical_json
from events.messages import Action, Message, ToolCall
from events.rollouts import RolloutContent, RolloutEnded, Task, ToolRoles

AIRLINE = CATALOGS["airline"]
RETAIL = CATALOGS["retail"]
TELECOM = CATALOGS["telecom"]


def call(name: str, error: bool = False, text: str = "ok", **arguments: Any) -> list[Message]:
    """A call of the agent and its result."""
    return [
        Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),)),
        Message(role="tool", content=text, error=error),
    ]


def unanswered(name: str, **arguments: Any) -> list[Message]:
    return call(name, **arguments)[:1]


def agent(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


LOGIN = call("get_user_details", user_id="u1")
BYE = user("Thanks. ###STOP###")


def gold(name: str, **arguments: Any) -> Action:
    return Action(name=name, arguments=arguments)


def rollout(
    *parts: list[Message],
    expected: Sequence[Action] | None = (),
    outputs: Sequence[str] = (),
    success: bool | None = False,
    **fields: Any,
) -> RolloutEnded:
    task = Task(
        id="airline/1",
        gold_actions=None if expected is None else tuple(expected),
        outputs=tuple(outputs),
    )
    given_fields: dict[str, Any] = {"task": task, "termination": "user_stop"} | fields
    return RolloutEnded(
        rollout="r1",
        alias="agent",
        base="m",
        policy="m",
        source="test",
        success=success,
        content=RolloutContent(messages=tuple(message for part in parts for message in part)),
        **given_fields,
    )


def airline(*parts: list[Message], **fields: Any) -> Diagnosis:
    """The diagnosis of a failed airline rollout that reached the user's record."""
    return diagnose(rollout(LOGIN, *parts, BYE, **fields), AIRLINE)


CANCEL_A = gold("cancel_reservation", reservation_id="A")
CANCEL_B = gold("cancel_reservation", reservation_id="B")
FLIGHTS_A = gold(
    "update_reservation_flights",
    reservation_id="A",
    cabin="economy",
    flights=[{"flight_number": "HAT1", "date": "2024-05-20"}],
    payment_id="card",
)
DONE_A = call("cancel_reservation", reservation_id="A")
DONE_B = call("cancel_reservation", reservation_id="B")


def flights(**changes: Any) -> list[Message]:
    return call("update_reservation_flights", **(dict(FLIGHTS_A.arguments) | changes))


# What is diagnosed at all


def test_a_clean_success_and_an_unjudged_rollout_have_no_category() -> None:
    nothing = Diagnosis(None, (), "*")
    assert diagnose(rollout(DONE_A, success=True, reward=1.0), AIRLINE) == nothing
    assert diagnose(rollout(DONE_A, success=True, reward=None), AIRLINE) == nothing
    assert diagnose(rollout(DONE_A, success=None, reward=0.0), AIRLINE) == nothing


def test_a_success_shaped_below_kappa_violates_policy() -> None:
    found = diagnose(
        rollout(
            DONE_A, expected=[CANCEL_A], success=True, reward=0.59, reward_parts={"auth": -0.5}
        ),
        AIRLINE,
    )
    assert (found.category, found.categories, found.pivot) == (
        "policy_violation",
        ("policy_violation",),
        "*",
    )
    assert found.evidence["policy_violation"] == [{"reward": 0.59, "parts": {"auth": -0.5}}]
    assert diagnose(rollout(success=True, reward=0.6), AIRLINE).category is None


def test_a_failure_always_has_a_category() -> None:
    assert airline().categories == ("other",)
    assert diagnose(rollout(expected=None, task=None, termination=None), None).categories == (
        "other",
    )


def test_evidence_is_json() -> None:
    found = airline(DONE_B, flights(cabin="business"), expected=[CANCEL_A, FLIGHTS_A])
    assert json.loads(json.dumps(found.evidence)) == found.evidence
    assert tuple(found.evidence) == found.categories


# context_overflow


@pytest.mark.parametrize(
    "termination",
    ["context_window_exceeded", "error: This model's maximum context length is 8192 tokens"],
)
def test_a_full_context_is_an_overflow(termination: str) -> None:
    found = airline(termination=termination)
    assert found.category == "context_overflow"


def test_an_overflow_in_the_last_tool_error_counts_and_one_in_talk_does_not() -> None:
    last = call("get_reservation_details", error=True, text="Error: prompt is too long")
    assert diagnose(rollout(LOGIN, last), AIRLINE).category == "context_overflow"
    talk = agent("The context window of the plane is large.")
    assert "context_overflow" not in airline(talk).categories


# tool_loop


def look(reservation: str = "A", **more: Any) -> list[Message]:
    return call("get_reservation_details", reservation_id=reservation, **more)


def test_three_equal_calls_in_a_row_are_a_loop_even_with_talk_between() -> None:
    found = airline(look(), agent("One moment."), user("ok"), look(), look())
    assert found.category == "tool_loop"
    assert found.evidence["tool_loop"][0]["kind"] == "in a row"
    assert len(found.evidence["tool_loop"][0]["turns"]) == 3


def test_two_in_a_row_three_in_all_and_changing_arguments_are_no_loop() -> None:
    assert airline(look(), look()).category == "other"
    assert airline(look(), look(), look("B"), look()).category == "other"
    assert airline(*[look(name) for name in "ABCDEF"]).category == "other"


def test_four_equal_calls_in_all_are_a_loop_whatever_their_spelling() -> None:
    spelled = [
        call("calculate", a=2, b=" x"),
        call("calculate", b="x", a=2.0),
        call("calculate", a=2, b="x "),
        call("calculate", a=2, b="x"),
    ]
    mixed = [part for place, one in enumerate(spelled) for part in (one, look(str(place)))]
    assert airline(*mixed).category == "tool_loop"


def test_four_errors_of_one_tool_are_a_loop_and_of_two_tools_are_not() -> None:
    errors = [look(name, error=True) for name in "ABCD"]
    assert airline(*errors).category == "tool_loop"
    other = call("search_direct_flight", error=True)
    assert airline(*errors[:3], other).category == "other"


def test_calls_of_the_user_are_not_the_agents_loop() -> None:
    restart = [
        Message(role="user", tool_calls=(ToolCall(name="reboot_device"),)),
        Message(role="tool", content="ok"),
    ]
    reach = call("get_customer_by_phone", phone_number="1")
    found = diagnose(rollout(reach, *[restart] * 5, BYE), TELECOM)
    assert found.category == "other"


# user_id_failure


def test_a_record_that_was_never_reached() -> None:
    assert diagnose(rollout(agent("Your id, please."), BYE), AIRLINE).category == "user_id_failure"
    failed = call("get_user_details", error=True, user_id="x")
    assert diagnose(rollout(failed, BYE), AIRLINE).category == "user_id_failure"
    assert diagnose(rollout(failed, LOGIN, BYE), AIRLINE).category == "other"


def test_an_error_is_read_from_the_text_where_nobody_flagged_it() -> None:
    result = Message(role="tool", content="Error: user not found")
    silent = [call("get_user_details")[0], result]
    assert diagnose(rollout(silent, BYE), AIRLINE).category == "user_id_failure"


def test_a_record_that_was_not_needed_for_what_was_tried_is_no_primary_fault() -> None:
    """Whoever changed something, handed over or said a wrong figure failed at that."""
    look = call("get_reservation_details", reservation_id="A")
    wrote = diagnose(rollout(look, DONE_B, BYE, expected=[CANCEL_A]), AIRLINE)
    assert wrote.categories == ("wrong_entity", "user_id_failure")
    failed = call("cancel_reservation", error=True, reservation_id="X")
    assert diagnose(rollout(failed, BYE, expected=[CANCEL_A]), AIRLINE).categories == (
        "incorrect_arguments",
        "user_id_failure",
    )
    handed = diagnose(
        rollout(look, call("transfer_to_human_agents"), BYE, expected=[CANCEL_A]), AIRLINE
    )
    assert handed.categories[0] == "over_cautious"
    silent = diagnose(rollout(look, BYE, outputs=["312"]), AIRLINE)
    assert silent.categories == ("information_error", "user_id_failure")
    talked = diagnose(rollout(look, agent("Sorry."), BYE, expected=[CANCEL_A]), AIRLINE)
    assert talked.categories == ("user_id_failure", "missing_write_action")


def test_a_record_that_was_never_reached_stays_the_fault_where_nothing_else_is() -> None:
    done = rollout(DONE_A, BYE, expected=[CANCEL_A])
    assert diagnose(done, AIRLINE).categories == ("user_id_failure",)


@pytest.mark.parametrize("tool", sorted(RETAIL.user_record))
def test_each_way_to_the_record_counts_in_retail(tool: str) -> None:
    assert diagnose(rollout(call(tool), BYE), RETAIL).category == "other"


def test_nobody_is_blamed_for_a_rollout_that_never_began() -> None:
    assert diagnose(rollout(termination="infrastructure_error"), AIRLINE).categories == (
        "premature_termination",
    )


# policy_violation


def test_a_write_beside_the_gold_ones_violates_policy() -> None:
    found = airline(DONE_A, DONE_B, expected=[CANCEL_A])
    assert found.categories == ("policy_violation",)
    assert found.evidence["policy_violation"][0]["arguments"] == {"reservation_id": "B"}
    assert airline(DONE_A, expected=[]).category == "policy_violation"


def test_a_write_made_twice_is_one_too_many() -> None:
    assert airline(DONE_A, DONE_A, expected=[CANCEL_A]).category == "policy_violation"
    assert airline(DONE_A, DONE_A, expected=[CANCEL_A, CANCEL_A]).category == "other"


def test_failed_and_unanswered_writes_and_reads_violate_nothing() -> None:
    failed = call("cancel_reservation", error=True, reservation_id="A")
    found = diagnose(
        rollout(LOGIN, look(), failed, unanswered("cancel_reservation", reservation_id="B")),
        AIRLINE,
    )
    assert "policy_violation" not in found.categories


# wrong_tool


def test_another_write_on_the_record() -> None:
    assert airline(DONE_A, expected=[FLIGHTS_A]).categories == ("wrong_tool",)


def test_the_record_goes_before_the_tool() -> None:
    # Cancelling B instead of changing it is the wrong tool; A was not cancelled at all.
    change_b = gold("update_reservation_passengers", reservation_id="B", passengers=[])
    found = airline(DONE_B, expected=[CANCEL_A, change_b])
    assert found.categories == ("wrong_tool", "missing_write_action")


def test_gold_that_only_transfers() -> None:
    transfer = gold("transfer_to_human_agents", summary="s")
    made = call("transfer_to_human_agents", summary="other words")
    assert airline(expected=[transfer]).categories == ("wrong_tool",)
    assert airline(made, expected=[transfer]).categories == ("other",)
    both = airline(DONE_A, made, expected=[transfer])
    assert both.categories == ("policy_violation", "wrong_tool")


# wrong_entity


def test_the_same_tool_on_another_record() -> None:
    found = airline(DONE_B, expected=[CANCEL_A])
    assert found.categories == ("wrong_entity",)
    evidence = found.evidence["wrong_entity"][0]
    assert evidence["differs"] == {"reservation_id": {"gold": "A", "executed": "B"}}


def test_exact_pairs_are_made_first() -> None:
    # In order of execution B would stand for A, and A would be one too many.
    assert airline(DONE_B, DONE_A, expected=[CANCEL_A]).categories == ("policy_violation",)


# wrong_item_selection, incorrect_arguments


@pytest.mark.parametrize(
    ("changes", "categories"),
    [
        ({"cabin": "business"}, ("wrong_item_selection",)),
        ({"flights": []}, ("wrong_item_selection",)),
        ({"payment_id": "gift"}, ("incorrect_arguments",)),
        ({"note": "x"}, ("incorrect_arguments",)),
        ({"cabin": "business", "payment_id": "g"}, ("wrong_item_selection", "incorrect_arguments")),
        ({}, ("other",)),
    ],
)
def test_arguments_that_differ(changes: dict[str, Any], categories: tuple[str, ...]) -> None:
    assert airline(flights(**changes), expected=[FLIGHTS_A]).categories == categories


def test_only_the_arguments_that_gold_compares_count() -> None:
    expected = FLIGHTS_A.model_copy(update={"compare": ("reservation_id", "cabin")})
    assert airline(flights(payment_id="g"), expected=[expected]).category == "other"
    assert airline(flights(cabin="b"), expected=[expected]).category == "wrong_item_selection"


def test_the_closest_write_stands_for_gold() -> None:
    near, far = flights(payment_id="gift"), flights(payment_id="gift", cabin="business")
    found = airline(far, near, expected=[FLIGHTS_A])
    assert found.categories == ("policy_violation", "incorrect_arguments")


def test_items_in_another_order_are_the_same_selection() -> None:
    reach = call("get_user_details", user_id="u1")
    for environment, tool in ((RETAIL, "return_delivered_order_items"), (None, "return_goods")):
        expected = gold(tool, order_id="#1", item_ids=["7", "8"])
        turned = call(tool, order_id="#1", item_ids=["8", "7"])
        found = diagnose(rollout(reach, turned, BYE, expected=[expected]), environment)
        assert (found.category, found.pivot) == ("other", "*")


@pytest.mark.parametrize(
    ("environment", "tool"),
    [
        (RETAIL, "exchange_delivered_order_items"),
        (RETAIL, "modify_pending_order_items"),
        (None, "exchange_goods"),
    ],
)
def test_pairs_in_another_order_are_the_same_selection_and_others_are_not(
    environment: ToolCatalog | None, tool: str
) -> None:
    reach = call("get_user_details", user_id="u1")
    expected = gold(tool, order_id="#1", item_ids=["1", "2"], new_item_ids=["3", "4"])
    turned = call(tool, order_id="#1", item_ids=["2", "1"], new_item_ids=["4", "3"])
    crossed = call(tool, order_id="#1", item_ids=["2", "1"], new_item_ids=["3", "4"])
    for made, category in ((turned, "other"), (crossed, "wrong_item_selection")):
        found = diagnose(rollout(reach, made, BYE, expected=[expected]), environment)
        assert found.category == category


def test_lists_of_one_call_that_are_no_pairs_have_no_order_each() -> None:
    expected = gold("book_reservation", user_id="u1", flights=["1", "2"], passengers=["a", "b"])
    turned = call("book_reservation", user_id="u1", flights=["2", "1"], passengers=["a", "b"])
    assert airline(turned, expected=[expected]).category == "other"


def test_order_in_lists_counts_where_nothing_says_otherwise() -> None:
    expected = gold("plan_route", order_id="#1", stops=["1", "2"])
    turned = call("plan_route", order_id="#1", stops=["2", "1"])
    roles = ToolRoles(writes=("plan_route", "pick"), record_arguments=("order_id",))
    undeclared = rollout(turned, expected=[expected], write_tools=("plan_route",))
    assert diagnose(undeclared, None).category == "incorrect_arguments"
    chosen = gold("pick", order_id="#1", item_ids=["1", "2"])
    picked = rollout(call("pick", order_id="#1", item_ids=["2", "1"]), expected=[chosen])
    assert diagnose(picked, restore_catalog("own", roles)).category == "incorrect_arguments"


def test_a_gold_write_that_was_tried_and_only_failed() -> None:
    failed = call("cancel_reservation", error=True, reservation_id="A")
    found = airline(failed, agent("I cannot cancel it."), expected=[CANCEL_A])
    assert found.categories == ("incorrect_arguments",)
    assert found.evidence["incorrect_arguments"][0]["only_failed"][0]["tool"] == (
        "cancel_reservation"
    )
    assert airline(failed, DONE_A, expected=[CANCEL_A]).category == "other"


def test_a_failed_try_of_one_gold_write_is_no_try_of_another() -> None:
    failed = call("cancel_reservation", error=True, reservation_id="A")
    found = airline(failed, DONE_A, expected=[CANCEL_A, CANCEL_B])
    assert found.categories == ("missing_write_action",)
    unknown = call("cancel_reservation", error=True, reservation_id="b?")
    assert airline(unknown, DONE_A, expected=[CANCEL_A, CANCEL_B]).category == (
        "incorrect_arguments"
    )


# over_cautious


@pytest.mark.parametrize(
    "words",
    [
        "I'm sorry, but I cannot cancel this reservation.",
        "Unfortunately, your ticket is not eligible for a refund.",
        "Basic economy flights cannot be modified.",
        "We don’t offer that.",
    ],
)
def test_a_refusal_instead_of_the_write(words: str) -> None:
    found = airline(agent(words), expected=[CANCEL_A])
    assert found.categories == ("over_cautious", "missing_write_action")


def test_a_transfer_instead_of_the_write() -> None:
    transfer = call("transfer_to_human_agents", summary="s")
    found = airline(transfer, expected=[CANCEL_A])
    assert found.categories == ("over_cautious", "missing_write_action")
    promised = agent("I will transfer you now.")
    assert airline(promised, expected=[CANCEL_A]).category == "over_cautious"
    taken = rollout(LOGIN, agent("A person can help."), user("###TRANSFER###"), expected=[CANCEL_A])
    assert diagnose(taken, AIRLINE).category == "over_cautious"


def test_no_caution_where_the_writes_were_made_or_gold_transfers_too() -> None:
    transfer = call("transfer_to_human_agents", summary="s")
    refusal = agent("I cannot cancel this reservation.")
    assert airline(refusal, DONE_A, expected=[CANCEL_A]).category == "other"
    expected = [CANCEL_A, gold("transfer_to_human_agents", summary="s")]
    assert airline(transfer, expected=expected).categories == ("missing_write_action",)


def test_a_refusal_that_was_taken_back_is_none() -> None:
    twice = [
        FLIGHTS_A,
        gold("update_reservation_flights", **dict(FLIGHTS_A.arguments, cabin="business")),
    ]
    refused = agent("I cannot change these flights.")
    made = flights()
    assert airline(refused, made, expected=twice).category == "missing_write_action"
    assert airline(made, refused, expected=twice).category == "over_cautious"
    # What was made is another write: the refusal of the first stands.
    assert airline(agent("I cannot cancel it."), made, expected=[FLIGHTS_A, CANCEL_A]).category == (
        "over_cautious"
    )


def test_saying_for_what_alone_something_is_done_refuses_the_rest() -> None:
    only = "Exchanges can only be processed for delivered orders."
    assert refuses(only)
    assert not refuses("Items can only be modified once, so please check the list.")
    assert not refuses("The refund can be processed for delivered orders only.")


def test_writes_are_paired_by_the_fewest_differences_over_all_gold_writes() -> None:
    business = dict(FLIGHTS_A.arguments, cabin="business")
    upgrade = gold("update_reservation_flights", **business)
    moved = dict(business, flights=[{"flight_number": "HAT9", "date": "2024-05-21"}])
    move = gold("update_reservation_flights", **moved)
    # One call, which differs from the move in its payment alone and from the upgrade in more.
    paid_otherwise = call("update_reservation_flights", **dict(moved, payment_id="gift"))
    found = airline(paid_otherwise, expected=[upgrade, move])
    assert found.category == "incorrect_arguments"


# premature_termination


@pytest.mark.parametrize(
    "termination", ["max_steps", "timeout", "too_many_errors", "agent_error", "unexpected_error"]
)
def test_a_limit_or_an_error_ended_it(termination: str) -> None:
    assert airline(termination=termination).category == "premature_termination"


def test_an_open_question_ended_it() -> None:
    found = airline(agent("Shall I cancel it?"), expected=[CANCEL_A])
    assert found.categories == ("premature_termination", "missing_write_action")
    answered = rollout(LOGIN, agent("Shall I?"), user("Yes"), agent("Bye."), expected=[CANCEL_A])
    assert diagnose(answered, AIRLINE).categories == ("missing_write_action",)


def test_courtesy_is_no_open_question() -> None:
    polite = agent("Done. Is there anything else I can help you with today?")
    assert airline(polite, expected=[CANCEL_A]).categories == ("missing_write_action",)


def test_a_record_that_breaks_off() -> None:
    cut = rollout(LOGIN, look(), expected=[CANCEL_A], termination=None)
    assert diagnose(cut, AIRLINE).category == "premature_termination"
    waiting = rollout(LOGIN, user("And now?"), expected=[CANCEL_A], termination=None)
    assert diagnose(waiting, AIRLINE).category == "premature_termination"
    ended = rollout(LOGIN, agent("Bye."), BYE, expected=[CANCEL_A], termination=None)
    assert diagnose(ended, AIRLINE).category == "missing_write_action"
    transferred = rollout(
        LOGIN, call("transfer_to_human_agents", summary="s"), expected=[], termination=None
    )
    assert diagnose(transferred, AIRLINE).category == "other"


# missing_write_action, information_error, other


def test_a_gold_write_nobody_made() -> None:
    found = airline(DONE_A, expected=[CANCEL_A, CANCEL_B])
    assert found.categories == ("missing_write_action",)
    assert found.evidence["missing_write_action"][0]["gold"] == 1


def test_a_required_output_that_was_not_said() -> None:
    found = airline(DONE_A, agent("It is 100."), expected=[CANCEL_A], outputs=["100", "23553"])
    assert found.categories == ("information_error",)
    assert found.evidence["information_error"] == [{"unsaid": ["23553"]}]
    said = agent("You saved $23,553 on 100 flights.")
    assert airline(DONE_A, said, expected=[CANCEL_A], outputs=["100", "23553"]).category == "other"
    assert airline(expected=[CANCEL_A], outputs=["7"]).categories == ("missing_write_action",)


@pytest.mark.parametrize("part", ["DB", "r_actions"])
def test_the_graders_word_on_the_state_beats_the_look_of_the_calls(part: str) -> None:
    found = airline(
        flights(payment_id=" CARD"), expected=[FLIGHTS_A], outputs=["7"], reward_parts={part: 1.0}
    )
    assert found.categories == ("information_error",)
    wrong = airline(expected=[], outputs=["7"], reward_parts={part: 0.0})
    assert wrong.categories == ("other",)


def test_an_output_is_unsaid_by_the_rules_of_the_verdict() -> None:
    task = Task(id="airline/1", environment="airline", gold_actions=(), outputs=("250",))
    for grader, words, category in (
        ("airline/1", "It is $1250.", "other"),
        ("airline/2", "It is $1250.", "information_error"),
        ("airline/2", "It is $250.00.", "other"),
        ("airline/1", "It is $25.", "information_error"),
        ("tau2 abc", "It is $1250.", "other"),
        ("theirs/2", "It is $1250.", "other"),
    ):
        parts = {"DB": 1.0, "COMMUNICATE": 0.0}
        told = airline(agent(words), task=task, grader=grader, reward_parts=parts)
        assert told.category == category, (grader, words)
    parts = {"DB": 1.0, "COMMUNICATE": 1.0, "POLICY": 0.0}
    assert airline(agent("No."), task=task, reward_parts=parts).category == "other"


def test_what_the_users_side_should_do_is_not_the_agents() -> None:
    toggle = Action(name="toggle_roaming", requestor="user")
    reach = call("get_customer_by_phone", phone_number="1")
    found = diagnose(rollout(reach, call("toggle_data"), BYE, expected=[toggle]), TELECOM)
    assert (found.category, found.pivot) == ("other", "*")


# Without gold, and without a catalog


def test_without_gold_only_what_can_be_told_holds() -> None:
    assert airline(DONE_A, expected=None).categories == ("other",)
    assert airline(expected=None, termination="max_steps").category == "premature_termination"
    assert airline(look(), look(), look(), expected=None).category == "tool_loop"
    failed = call("cancel_reservation", error=True, reservation_id="A")
    assert airline(failed, expected=None).categories == ("incorrect_arguments",)
    assert airline(failed, DONE_A, expected=None).categories == ("other",)


def test_malformed_calls_and_made_up_tools_are_told_without_gold() -> None:
    broken = [
        Message(role="assistant", tool_calls=(ToolCall(name="calculate", arguments="{2+"),)),
        Message(role="tool", content="ok"),
    ]
    found = airline(broken, expected=None)
    assert found.evidence["incorrect_arguments"][0]["kind"] == "malformed"
    known = airline(look(), expected=None, known_tools=("get_user_details",))
    assert known.evidence["incorrect_arguments"][0]["kind"] == "unknown tool"


def test_an_environment_nobody_declared() -> None:
    expected = [gold("close_ticket", ticket_id=7, note="done")]
    wrong = rollout(call("close_ticket", ticket_id=8, note="done"), BYE, expected=expected)
    assert diagnose(wrong, None).categories == ("wrong_entity",)
    other = rollout(call("close_ticket", ticket_id=7, note="x"), BYE, expected=expected)
    assert diagnose(other, None).categories == ("incorrect_arguments",)
    named = rollout(call("ls"), BYE, expected=[], write_tools=("ls",))
    assert diagnose(named, None).category == "policy_violation"


# Order, pivot


def test_categories_keep_the_order_of_the_rules() -> None:
    found = diagnose(
        rollout(
            look(),
            look(),
            look(),
            DONE_B,
            flights(cabin="business", payment_id="gift"),
            agent("I cannot change the bags. Shall I go on?"),
            expected=[
                CANCEL_A,
                FLIGHTS_A,
                gold("update_reservation_baggages", reservation_id="C", total_baggages=1),
            ],
            termination="max_steps",
        ),
        AIRLINE,
    )
    assert found.categories == (
        "tool_loop",
        "wrong_entity",
        "wrong_item_selection",
        "incorrect_arguments",
        "over_cautious",
        "premature_termination",
        "missing_write_action",
        "user_id_failure",
    )
    assert found.category == "tool_loop"
    places = [CATEGORIES.index(name) for name in found.categories if name != "user_id_failure"]
    assert places == sorted(places)


def test_the_pivot_is_the_first_gold_write_that_was_not_made_exactly() -> None:
    expected = [gold("get_user_details", user_id="u1"), CANCEL_A, FLIGHTS_A, CANCEL_B]
    assert airline(expected=expected).pivot == "cancel_reservation"
    assert airline(DONE_A, flights(cabin="b"), expected=expected).pivot == (
        "update_reservation_flights"
    )
    assert airline(DONE_A, DONE_B, flights(), expected=expected).pivot == "*"
    assert airline(DONE_A, flights(), expected=[*expected, CANCEL_B]).pivot == "cancel_reservation"
    failed = call("cancel_reservation", error=True, reservation_id="A")
    assert airline(failed, expected=[CANCEL_A]).pivot == "cancel_reservation"
    assert airline(expected=None).pivot == "*"
    assert airline(DONE_B, expected=[]).pivot == "*"


# dedup_key


def test_equal_traces_have_one_key_however_they_are_written() -> None:
    spelled = [
        call("calculate", a=2.0, b="é", c=[1, 2]),
        call("calculate", c=[1.0, 2], b=unicodedata.normalize("NFD", " é"), a=2),
    ]
    keys = {dedup_key(rollout(one, agent(str(place)))) for place, one in enumerate(spelled)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    "other",
    [
        rollout(DONE_B),
        rollout(DONE_A, DONE_A),
        rollout(call("look", reservation_id="A")),
        rollout(DONE_A, task=Task(id="airline/2")),
        rollout(DONE_A, task=None),
    ],
)
def test_another_task_or_trace_has_another_key(other: RolloutEnded) -> None:
    assert dedup_key(other) != dedup_key(rollout(DONE_A))


def test_paired_lists_keep_their_order() -> None:
    one = call("exchange_delivered_order_items", item_ids=["1", "2"], new_item_ids=["3", "4"])
    two = call("exchange_delivered_order_items", item_ids=["2", "1"], new_item_ids=["4", "3"])
    assert dedup_key(rollout(one)) != dedup_key(rollout(two))


def test_only_the_agents_calls_count() -> None:
    asked = [
        Message(role="user", tool_calls=(ToolCall(name="reboot_device"),)),
        Message(role="tool", content="ok"),
    ]
    assert dedup_key(rollout(DONE_A, asked, BYE)) == dedup_key(rollout(DONE_A))


def test_unknown_tasks_are_never_the_same() -> None:
    one = rollout(DONE_A, task=None)
    assert dedup_key(one) != dedup_key(one.model_copy(update={"rollout": "r2"}))


# value_key, wording

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(-1e6, 1e6)
    | st.text(alphabet="ab é\u0301", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=6,
)


@given(json_values, json_values)
def test_keys_of_values_are_equal_where_their_canonical_json_is(left: Any, right: Any) -> None:
    same = canonical_json(left) == canonical_json(right)
    assert (value_key(left) == value_key(right)) == same
    assert value_key(left) == value_key(json.loads(json.dumps(left)))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1.0, True), (-0.0, 0, True), (10**16, 1e16, True), (2**53, float(2**53), True),
        (2**53 + 1, float(2**53), False), (0.1 + 0.2, 0.3, False), (1, True, False),
        (0, False, False), (None, False, False), ("1", 1, False), ("n1", 1, False),
        ("", None, False), ([], {}, False), ([1, [2]], [1, 2], False), ("e\u0301", " \xe9", True),
        ({"a": 1, "b": [2.0]}, {"b": [2], "a": 1.0}, True), ({"a": None}, {}, False),
        ("\ud800", "\ud800", True),
    ],
)  # fmt: skip
def test_what_is_one_value(left: Any, right: Any, same: bool) -> None:
    assert (value_key(left) == value_key(right)) == same
    assert (value_key({"a": [left]}) == value_key({"a": [right]})) == same


@pytest.mark.parametrize(
    "text",
    [
        "I could not find any direct flight, but there are two with one stop.",
        "Please note that once the order is modified it cannot be modified again.",
        "If the change is not possible, what would you like to do?",
        "I can't proceed without your confirmation.",
        "The total is $23.50. Do not worry.",
        "",
    ],
)
def test_what_is_no_refusal(text: str) -> None:
    assert not refuses(text)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("Would you like me to proceed?", True),
        ("Would you like me to proceed, or is there anything else?", True),
        ("I can issue it. Just let me know how you'd like to go on!", True),
        ("Please confirm.", True),
        ("Is there anything else I can help with?", False),
        ("If you need any further help, let me know!", False),
        ("Your flight is booked. Safe travels!", False),
    ],
)
def test_what_waits_for_an_answer(text: str, question: bool) -> None:
    assert asks(text) is question


@pytest.mark.parametrize(
    ("text", "handover"),
    [
        ("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", True),
        ("I'll transfer you to a specialist.", True),
        ("Would you like me to transfer you?", False),
        ("If you like, I will transfer you.", False),
        ("I recommend transferring you to a person.", False),
    ],
)
def test_what_hands_the_user_over(text: str, handover: bool) -> None:
    assert hands_over(text) is handover


def test_a_long_talk_is_no_overflow() -> None:
    assert not overflows("user_stop")
    assert not overflows("agent_error: tool failed")


# Real rollouts


def of(file: Path) -> list[RolloutEnded]:
    from producers.importers.importer import Rejection, read_rollouts

    found = list(read_rollouts([file]))
    assert not [item for item in found if isinstance(item, Rejection)]
    return [item.data for item in found if not isinstance(item, Rejection)]


@pytest.mark.benchmarks
@pytest.mark.parametrize(
    ("file", "failures"),
    [
        ("tau_bench/gpt-4o-airline.trials_0_1.json", 57),
        ("tau2_simulations/gpt-4.1_airline_1trial.json", 10),
        ("tau2_simulations/gpt-4.1_retail_1trial.json", 6),
        ("tau2_simulations/gpt-4.1_telecom_1trial.json", 22),
        ("tau2_simulations/gpt-4.1_telecom_no-user_1trial.json", 20),
        ("tau2_simulations/pr103_azure_airline.even_tasks.json", 10),
        ("tau2_simulations/qwen2.5-7b_airline_1trial.even_tasks.json", 20),
    ],
)
def test_every_real_failure_is_diagnosed(benchmarks: Path, file: str, failures: int) -> None:
    counts: Counter[str] = Counter()
    for data in of(benchmarks / file):
        assert data.task is not None
        found = diagnose(data, catalog(data.task.environment or ""))
        assert (found.category is not None) == (data.success is False)
        if found.category:
            counts[found.category] += 1
            assert found.category == found.categories[0]
            json.dumps(found.evidence)
    assert counts.total() == failures
    # Where most failures are unexplained the rules do not fit the environment.
    assert counts["other"] <= failures / 2


@pytest.mark.benchmarks
def test_a_record_that_was_never_reached_hides_no_other_fault(benchmarks: Path) -> None:
    """Of 26 that were user_id_failure by the order of the rules alone, 13 tried something else."""
    files = (
        "tau_bench/gpt-4o-airline.trials_0_1.json",
        "tau2_simulations/gpt-4.1_airline_1trial.json",
        "tau2_simulations/gpt-4.1_retail_1trial.json",
        "tau2_simulations/pr103_azure_airline.even_tasks.json",
        "tau2_simulations/qwen2.5-7b_airline_1trial.even_tasks.json",
    )
    diagnoses = [
        diagnose(data, catalog((data.task and data.task.environment) or ""))
        for file in files
        for data in of(benchmarks / file)
    ]
    first = [
        found
        for found in diagnoses
        if found.categories and min(found.categories, key=CATEGORIES.index) == "user_id_failure"
    ]
    assert len(first) == 26
    assert sum(found.category != "user_id_failure" for found in first) == 13


@pytest.mark.benchmarks
def test_transcripts_read_by_hand_keep_their_category(benchmarks: Path) -> None:
    """docs/LOG.md, 2026-11-21: the judgement of a reader, with the reason for each; of 15 and 19
    what came second there, since a write was tried."""
    by_hand = {
        ("airline/0", 0): "incorrect_arguments",
        ("airline/3", 0): "tool_loop",
        ("airline/7", 0): "wrong_item_selection",
        ("airline/10", 0): "incorrect_arguments",
        ("airline/15", 0): "policy_violation",
        ("airline/19", 0): "wrong_item_selection",
        ("airline/23", 0): "user_id_failure",
        ("airline/28", 0): "policy_violation",
        ("airline/33", 0): "over_cautious",
        ("airline/46", 0): "premature_termination",
        ("airline/2", 1): "premature_termination",
        ("airline/6", 1): "wrong_item_selection",
        ("airline/9", 1): "user_id_failure",
        ("airline/14", 1): "policy_violation",
        ("airline/17", 1): "policy_violation",
        ("airline/23", 1): "tool_loop",
        ("airline/28", 1): "policy_violation",
        ("airline/32", 1): "incorrect_arguments",
        ("airline/43", 1): "user_id_failure",
        ("airline/45", 1): "premature_termination",
    }
    found = {
        (data.task.id, data.trial): diagnose(data, AIRLINE).category
        for data in of(benchmarks / "tau_bench" / "gpt-4o-airline.trials_0_1.json")
        if data.task is not None
    }
    assert {key: found[key] for key in by_hand} == by_hand


def begun(*parts: list[Message]) -> list[Message]:
    """Messages that a task's prefix has."""
    return [m.model_copy(update={"sampled": False}) for part in parts for m in part]


def test_what_a_prefix_called_again_and_again_is_no_loop() -> None:
    look = call("get_reservation_details", reservation_id="A")
    assert airline(look * 3, expected=()).category == "tool_loop"
    assert airline(begun(look * 3), expected=()).category == "other"
    assert airline(begun(look * 2), look, expected=()).category == "other"


def test_a_lookup_of_the_user_in_a_prefix_counts() -> None:
    assert diagnose(rollout(BYE, expected=()), AIRLINE).category == "other"
    speech = agent("I am here.")
    assert diagnose(rollout(speech, BYE), AIRLINE).category == "user_id_failure"
    assert diagnose(rollout(begun(LOGIN), speech, BYE), AIRLINE).category == "other"


def test_a_write_of_a_prefix_is_made_and_never_to_blame() -> None:
    wanted = [CANCEL_A, CANCEL_B]
    assert airline(begun(DONE_A), expected=wanted).categories == ("missing_write_action",)
    assert airline(begun(DONE_A), DONE_B, expected=wanted).category == "other"
    assert airline(DONE_B, expected=()).category == "policy_violation"
    assert airline(begun(DONE_B), expected=()).category == "other"
    wrong = call("cancel_reservation", reservation_id="C")
    assert airline(wrong, expected=[CANCEL_A]).category == "wrong_entity"
    assert airline(begun(wrong), expected=[CANCEL_A]).categories == ("missing_write_action",)


def test_a_call_that_fails_in_a_prefix_is_not_the_agents() -> None:
    tried = call("cancel_reservation", error=True, reservation_id="A")
    assert airline(tried, expected=[CANCEL_A]).category == "incorrect_arguments"
    assert airline(begun(tried), expected=[CANCEL_A]).category == "missing_write_action"
    assert airline(tried, expected=None).category == "incorrect_arguments"
    assert airline(begun(tried), expected=None).category == "other"


def test_what_was_said_in_a_prefix_was_said() -> None:
    fields: dict[str, Any] = {"outputs": ["327"], "reward_parts": {"DB": 1.0}}
    answer = agent("It costs 327 dollars.")
    ask = user("What does it cost?")
    assert airline(ask, expected=(), **fields).category == "information_error"
    assert airline(begun(ask, answer), expected=(), **fields).category == "other"
    # A greeting comes before the user's first word and says nothing of the task.
    greeting = begun(answer)
    greeted = diagnose(rollout(greeting, ask, LOGIN, BYE, **fields), AIRLINE)
    assert greeted.category == "information_error"
