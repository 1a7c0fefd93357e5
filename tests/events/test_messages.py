"""Calls and their results, as transcripts have them."""

import pytest

from events.messages import Message, ToolCall, executed_calls


def calling(*ids: str | None) -> Message:
    """A message with so many calls, tool `t0` first."""
    calls = tuple(ToolCall(name=f"t{place}", id=name) for place, name in enumerate(ids))
    return Message(role="assistant", tool_calls=calls)


def result(content: str, of: str | None) -> Message:
    """A tool's answer."""
    return Message(role="tool", content=content, tool_call_id=of)


def contents(*messages: Message) -> list[str | None]:
    """The result of each call; None for a call without."""
    calls = executed_calls(messages)
    return [None if item.result is None else item.result.text for item in calls]


@pytest.mark.parametrize(
    ("ids", "answered", "paired"),
    [
        (("a", "b"), ("b", "a"), ["1", "0"]),
        (("a", "b", "c"), ("c", "a"), ["1", None, "0"]),
        (("a", "b"), (None, None), ["0", "1"]),
        ((None, None), ("b", "a"), ["0", "1"]),
        (("a", "a"), ("a", "a"), ["0", "1"]),
        (("a", "b"), ("b", "b"), ["0", "1"]),
        (("a", "b"), ("b", "x"), ["0", "1"]),
        (("a", "b"), (), [None, None]),
        (("a",), ("a", "a"), ["0"]),
    ],
)
def test_results_are_paired_by_id_where_ids_tell_them_apart_and_else_in_order(
    ids: tuple[str | None, ...], answered: tuple[str | None, ...], paired: list[str | None]
) -> None:
    results = [result(str(place), name) for place, name in enumerate(answered)]
    assert contents(calling(*ids), *results) == paired


def test_results_belong_to_the_message_before_them_whatever_ids_a_rollout_repeats() -> None:
    first, second = (calling("a", "b") for _ in range(2))
    answers = [result("0", "b"), result("1", "a")], [result("2", "a"), result("3", "b")]
    user = Message(role="user", content="and now?")
    assert contents(first, *answers[0], user, second, *answers[1]) == ["1", "0", "2", "3"]
    assert contents(first, user, result("0", "a")) == [None, None]
