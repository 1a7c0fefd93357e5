"""JSON that others wrote can be stored and read back, or is refused by one error."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from events.codec import decode, encode
from events.envelope import Envelope
from events.json_text.guard import (
    MAX_DEPTH,
    UnstorableJson,
    check_json,
    clean_json,
    parse_arguments,
    parse_json,
    replace_half_pairs,
)
from events.log import Record
from events.messages import Message, ToolCall
from events.rollouts import CallEndContent, CallEnded

numbers = (
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308", "-0.0", "1e-400"])
    | st.integers(1, 6_000).map(lambda digits: "9" * digits)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
)
texts = st.text(st.characters()).map(json.dumps) | st.sampled_from(
    [r'"\ud800"', r'"\uDFFF and \\ud800"', r'"\ud83d\ude00"', '"\ud800"', '"\\u0000"', '"', "'a'"]
)
json_texts = st.recursive(
    numbers | texts | st.sampled_from(["null", "true", "", " ", "nul", "{", "]"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(texts, inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"
        )
        | st.tuples(st.integers(1, 300), inner).map(
            lambda pair: "[" * pair[0] + pair[1] + "]" * pair[0]
        )
    ),
    max_leaves=8,
)


def nested(levels: int) -> str:
    """An object of so many levels in all, the innermost an empty list."""
    return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


def store(arguments: dict[str, Any] | str) -> dict[str, Any] | str:
    """The arguments of a call after they were stored and read back."""
    call = ToolCall(name="look_up", arguments=arguments)
    data = CallEnded(
        call="call-1",
        session="session-1",
        outcome="completed",
        content=CallEndContent(messages=(Message(role="assistant", tool_calls=(call,)),)),
    )
    entry = encode(Envelope("id-1", data.TYPE, data.VERSION, data.key()), data, 1).entry
    record = Record(
        entry.stream, entry.partition, 7, "log", 7, entry.key, entry.headers, entry.value, 1
    )
    read = decode(record).data
    assert isinstance(read, CallEnded)
    assert read.content is not None
    return read.content.messages[0].tool_calls[0].arguments


@given(json_texts)
@example(nested(MAX_DEPTH))
@example(nested(MAX_DEPTH + 1))
@example(nested(100_000))
@example('{"a":' * 600 + "1" + "}" * 600)
@example('{"a": "\\ud800"}')
@example('{"\\ud800": 1, "\\udfff": 2}')
@example('{"a": "\ud800"}')
@example('{"a": ' + "9" * 309 + "}")
@example('{"a": ' + "9" * 5_000 + "}")
def test_arguments_are_stored_and_read_back_whatever_was_written(written: str) -> None:
    arguments = parse_arguments(written)
    assert store(arguments) == arguments
    text = json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    assert json.loads(text) == arguments


@given(json_texts)
def test_a_value_is_what_json_reads_or_is_refused(written: str) -> None:
    try:
        value = parse_json(written)
    except UnstorableJson:
        return
    if "\\u" not in written and not any("\ud800" <= letter <= "\udfff" for letter in written):
        assert value == json.loads(written)
    check_json(value)
    assert clean_json(value) == value


@given(json_texts)
def test_a_parsed_object_is_read_as_its_text_is(written: str) -> None:
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        arguments, as_written = parse_arguments(value), parse_arguments(written)
        # Of equal keys the last counts, so a value may pass whose text holds a constant.
        assert arguments == as_written or as_written == replace_half_pairs(written)
        assert store(arguments) == arguments


@pytest.mark.parametrize("blank", [None, "", " \n\t", "null", " null ", '""', '"\\n"'])
def test_arguments_that_nobody_wrote_are_an_empty_object(blank: str | None) -> None:
    assert parse_arguments(blank) == {}


@pytest.mark.parametrize(
    "written",
    [
        "{",
        "[1, 2]",
        '"a"',
        "7",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 401 + "}",
        '{"a": -' + "9" * 5_000 + "}",
        nested(MAX_DEPTH + 1),
        nested(600),
        nested(100_000),
        '{"a": 1} and more',
    ],
)
def test_arguments_that_are_no_storable_object_stay_as_written(written: str) -> None:
    assert parse_arguments(written) == written


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": "\\ud800", "\\udfff": 1}', {"a": "\ufffd", "\ufffd": 1}),
        ('{"a": "\ud800"}', {"a": "\ufffd"}),
        ('{"a": "\\ud83d\\ude00", "b": "\\\\ud800"}', {"a": "\U0001f600", "b": "\\ud800"}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": ' + "9" * 308 + "}", {"a": int("9" * 308)}),
        (nested(MAX_DEPTH), json.loads(nested(MAX_DEPTH))),
    ],
)
def test_arguments_are_an_object_where_one_is_written(
    written: str, arguments: dict[str, Any]
) -> None:
    assert parse_arguments(written) == arguments


def test_the_text_of_other_arguments_holds_no_half_of_a_pair() -> None:
    assert parse_arguments('{"a": "\ud800') == '{"a": "\ufffd'
    assert parse_arguments(["\ud800", 1]) == '["\ufffd",1]'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "not finite"),
        ([{"a": float("inf")}], "not finite"),
        ({"a": 10**400}, "larger than a double"),
        ({"a": -(10**5_000)}, "larger than a double"),
        (json.loads(nested(MAX_DEPTH + 1)), "deeper than 100 levels; flatten it"),
    ],
)
def test_a_refusal_says_why(value: Any, reason: str) -> None:
    with pytest.raises(UnstorableJson, match=reason):
        check_json(value)
    assert isinstance(parse_arguments(value), str)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1,", "no JSON: Expecting value"),
        ("[NaN]", "NaN is no JSON"),
        ("[1e999]", "not finite"),
        ("9" * 5_000, "larger than a double"),
        (nested(100_000), "deeper than 100 levels"),
    ],
)
def test_a_refused_text_says_why(text: str, reason: str) -> None:
    with pytest.raises(UnstorableJson, match=reason):
        parse_json(text)
