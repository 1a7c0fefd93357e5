"""What engines of many habits stream, through a gateway: what the client gets, and the log."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam

from events.messages import Message
from events.rollouts import CallEnded
from ops.fuzz.streams import STYLES, Style, answer, answer_probe
from tests.daemon.gateway.conftest import Fronted, fronting, post
from tests.envs.model_server import ModelServer, Reply

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
HELLO: Json = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
TOOLS: list[ChatCompletionFunctionToolParam] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("lookup_order", "lookup_stock", "list_orders")
]
VLLM = STYLES[0]
MODELS = Reply(json.dumps({"data": [{"id": "base", "owned_by": "vllm"}]}).encode())


def scores(tokens: int) -> Json | None:
    entry = {"token": "t", "logprob": -0.5, "bytes": [116], "top_logprobs": []}
    return {"content": [entry] * tokens} if tokens else None


def chunk(delta: Json, *ids: int, finish: str | None = None, **fields: Any) -> Json:
    """A chunk as vLLM writes it when it was asked for token ids and log-probabilities."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": scores(len(ids))}
    choice["token_ids"] = list(ids) or None
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "base"}
    return {**head, "choices": [choice], **fields}


def called(name: str, arguments: str, id: str, index: int = 0) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


def usage(completion: int, prompt: int = 3, *choices: Json) -> Json:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {**chunk({}), "choices": list(choices), "usage": counts}


BEGIN = chunk({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2, 3])
TWO_CALLS = (
    chunk(called("lookup_order", '{"order": "W7"}', "call_A"), 10, 11),
    chunk(called("lookup_stock", '{"item": "lamp"}', "call_B"), 12, 13),
    chunk({}, 14, finish="tool_calls"),
    usage(5),
)
HI = (chunk({"content": "Hi"}, 60), chunk({}, 61, finish="stop"))


def stream(*chunks: Json) -> Reply:
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)
    return Reply(body + b"data: [DONE]\n\n", headers={"content_type": "text/event-stream"})


Answering = Callable[[Json], Reply]
Over = Callable[..., tuple[Fronted, ModelServer]]


@pytest.fixture
def over(tmp_path: Path) -> Iterator[Over]:
    """Make a gateway over an engine that proves itself and answers chats by a function."""
    with ExitStack() as stack:

        def make(chat: Answering, style: Style = VLLM) -> tuple[Fronted, ModelServer]:
            server = stack.enter_context(ModelServer(lambda body: _answer(body, chat, style)))
            server.models = MODELS
            url = server.url.removesuffix("/v1")
            return stack.enter_context(fronting(tmp_path, [url])), server

        yield make


def _answer(body: Json, chat: Answering, style: Style) -> Reply:
    if "prompt" not in body:
        return chat(body)
    kind = "text/event-stream" if body.get("stream") else "application/json"
    return Reply(answer_probe(style, body), headers={"content_type": kind})


def ended(over: Over, *chunks: Json, **asked: Any) -> tuple[CallEnded, Message]:
    """How a call was recorded that was answered with these chunks."""
    front, _ = over(lambda _: stream(*chunks))
    assert post(front.url, CHAT, **HELLO, tools=TOOLS, **asked).status_code == 200
    (call,) = front.ended()
    assert call.content is not None
    return call, call.content.messages[0]


def assemble(client: openai.OpenAI) -> Json:
    """The message that OpenAI's client assembles from a stream."""
    with client.chat.completions.stream(
        model="base", messages=[{"role": "user", "content": "Hello"}], tools=TOOLS
    ) as events:
        for _ in events:
            pass
        message = events.current_completion_snapshot.choices[0].message
    return message.to_dict(exclude_none=True)


def resent(*calls: Sequence[str]) -> Json:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ],
    }


def test_two_calls_of_one_index_are_two(over: Over) -> None:
    call, message = ended(over, BEGIN, *TWO_CALLS)
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        ("call_A", "lookup_order", {"order": "W7"}),
        ("call_B", "lookup_stock", {"item": "lamp"}),
    ]
    assert (call.trainable, call.invalid_tool_calls) == (True, 0)


@pytest.mark.parametrize("joins", [False, True])
def test_who_sends_two_calls_of_one_index_back_stays_in_the_session(
    over: Over, joins: bool
) -> None:
    front, _ = over(lambda _: stream(BEGIN, *TWO_CALLS))
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none") as client:
        joined = assemble(client)
    assert len(joined["tool_calls"]) == 1, "by index alone, as the client joins them"
    split = resent(
        ("call_A", "lookup_order", '{"order": "W7"}'),
        ("call_B", "lookup_stock", '{"item": "lamp"}'),
    )
    results = [
        {"role": "tool", "tool_call_id": id, "content": "none"} for id in ("call_A", "call_B")
    ]
    messages = [*HELLO["messages"], joined if joins else split, *results]
    post(front.url, CHAT, messages=messages, tools=TOOLS, stream=True)
    first, second = front.started()
    assert (second.session, second.attribution) == (first.session, "prefix")
    assert second.parent == first.call
    assert second.parent_messages == (1 if joins else 2)


