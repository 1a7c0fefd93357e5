"""Spans as calls: every form of content that instrumentations write, and whatever else comes."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.spans import conventions as names
from producers.spans.genai import Chat, chat_of
from producers.spans.otlp import JSON, PROTOBUF, BadTraces, ClientSpan, spans
from producers.storable import Unusable

USER = {"role": "user", "parts": [{"type": "text", "content": "Hello"}]}
SAID = {"role": "assistant", "parts": [{"type": "text", "content": "Hi"}]}


def span(error: str | None = None, **told: Any) -> ClientSpan:
    attributes = {names.OPERATION: "chat", **told}
    return ClientSpan("a" * 32, "b" * 16, attributes, (), 1.0, 1, error)


def chat(**told: Any) -> Chat:
    found = chat_of(span(**{names.INPUT: [USER], names.OUTPUT: [SAID], **told}))
    assert found is not None
    return found


def test_a_conversation_has_openais_form() -> None:
    call = {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}
    results = [
        {"type": "tool_call_response", "id": "c", "response": {"ok": True}},
        {"type": "tool_call_response", "id": "d", "result": "of an older version"},
    ]
    asked = [
        USER,
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, call]},
        {"role": "tool", "parts": results},
    ]
    system = [{"type": "text", "content": "Be brief."}]
    found = chat(**{names.INPUT: json.dumps(asked), names.INSTRUCTIONS: system})
    assert found.request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": 1}'},
                }
            ],
            "reasoning": "hm",
        },
        {"role": "tool", "tool_call_id": "c", "content": '{"ok": true}'},
        {"role": "tool", "tool_call_id": "d", "content": "of an older version"},
    ]


def test_an_answer_and_its_usage_are_read() -> None:
    told = {names.FINISH_REASONS: ["stop"], names.INPUT_TOKENS: 3, names.OUTPUT_TOKENS: 4}
    found = chat(**told, **{names.REQUEST_MODEL: "m", names.RESPONSE_MODEL: "m-1"})
    assert found.answer == {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    assert (found.model, found.request["model"]) == ("m-1", "m")


def test_pictures_are_named_and_not_kept() -> None:
    picture = {"type": "blob", "mime_type": "image/png", "content": "aGVsbG8="}
    asked = [{"role": "user", "parts": [picture, {"type": "text", "content": "What is it?"}]}]
    (message,) = chat(**{names.INPUT: asked}).request["messages"]
    assert message["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "media", "mime_type": "image/png"},
    ]


def test_parameters_and_tools_have_openais_names() -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {}}
    told = {"gen_ai.request.top_p": 0.5, "gen_ai.request.stop_sequences": ["x"]}
    found = chat(**told, **{names.TOOLS: [tool]})
    assert (found.request["top_p"], found.request["stop"]) == (0.5, ["x"])
    (offered,) = found.request["tools"]
    assert offered["function"] == {"name": "f", "description": "d", "parameters": {}}


def test_what_is_no_call_of_a_model_is_none() -> None:
    operations: tuple[Any, ...] = ("execute_tool", "invoke_agent", "embeddings", None, 7)
    for operation in operations:
        assert chat_of(span(**{names.OPERATION: operation})) is None


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, "captures no content"),
        ({names.INPUT: []}, "captures no content"),
        ({names.INPUT: "no json"}, "text and no JSON"),
        ({names.INPUT: {"role": "user"}}, "no list of messages"),
        ({names.INPUT: [{"role": "user"}], names.OUTPUT: [SAID]}, "no list of parts"),
        ({names.INPUT: [USER]}, "neither gen_ai.output.messages nor an error"),
    ],
)
def test_what_cannot_be_recorded_says_why(told: dict[str, Any], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        chat_of(span(**told))


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "parts", "type", "content", "name", "id", "arguments"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([names.INPUT, names.OUTPUT, names.TOOLS]), _ANY))
def test_nothing_that_is_sent_breaks_the_reader(told: dict[str, Any]) -> None:
    with suppress(Unusable):
        found = chat_of(span(**told))
        assert found is not None
        json.dumps(found.request)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([JSON, PROTOBUF]))
def test_bytes_are_spans_or_refused(body: bytes, kind: Any) -> None:
    with suppress(BadTraces):
        assert isinstance(spans(body, kind), list)


@settings(max_examples=60, deadline=None)
@given(_ANY)
def test_json_is_spans_or_refused(document: Any) -> None:
    for sent in (
        document,
        {"resourceSpans": document},
        {"resourceSpans": [{"scopeSpans": document}]},
    ):
        with suppress(BadTraces):
            assert isinstance(spans(json.dumps(sent).encode(), JSON), list)
