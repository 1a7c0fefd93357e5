"""Anthropic's messages in the log's form, and what an answer of their protocol comes to."""

import json
from typing import Any

import pytest

from producers.gateway.capture.answer import AnswerRecord, make_capture
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.sessions import Sessions
from producers.gateway.http import sse
from producers.gateway.http.wire import VLLM, ExtraFields, ModelRequest, Refused

Json = dict[str, Any]
CACHED = {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "get_user", "description": "Who?", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "c1", "name": "get_user", "input": {"user_id": "U12"}}
THOUGHT = {"type": "thinking", "thinking": "Look them up.", "signature": "s"}
TOLD = {"type": "tool_result", "tool_use_id": "c1", "content": "no such user", "is_error": True}


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def request(*messages: Json, **given: Any) -> ModelRequest:
    return ModelRequest("messages", {"messages": list(messages), **given})


def said(role: str, *content: Json) -> Json:
    return {"role": role, "content": list(content)}


ASKED = request(
    {"role": "user", "content": "I am Rosa."},
    said("assistant", THOUGHT, text("Let me "), text("see."), USE),
    said("user", TOLD, text("Well?")),
    system=[text("Be brief.", **CACHED)],
    tools=[TOOL | CACHED],
)


def test_a_conversation_is_in_the_logs_form() -> None:
    system, user, assistant, result, again = ASKED.messages() or ()
    assert (system.role, system.content) == ("system", "Be brief.")
    assert (user.role, user.content) == ("user", "I am Rosa.")
    assert (assistant.text, assistant.reasoning) == ("Let me see.", "Look them up.")
    (call,) = assistant.tool_calls
    assert (call.id, call.name, call.arguments) == ("c1", "get_user", {"user_id": "U12"})
    assert (result.role, result.tool_call_id) == ("tool", "c1")
    assert (result.content, result.error) == ("no such user", True)
    assert (again.role, again.content) == ("user", "Well?")
    function = {"name": "get_user", "description": "Who?", "parameters": {"type": "object"}}
    assert ASKED.tools == ({"type": "function", "function": function},)


def test_the_engine_gets_the_request_as_it_came() -> None:
    assert ASKED.choose_extras(VLLM) == ExtraFields()
    assert json.loads(ASKED.encode_for_engine(ASKED.choose_extras(VLLM))) == ASKED.document


def test_what_has_no_form_of_ours_stays_a_part() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    (message,) = request(said("user", text("This?"), image)).messages() or ()
    assert message.content == [text("This?"), image]
    (answer,) = request(said("assistant", text("a"), {"type": "odd", "x": 1})).messages() or ()
    assert answer.content == [text("a"), {"type": "odd", "x": 1}]
    odd = THOUGHT | {"thinking": [1]}
    (thought,) = request(said("assistant", odd)).messages() or ()
    assert (thought.content, thought.reasoning) == ([odd], None)
    (result,) = request(said("user", {**TOLD, "content": [text("a"), image]})).messages() or ()
    assert result.content == [text("a"), image]


@pytest.mark.parametrize(
    "broken",
    [
        {"role": "wizard", "content": "a"},
        {"role": "user", "content": 5},
        {"role": "user", "content": ["a"]},
        said("assistant", USE | {"name": None}),
        said("user", TOLD | {"content": 5}),
        said("user", TOLD | {"is_error": "perhaps"}),
        {"content": "a"},
        "a",
    ],
)
def test_what_the_log_cannot_hold_is_none(broken: Any) -> None:
    assert request(broken).messages() is None


def test_a_marker_of_caching_that_moves_does_not_begin_a_new_conversation() -> None:
    first = request(said("user", text("a", **CACHED)))
    then = request(
        said("user", text("a")), said("assistant", text("b")), said("user", text("c", **CACHED))
    )
    sessions, scope = Sessions(), (None, None)
    one = Conversation.of(first.raw_messages)
    sessions.remember_request("s", "call-1", one)
    heard = one.digest_answer({"role": "assistant", "content": "b"})
    sessions.remember_answer("s", "call-1", scope, one, heard)
    found = sessions.attribute(None, scope, Conversation.of(then.raw_messages), "fresh")
    assert (found.session, found.by) == ("s", "prefix")
    assert found.parent is not None
    assert (found.parent.call, found.parent.messages) == ("call-1", 2)