def test_a_call_whose_arguments_are_empty_has_none_and_its_session_goes_on(over: Over) -> None:
    chunks = (
        BEGIN,
        chunk(called("list_orders", "", "call_E"), 30, 31),
        chunk({}, 32, finish="tool_calls"),
        usage(3),
    )
    front, _ = over(lambda _: stream(*chunks))
    post(front.url, CHAT, **HELLO, tools=TOOLS)
    for text in ("", "{}"):
        message = resent(("call_E", "list_orders", text))
        result = {"role": "tool", "tool_call_id": "call_E", "content": text or "none"}
        messages = [*HELLO["messages"], message, result]
        post(front.url, CHAT, messages=messages, tools=TOOLS, stream=True)
    first, *others = front.started()
    assert {call.session for call in others[:1]} == {first.session}
    assert {call.parent_messages for call in others[:1]} == {2}
    end = front.ended()[0]
    assert end.content is not None
    assert [call.arguments for call in end.content.messages[0].tool_calls] == [{}]
    assert (end.trainable, end.invalid_tool_calls) == (True, 0)


def test_deltas_with_parts_are_text_and_reasoning(over: Over) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}
    call, message = ended(
        over,
        BEGIN,
        chunk({"content": [thought]}, 60),
        chunk({"content": [{"type": "text", "text": "Hello."}]}, 61),
        chunk({}, 62, finish="stop"),
        usage(3),
    )
    assert (message.content, message.reasoning) == ("Hello.", "Let me see.")
    assert call.trainable


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (usage(2), None),
        (usage(11), "the engine sent 2 token ids and counts 11 (completion_tokens)"),
        (usage(1), "the engine sent 2 token ids and counts 1 (completion_tokens)"),
        (usage(2, prompt=4), "the engine sent 3 token ids and counts 4 (prompt_tokens)"),
        ({**chunk({}), "choices": [], "usage": 11}, "usage is no object"),
    ],
)
def test_a_call_whose_tokens_are_not_those_that_were_counted_is_not_trained_on(
    over: Over, counts: Json, reason: str | None
) -> None:
    call, _ = ended(over, BEGIN, *HI, counts)
    assert (call.trainable, call.untrainable_because) == (reason is None, reason)


def test_tokens_are_counted_over_all_choices(over: Over) -> None:
    def of(number: int, sent: Json) -> Json:
        return {**sent, "choices": [{**choice, "index": number} for choice in sent["choices"]]}

    chunks = [of(number, sent) for sent in (BEGIN, *HI) for number in (0, 1)]
    call, _ = ended(over, *chunks, usage(4), n=2)
    assert (call.trainable, call.completion_tokens) == (True, 4)


def test_an_engine_that_counts_nothing_is_trained_on(over: Over) -> None:
    call, _ = ended(over, BEGIN, *HI)
    assert (call.trainable, call.completion_tokens, call.prompt_tokens) == (True, 2, 3)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_usage_is_asked_for_and_only_who_asked_gets_it(over: Over, options: Json | None) -> None:
    step = (0, {"content": "Hi"}, 2, "stop")

    def chat(body: Json) -> Reply:
        body = {**body, "stream_options": body.get("stream_options")}
        kind = {"content_type": "text/event-stream"}
        return Reply(answer(VLLM, [step], body), headers=kind)

    front, engine = over(chat)
    asked = {} if options is None else {"stream_options": options}
    got = post(front.url, CHAT, **HELLO, **asked)
    assert engine.requests[-1]["stream_options"] == {"include_usage": True}
    assert got.content == chat(HELLO | asked).body
    (call,) = front.ended()
    assert (call.trainable, call.prompt_tokens, call.completion_tokens) == (True, 3, 2)


def test_an_engine_that_tells_usage_of_itself_is_not_asked(over: Over) -> None:
    def chat(body: Json) -> Reply:
        told = usage(2) if body.get("stream_options") else usage(2, 3, chunk({})["choices"][0])
        return stream(BEGIN, *HI, told)

    front, engine = over(chat, replace(VLLM, usage_in="silent", usage_unasked=True))
    got = post(front.url, CHAT, **HELLO)
    assert "stream_options" not in engine.requests[-1]
    assert b'"completion_tokens"' in got.content


def test_chunks_that_the_gateway_did_not_cause_are_passed_on(over: Over) -> None:
    bare = {**chunk({}), "choices": [], "timings": {"predicted_n": 2}}
    chunks = [BEGIN, chunk({}), chunk({}, 7), HI[0], chunk({}, 8, timings={"a": 1}), HI[1], bare]
    front, _ = over(lambda _: stream(*chunks))
    got = post(front.url, CHAT, **HELLO).text.split("\n\n")[:-2]
    kept = [json.loads(line.removeprefix("data: ")) for line in got]
    assert len(kept) == len(chunks) - 1
    assert kept[1] == chunks[1]
    assert [each.get("timings") for each in kept[3:]] == [{"a": 1}, None, {"predicted_n": 2}]
