"""One reader for what engines write, in whatever way they write it."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.answers.content import Content, read_content
from envs.answers.reader import BadAnswer, MessageReader, read_count
from events.messages import Message, ToolCall

Json = dict[str, Any]


def piece(
    name: str | None = None, arguments: Any = None, id: str | None = None, index: Any = None
) -> Json:
    """A piece of a call; fields that are None are left out."""
    function = {"name": name, "arguments": arguments}
    fields = {"index": index, "id": id}
    kept = {field: value for field, value in fields.items() if value is not None}
    return {**kept, "function": {f: v for f, v in function.items() if v is not None}}


def stream(*pieces: Json) -> MessageReader:
    """A reader that was given each piece in a delta of its own."""
    reader = MessageReader()
    for each in pieces:
        reader.take({"tool_calls": [each]})
    return reader


def calls_of(*pieces: Json) -> list[tuple[str | None, str, Any]]:
    message = stream(*pieces).build_message()
    return [(call.id, call.name, call.arguments) for call in message.tool_calls]


ORDER, ITEM = {"order": "W7"}, {"item": "lamp"}
BOTH = [("A", "look_up", ORDER), ("B", "stock", ITEM)]


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        (
            [
                piece("look_up", '{"order": "W7"}', "A", 0),
                piece("stock", '{"item": "lamp"}', "B", 0),
            ],
            BOTH,
        ),
        (
            [
                piece("look_up", "", "A", 0),
                piece("stock", "", "B", 0),
                piece(None, '{"order": ', "A", 0),
                piece(None, '{"item": ', "B", 0),
                piece(None, '"W7"}', "A", 0),
                piece(None, '"lamp"}', "B", 0),
            ],
            BOTH,
        ),
        (
            [
                piece("look_up", "", "A", 0),
                piece(None, '{"order": "W7"}', None, 0),
                piece("stock", "", "B", 0),
                piece(None, '{"item": "lamp"}', None, 0),
            ],
            BOTH,
        ),
        (
            [
                piece("look_up", '{"order": "W7"}', "A", 0),
                piece("stock", '{"item": "lamp"}', "A", 1),
            ],
            [("A", "look_up", ORDER), ("A", "stock", ITEM)],
        ),
        (
            [
                piece("look_up", '{"order": ', "A"),
                piece("stock", '{"item": "lamp"}', "B"),
                piece(None, '"W7"}', "A"),
            ],
            BOTH,
        ),
        (
            [piece("look_up", '{"order": ', "A"), piece(None, '"W7"}'), piece("stock", "{}", "B")],
            [("A", "look_up", ORDER), ("B", "stock", {})],
        ),
        (
            [
                piece("look_up", '{"order": "W7"}', None, 0),
                piece("stock", '{"item": "lamp"}', None, 0),
            ],
            [(None, "look_up", ORDER), (None, "stock", ITEM)],
        ),
        (
            [piece("stock", '{"item": "lamp"}', None, 0), piece("stock", "{}", None, 0)],
            [(None, "stock", ITEM), (None, "stock", {})],
        ),
    ],
    ids=[
        "one index, two ids",
        "interleaved by id",
        "pieces without an id",
        "one id, two indexes",
        "no index",
        "no index, then no id",
        "no id, two names",
        "no id, one name",
    ],
)
def test_two_calls_are_two(pieces: list[Json], calls: list[Any]) -> None:
    assert calls_of(*pieces) == calls


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("look_up", '{"order": ', "A", 0), piece("look_up", '"W7"}', "A", 0)],
        [piece("look_up", '{"order": ', "", 0), piece("", '"W7"}', "A", 0)],
        [piece("look_up", "", "", 0), piece("look_up", '{"order": "W7"}', "A", 0)],
        [piece("look", "", "A", 0), piece("_up", "", None, 0), piece("", '{"order": "W7"}', "", 0)],
        [piece("look", None, "A", 0), piece("look_up", '{"order": "W7"}', "A", 0)],
        [piece("look_up", "", "A"), piece(None, '{"order": ', "A", 0), piece(None, '"W7"}', "", 0)],
        [piece("look_up", None, "A", 1), piece(None, '{"order": "W7"}', None, 1)],
        [piece("look_up", '{"order"', "A"), piece("look_up", ": ", ""), piece("look_up", '"W7"}')],
        [piece("look_up", None, "A", 0), piece(None, ORDER)],
        [
            piece("look_up", "", "A", 0),
            piece("", '{"order": ', "B", 0),
            piece(None, '"W7"}', "C", 0),
        ],
    ],
    ids=[
        "sent again",
        "empty id",
        "late id",
        "fragments",
        "more of the name",
        "late index",
        "index from 1",
        "by place",
        "an object",
        "an id for each piece",
    ],
)
def test_one_call_is_one(pieces: list[Json]) -> None:
    assert calls_of(*pieces) == [("A", "look_up", ORDER)]


def test_several_calls_of_one_delta_are_told_apart_by_their_place() -> None:
    reader = MessageReader()
    reader.take({"tool_calls": [piece("look_up", ""), piece("stock", "")]})
    reader.take({"tool_calls": [piece(None, '{"order": "W7"}'), piece(None, "{}")]})
    calls = reader.build_message().tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("look_up", ORDER), ("stock", {})]


@pytest.mark.parametrize("blank", ["", " \n", None, "null"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_call_without_arguments_has_none(blank: str | None, whole: bool) -> None:
    reader = MessageReader()
    reader.take({"tool_calls": [piece("list_orders", blank, "A", 0)]}, whole)
    assert reader.build_message().tool_calls == (ToolCall(name="list_orders", id="A"),)


def test_a_call_may_be_flat_custom_or_of_the_older_form() -> None:
    reader = MessageReader()
    custom = {"id": "C", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    flat = {"id": "F", "name": "stock", "arguments": ITEM}
    words = {"tool_calls": [flat, custom], "function_call": {"name": "old", "arguments": "{}"}}
    reader.take(words, whole=True)
    assert reader.build_message().tool_calls == (
        ToolCall(name="stock", arguments=ITEM, id="F"),
        ToolCall(name="shell", arguments={"input": "ls -l"}, id="C"),
        ToolCall(name="old"),
    )


text_of, thinking = st.text(max_size=4), {"type": "thinking"}


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (None, Content("", "", False)),
        ("Hi", Content("Hi", "", False)),
        ([], Content("", "", False)),
        (["Hi", {"type": "text", "text": " you"}], Content("Hi you", "", False)),
        ([{"type": "output_text", "text": "Hi", "annotations": []}], Content("Hi", "", False)),
        ([{"type": "refusal", "refusal": "No."}], Content("No.", "", False)),
        ([{"type": "thinking", "thinking": "Hm."}], Content("", "Hm.", False)),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}, " So."]}],
            Content("", "Hm. So.", False),
        ),
        (
            [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Hi"}],
            Content("Hi", "Hm.", False),
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}],
            Content("", "Hm.", False),
        ),
        ([{"type": "image_url"}, {"type": "text", "text": "Hi"}], Content("Hi", "", True)),
        (7, Content("", "", True)),
    ],
)
def test_a_content_is_text_and_reasoning(content: Any, read: Content) -> None:
    assert read_content(content) == read


def test_deltas_with_parts_come_to_one_message() -> None:
    reader = MessageReader()
    reader.take({"role": "assistant", "content": ""})
    reader.take({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]})
    reader.take({"content": [{"type": "thinking", "thinking": "."}]})
    reader.take({"content": [{"type": "text", "text": "<reflect>Wrong.</reflect>Hi"}]})
    assert reader.build_message() == Message(
        role="assistant", content="Hi", reasoning="Hm.", reflection="Wrong."
    )


def test_a_refusal_is_the_text_of_an_answer_that_has_none() -> None:
    reader = MessageReader()
    reader.take({"content": None, "refusal": "I will "})
    reader.take({"refusal": "not."})
    assert reader.build_message().content == "I will not."


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"content": 7}, "content is no text, got '7'"),
        ({"content": [7]}, "content is no text"),
        ({"content": [{"type": "image_url"}]}, "neither text nor reasoning"),
        ({"reasoning": 7}, "reasoning is no text"),
        ({"tool_calls": "look"}, "tool_calls is no list of objects, got 'look'"),
        ({"tool_calls": [7]}, "tool_calls is no list of objects"),
        ({"tool_calls": [{"function": {"name": 7}}]}, "the name of a call is no text, got '7'"),
        ({"tool_calls": [{"function": "look"}]}, "the function of a call is no object"),
        ({"tool_calls": [{"id": "A"}]}, "neither `function` nor `name`"),
        ({"tool_calls": [piece("a", "{}", None, -1)]}, "no number from 0, got '-1'"),
        ({"tool_calls": [piece("a", {"b": float("nan")})]}, "not finite"),
    ],
)
def test_what_no_engine_writes_is_refused_with_the_value(words: Json, why: str) -> None:
    with pytest.raises(BadAnswer, match=why):
        MessageReader().take(words, whole=True)


def test_who_only_doubts_reads_the_rest() -> None:
    doubts: list[str] = []
    reader = MessageReader(lambda why, _: doubts.append(why))
    calls = [7, piece("stock", ITEM)]
    reader.take({"content": 7, "reasoning": "Hm.", "tool_calls": calls}, whole=True)
    message = reader.build_message()
    assert (message.reasoning, [call.name for call in message.tool_calls]) == ("Hm.", ["stock"])
    assert doubts == ["content is no text", "tool_calls is no list of objects"]


@pytest.mark.parametrize("older", [None, {}, {"name": None, "arguments": None}, {"name": ""}])
@pytest.mark.parametrize("whole", [False, True])
def test_an_empty_call_of_the_older_form_is_none(older: Json | None, whole: bool) -> None:
    reader = MessageReader()
    reader.take({"content": "Hi", "function_call": older}, whole)
    assert reader.build_message() == Message(role="assistant", content="Hi")


def test_clients_that_join_by_index_have_the_calls_of_an_index_as_one() -> None:
    reader = stream(
        piece("look_up", '{"order": "W7"}', "A", 0), piece("stock", '{"item": "lamp"}', "B", 0)
    )
    joined = '{"order": "W7"}{"item": "lamp"}'
    call = ToolCall(name="look_upstock", arguments=joined, id="AB")
    assert reader.build_calls_by_index() == (call,)
    again = stream(piece("stock", '{"item": ', "A", 0), piece("stock", '"lamp"}', "A", 0))
    assert again.build_calls_by_index() == (ToolCall(name="stockstock", arguments=ITEM, id="AA"),)
    assert stream(piece("stock", "{}", "A", 0)).build_calls_by_index() is None


@pytest.mark.parametrize("value", [None, -1, True, 1.0, "3", 2**63, 10**400])
def test_a_count_is_a_number_of_tokens(value: Any) -> None:
    assert read_count({"completion_tokens": value}, "completion_tokens") is None
    assert read_count({"completion_tokens": 3}, "completion_tokens") == 3


names = st.sampled_from(["look_up", "stock", "list_orders", "a", "ab"])
arguments = st.dictionaries(text_of, st.integers() | text_of, max_size=2)
cuts = st.lists(st.integers(1, 5), max_size=4)


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@st.composite
def written_calls(draw: st.DrawFn) -> tuple[list[list[Json]], list[ToolCall]]:
    """Calls, and the deltas in which an engine of some habits writes them, one call at a time."""
    index = draw(st.sampled_from(["own", "shared", "none"]))
    ids = draw(st.sampled_from(["first", "each", "late"]))
    whole_name = draw(st.sampled_from(["first", "each"]))
    deltas, calls = [], []
    for number in range(draw(st.integers(1, 4))):
        call = ToolCall(name=draw(names), arguments=draw(arguments), id=f"call_{number}")
        calls.append(call)
        texts = ["", *cut(json.dumps(call.arguments), draw(cuts))]
        for place, text in enumerate(texts):
            # A late id cannot tell a new call from the one before it on the same place.
            first, at = place == 0, 1 if ids == "late" and index == "own" else 0
            fields = piece(call.name if first or whole_name == "each" else "", text)
            if index != "none":
                fields["index"] = number if index == "own" else 0
            fields["id"] = call.id if place == at or (ids == "each" and place > at) else ""
            deltas.append([fields])
    return deltas, calls


@given(written_calls())
def test_calls_are_read_whatever_the_habits_of_their_engine(
    written: tuple[list[list[Json]], list[ToolCall]],
) -> None:
    deltas, calls = written
    reader = MessageReader()
    for delta in deltas:
        reader.take({"tool_calls": delta})
    assert list(reader.build_message().tool_calls) == calls


def operations(work: Callable[[], object]) -> int:
    """How many operations of Python's machine some work takes."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "pieces",
    [
        lambda n: [piece("a" * 50, '{"a": "' if not i else "{}", None, 0) for i in range(n)],
        lambda n: [piece(chr(97 + i % 26), "", "A", 0) for i in range(n)],
        lambda n: [piece("a", "{}", f"id_{i}", 0) for i in range(n)],
        lambda n: [piece("a", "{}") for _ in range(n)],
    ],
    ids=["name and braces", "fragments of a name", "ids", "calls without a key"],
)
def test_a_piece_costs_the_same_however_many_came_before(
    pieces: Callable[[int], list[Json]],
) -> None:
    few, many = pieces(200), pieces(2_000)
    assert operations(lambda: stream(*many)) < 11 * operations(lambda: stream(*few))
