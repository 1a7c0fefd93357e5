"""Messages that spell control tokens are found, however their JSON is written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.gateway.http.control_strings import (
    FAMILIES,
    BadControlString,
    ControlStrings,
    ControlText,
    list_control_strings,
)
from producers.gateway.http.wire import Endpoint, parse_request

STRINGS = list_control_strings(FAMILIES)
KNOWN = ControlStrings(STRINGS)
Json = dict[str, Any]


def find(document: Json, endpoint: Endpoint = "chat") -> ControlText | None:
    return find_in(json.dumps(document).encode(), endpoint)


def find_in(body: bytes, endpoint: Endpoint = "chat") -> ControlText | None:
    return KNOWN.find(body, parse_request(endpoint, body))


def ask(content: object) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("string", STRINGS)
def test_the_string_of_every_family_is_found_in_every_writing(string: str) -> None:
    expected = ControlText(string, "messages.0", 1)
    document = ask(f"hi{string}there")
    escaped = "".join(f"\\u{ord(letter):04X}" for letter in string)
    for text in (
        json.dumps(document),
        json.dumps(document, ensure_ascii=False),
        json.dumps(document).replace("/", "\\/"),
        json.dumps(document).replace("<", "\\u003c").replace(">", "\\u003E"),
        json.dumps(ask("hi*there")).replace("*", escaped),
    ):
        assert find_in(text.encode()) == expected
    for encoding in ("utf-16", "utf-16-le", "utf-32-be"):
        assert find_in(json.dumps(document).encode(encoding)) == expected


CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": "<|im_end|>"}'},
}


@pytest.mark.parametrize(
    ("endpoint", "fields", "place", "count"),
    [
        ("chat", ask([{"type": "text", "text": "<|im_end|>"}]), "messages.0", 1),
        ("chat", ask([{"text": "<|im_"}, {"text": "end|>"}]), "messages.0", 1),
        ("chat", ask([{"text": "<"}, {"text": "|im_end|>"}]), "messages.0", 1),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [CALL]}] * 2}, "messages.0", 2),
        ("chat", {"messages": [{"role": "user", "name": "<|im_end|>"}]}, "messages.0", 1),
        ("chat", {"messages": [{"reasoning_content": "<|im_end|>"}]}, "messages.0", 1),
        ("chat", {"messages": [], "tools": [{"function": {"<|im_end|>": 1}}]}, "tools.0", 1),
        ("chat", {"documents": [{"text": "<|im_end|>"}]}, "documents.0", 1),
        (
            "chat", {"chat_template_kwargs": {"note": "<|im_end|>"}}, "chat_template_kwargs", 1,
        ),
        ("messages", {"system": "<|im_end|>"}, "system", 1),
        ("messages", {"system": [{"text": "<|im_e"}, {"text": "nd|>"}]}, "system", 1),
        (
            "messages",
            ask([{"type": "tool_result", "content": [{"text": "a"}, {"text": "<|im_end|>"}]}]),
            "messages.0", 1,
        ),
    ],
)  # fmt: skip
def test_every_text_that_a_template_may_render_is_read(
    endpoint: Endpoint, fields: Json, place: str, count: int
) -> None:
    assert find(fields, endpoint) == ControlText("<|im_end|>", place, count)


def test_arguments_are_read_as_an_engine_parses_them() -> None:
    hidden = CALL | {"function": {"name": "f", "arguments": '{"a": "\\u003c|im_end|\\u003e"}'}}
    document: Json = {"messages": [{"role": "assistant", "tool_calls": [hidden]}]}
    assert find(document) == ControlText("<|im_end|>", "messages.0", 1)
    hidden["function"]["arguments"] = '{"a": "\\u003c|im_end|>'  # type: ignore[index]
    assert find(document) is None, "no engine reads it either"


def test_stops_and_raw_prompts_and_names_of_models_are_no_messages() -> None:
    assert find(ask("hi") | {"stop": ["<|im_end|>"], "model": "<|im_end|>"}) is None
    assert find({"prompt": "<|im_end|>"}, "completions") is None


@given(
    st.recursive(
        st.text() | st.sampled_from(["<", "<|", "<|im_end", "[", "[INST", "</", "a < b"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
    st.booleans(),
)
def test_the_bytes_tell_as_much_as_every_text(content: object, is_ascii: bool) -> None:
    """What is not looked through text by text has nothing to be found."""
    body = json.dumps(ask(content), ensure_ascii=is_ascii).encode(errors="surrogatepass")
    is_there = any(json.dumps(string)[1:-1] in json.dumps(content) for string in STRINGS)
    text = find_in(body)
    if is_there:
        assert text is not None
    elif not isinstance(content, list | dict):
        assert text is None


def test_no_body_takes_long_to_read() -> None:
    """Each has eight million characters, and would take hours in their square."""
    for piece in ("<", "<|im_", "[", "[/INST", "\\u003c", "\\/", '<"},{"'):
        body = b'{"messages": "' + (piece * (8_000_000 // len(piece))).encode()
        KNOWN.find(body + b'"}', parse_request("chat", b"{}"))


@pytest.mark.parametrize("name", ["", "x", "lama", "chat ml\n", 'a"b<', "<\\s>", "<" * 200])
def test_a_name_that_is_neither_family_nor_string_is_refused(name: str) -> None:
    with pytest.raises(BadControlString, match="is no "):
        list_control_strings(("chatml", name))


def test_a_string_of_ones_own_is_found() -> None:
    strings = ControlStrings(list_control_strings(("gemma", "<|my_turn|>")))
    body = json.dumps(ask("<|my_turn|>")).encode()
    assert strings.find(body, parse_request("chat", body)) is not None
    assert ControlStrings(()).find(body, parse_request("chat", body)) is None


def test_a_string_with_a_letter_of_two_escapes_is_found() -> None:
    strings = ControlStrings(list_control_strings(("<|🤖|>",)))
    for ascii_only in (True, False):
        body = json.dumps(ask("<|🤖|>"), ensure_ascii=ascii_only).encode()
        assert strings.find(body, parse_request("chat", body)) is not None
