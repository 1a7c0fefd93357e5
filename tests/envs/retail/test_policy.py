"""Which rules a transcript breaks."""

import json

from envs.retail.environment import Retail
from envs.retail.policy import violations
from events.messages import Message, ToolCall
from tests.envs.mini import heard, said

WRITES = Retail().writes
FIND, CANCEL = "find_user_id_by_email", "cancel_pending_order"


def calls(*names: str) -> Message:
    return Message(role="assistant", tool_calls=tuple(ToolCall(name=name) for name in names))


def tool(text: str, error: bool = False) -> Message:
    return Message(role="tool", content=text, error=error)


def order(owner: str = "ada_1") -> Message:
    return tool(json.dumps({"order_id": "#1", "user_id": owner}))


KNOWN = [heard("Cancel #1."), calls(FIND), tool("ada_1")]
AGREED = [said("Cancel #1, no longer needed. Do you confirm?"), heard("Yes, please.")]


def broken(*messages: Message) -> list[str]:
    """The sentences."""
    return list(violations(messages, WRITES))


def test_authentication_a_question_and_a_yes_break_nothing() -> None:
    assert broken(*KNOWN, *AGREED, calls(CANCEL), order()) == []


def test_nothing_of_a_user_may_be_read_before_they_are_known() -> None:
    assert broken(heard("Hi."), calls("get_order_details"), order()) == [
        "message 1 calls get_order_details before the user is authenticated"
    ]
    failed = (heard("Hi."), calls(FIND), tool("Error: User not found", error=True))
    assert len(broken(*failed, calls("get_user_details"), order())) == 1


def test_the_catalogue_is_open_to_anybody() -> None:
    assert broken(heard("Hi."), calls("list_all_product_types"), tool("{}")) == []


def test_a_change_needs_a_yes() -> None:
    unasked = "message 3 calls cancel_pending_order without the user's yes"
    assert broken(*KNOWN, calls(CANCEL), order()) == [unasked]
    refused = (*KNOWN, said("Shall I?"), heard("No, wait."), calls(CANCEL), order())
    assert broken(*refused) == ["message 5 calls cancel_pending_order without the user's yes"]


def test_a_change_that_the_tool_refused_breaks_nothing() -> None:
    assert broken(*KNOWN, calls(CANCEL), tool("Error: Order not found", error=True)) == []


def test_nobody_elses_records_may_be_changed_nor_a_second_user_looked_up() -> None:
    assert broken(*KNOWN, *AGREED, calls(CANCEL), order("bo_2")) == [
        "message 5 calls cancel_pending_order on data of bo_2, not of ada_1"
    ]
    assert broken(*KNOWN, calls(FIND), tool("bo_2")) == [
        "message 3 looks up bo_2 in a conversation with ada_1"
    ]


def test_calls_are_made_one_at_a_time() -> None:
    assert broken(*KNOWN, calls("get_user_details", "get_order_details"), order(), order()) == [
        "message 3 makes 2 calls at once"
    ]


def test_a_transcript_of_another_making_is_no_reason_to_fail() -> None:
    for answer in ("cancelled", "[]", '{"user_id": null}'):
        assert broken(*KNOWN, *AGREED, calls(CANCEL), tool(answer)) == []
    assert broken(*KNOWN, *AGREED, calls(CANCEL)) == []
