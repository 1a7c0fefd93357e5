"""What the rules allow, and which of them a transcript breaks."""

import json

import pytest

from envs.airline.policy import (
    TRANSFER,
    can_cancel,
    count_extra_bags,
    free_bags,
    is_compensable,
    violations,
)
from events.messages import Message, ToolCall
from tests.envs.airline.records import Json
from tests.envs.mini import heard, said

USER, CANCEL = "get_user_details", "cancel_reservation"
OLD, RECENT = "2024-05-14T14:59:59", "2024-05-14T15:00:00"


def reserved(cabin: str = "economy", created: str = OLD, insurance: str = "no") -> Json:
    """What the rules look at."""
    return {"cabin": cabin, "created_at": created, "insurance": insurance}


@pytest.mark.parametrize(
    ("reservation", "statuses", "insured_reason", "allowed"),
    [
        (reserved(), ["available"], False, False),
        (reserved(), ["available"], True, False),
        (reserved(created=RECENT), ["available"], False, True),
        (reserved("business"), ["available", "delayed"], False, True),
        (reserved("basic_economy"), ["available", "cancelled"], False, True),
        (reserved(insurance="yes"), ["on time"], True, True),
        (reserved(insurance="yes"), ["on time"], False, False),
        (reserved("business"), ["landed", "available"], False, False),
        (reserved(created=RECENT), ["flying", "cancelled"], False, False),
    ],
)
def test_what_may_be_cancelled(
    reservation: Json, statuses: list[str], insured_reason: bool, allowed: bool
) -> None:
    assert can_cancel(reservation, statuses, insured_reason) is allowed


@pytest.mark.parametrize(
    ("membership", "reservation", "allowed"),
    [
        ("regular", reserved("economy"), False),
        ("regular", reserved("basic_economy"), False),
        ("regular", reserved("business"), True),
        ("regular", reserved("basic_economy", insurance="yes"), True),
        ("silver", reserved("basic_economy"), True),
        ("gold", reserved("economy"), True),
    ],
)
def test_who_is_compensated(membership: str, reservation: Json, allowed: bool) -> None:
    assert is_compensable(membership, reservation) is allowed


def test_free_bags_rise_with_membership_and_cabin() -> None:
    cabins = ("basic_economy", "economy", "business")
    assert [free_bags("regular", cabin) for cabin in cabins] == [0, 1, 2]
    assert [free_bags("silver", cabin) for cabin in cabins] == [1, 2, 3]
    assert [free_bags("gold", cabin) for cabin in cabins] == [2, 3, 4]
    assert [count_extra_bags("silver", "economy", 2, bags) for bags in (0, 4, 6)] == [0, 0, 2]


def calls(*names: str) -> Message:
    return Message(role="assistant", tool_calls=tuple(ToolCall(name=name) for name in names))


def tool(text: str, error: bool = False) -> Message:
    return Message(role="tool", content=text, error=error)


def owned(owner: str = "lena_1") -> Message:
    return tool(json.dumps({"user_id": owner}))


KNOWN = [heard("Cancel R1."), calls(USER), owned()]
AGREED = [said("I will cancel R1. Do you confirm?"), heard("Yes, please.")]


def test_a_question_and_a_yes_break_nothing() -> None:
    assert violations([*KNOWN, *AGREED, calls(CANCEL), owned()]) == ()


def test_a_change_needs_a_yes_but_a_gift_does_not() -> None:
    assert violations([*KNOWN, calls(CANCEL), owned()]) == (
        "message 3 calls cancel_reservation without the user's yes",
    )
    looks = [
        calls("get_reservation_details"), owned(), calls("get_flight_status"), tool("cancelled"),
    ]  # fmt: skip
    gift = [calls("send_certificate"), tool("Certificate added.")]
    assert violations([*KNOWN, *looks, *gift]) == ()
    assert violations([*KNOWN, *looks[:2], *gift]) == (
        "message 5 calls send_certificate before the facts are looked up",
    )


def test_a_change_that_the_tool_refused_breaks_nothing() -> None:
    refused = tool("Error: Reservation R1 not found", error=True)
    assert violations([*KNOWN, calls(CANCEL), refused]) == ()


def test_only_records_of_the_user_who_was_looked_up_may_be_changed() -> None:
    assert violations([*KNOWN, *AGREED, calls(CANCEL), owned("emeka_2")]) == (
        "message 5 calls cancel_reservation on data of emeka_2, not of lena_1",
    )
    assert violations([heard("Yes."), calls(CANCEL), owned()]) == (
        "message 1 calls cancel_reservation on data of lena_1, not of None",
    )


def test_a_transfer_is_made_before_it_is_spoken_of_and_after_the_user_is_known() -> None:
    made = [calls("transfer_to_human_agents"), tool("Transfer successful")]
    assert violations([*KNOWN, *made, said(TRANSFER)]) == ()
    assert violations([*KNOWN, said(TRANSFER)]) == (
        "message 3 speaks of a transfer that was not made",
    )
    assert violations([*KNOWN, said("You are being transferred, to a human agent.")]) == (
        "message 3 speaks of a transfer that was not made",
    )
    assert violations([KNOWN[0], *made, said(TRANSFER)]) == (
        "message 1 calls transfer_to_human_agents before the user is looked up",
    )


def test_calls_are_made_one_at_a_time() -> None:
    assert violations([*KNOWN, calls(USER, USER), owned(), owned()]) == (
        "message 3 makes 2 calls at once",
    )


@pytest.mark.parametrize("answer", ["cancelled", "[]", '{"user_id": null}'])
def test_a_transcript_of_another_making_is_no_reason_to_fail(answer: str) -> None:
    assert violations([*KNOWN, *AGREED, calls(CANCEL), tool(answer)]) == ()
    assert violations([*KNOWN, *AGREED, calls(CANCEL)]) == ()