STREAM: list[Json] = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 4, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {**THOUGHT, "thinking": ""}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "Hm."},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": text("")},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "L"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": USE | {"input": {}}},
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"user_id": '},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '"U12"}'},
    },
    {"type": "content_block_stop", "index": 2},
    {"type": "ping"},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"input_tokens": 1, "cache_read_input_tokens": 3, "output_tokens": 7},
    },
]
WHOLE: Json = {
    "content": [THOUGHT | {"thinking": "Hm."}, text("L"), USE],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 4, "output_tokens": 7},
}


def captured(*events: Json, whole: Json | None = None) -> AnswerRecord:
    capture = make_capture(ASKED, ExtraFields(), VLLM)
    for event in events:
        assert capture.chunk(event) is event, "an event is passed on as it came"
    if whole is not None:
        assert capture.whole(whole) is whole
    return capture.build_record()


def test_a_stream_and_a_whole_answer_come_to_the_same() -> None:
    found = captured(*STREAM)
    assert found == captured(whole=WHOLE)
    (message,) = found.messages
    assert (message.reasoning, message.content) == ("Hm.", "L")
    (call,) = message.tool_calls
    assert (call.id, call.name, call.arguments) == ("c1", "get_user", {"user_id": "U12"})
    assert (found.finish_reason, found.prompt_tokens, found.completion_tokens) == ("tool_use", 4, 7)
    assert (found.arrays, found.invalid_tool_calls) == ({}, 0)
    assert "/v1/messages" in (found.untrainable_because or "")


def test_a_stream_that_is_cut_off_is_what_was_said_until_then() -> None:
    for length in range(len(STREAM)):
        found = captured(*STREAM[:length])
        assert found.finished is False
    cut = captured(*STREAM[:9])
    assert cut.messages[0].tool_calls[0].arguments == '{"user_id": '
    assert cut.invalid_tool_calls == 1


@pytest.mark.parametrize("length", range(1, len(STREAM)))
def test_an_answer_that_is_cut_off_has_no_count_of_its_tokens(length: int) -> None:
    counts = {
        "input_tokens": 4, "cache_read_input_tokens": 2, "output_tokens": 1,
        "output_tokens_details": {"thinking_tokens": 1},
    }  # fmt: skip
    begin = {"type": "message_start", "message": {"role": "assistant", "usage": counts}}
    found = captured(begin, *STREAM[1:length])
    assert (found.prompt_tokens, found.completion_tokens) == (6, None)


def test_what_was_counted_of_a_cut_answer_is_kept() -> None:
    delta = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}}
    begin = {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 1}}}
    found = captured(begin, *STREAM[1:4], delta)
    assert (found.prompt_tokens, found.completion_tokens, found.finished) == (None, 5, False)
    assert captured(*STREAM[:4], delta).prompt_tokens == 4


def test_only_its_last_event_ends_a_stream() -> None:
    capture = make_capture(ASKED, ExtraFields(), VLLM)
    said = {"type": "text_delta", "text": '{"type":"message_stop"}'}
    assert not capture.is_last(json.dumps({"type": "content_block_delta", "delta": said}).encode())
    for other in (None, sse.DONE, b"message_stop", b'["message_stop"]', b"{"):
        assert not capture.is_last(other)
    assert capture.is_last(b'{"type":"message_stop"}')


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (413, "request_too_large"),
     (422, "invalid_request_error"), (503, "api_error"), (504, "timeout_error")],
)  # fmt: skip
def test_our_refusals_have_their_shape(status: int, kind: str) -> None:
    refused = Refused(status, "because")
    shape = {"type": "error", "error": {"type": kind, "message": "because"}}
    assert refused.body("messages") == shape
    assert refused.body("chat")["error"].keys() == {"message", "type", "param", "code"}
    name, data, *_ = ASKED.encode_error_event(refused).split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == shape
