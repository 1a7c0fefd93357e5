"""The client against a real HTTP server that does everything wrong, one thing at a time."""

import asyncio
import gzip
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import stamina.instrumentation

from envs.endpoint import (
    MAX_ANSWER_BYTES,
    AnswerFailure,
    Completion,
    Endpoint,
    EndpointRefusal,
    EndpointUnavailable,
    Sampling,
    Tokens,
    Usage,
    wire,
)
from envs.episode import Termination
from events.messages import Message, ToolCall
from tests.envs.model_server import (
    NO_ANSWER,
    Answering,
    ModelServer,
    Reply,
    answer,
    called,
    refused,
    said,
)

HELLO = (Message(role="system", content="Be kind."), Message(role="user", content="Hello"))


def ask(url: str, times: int = 1, choices: int = 1, **options: Any) -> Completion:
    """The last of so many answers."""

    async def run() -> Completion:
        given = {"attempts": 3, "wait_seconds": 0.001, "timeout": 10.0, **options}
        async with Endpoint(url, "small", **given) as endpoint:
            for _ in range(times - 1):
                await endpoint.complete(HELLO)
            return await endpoint.complete(HELLO, choices=choices)

    return asyncio.run(run())


def ended_by(answering: Answering, **options: Any) -> AnswerFailure:
    """How an answer failed."""
    with ModelServer(answering) as server, pytest.raises(AnswerFailure) as failed:
        ask(server.url, **options)
    return failed.value


def good_then(reply: Reply) -> Answering:
    """A good answer, then this one for ever."""
    replies: Iterator[Reply] = iter([answer(said("Hi"))])
    return lambda _: next(replies, reply)


@contextmanager
def raw_server(sends: bytes) -> Iterator[str]:
    """Sends the same bytes to whoever connects, and hangs up."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(sends)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_an_answer_is_a_message_with_its_calls_reasoning_and_usage() -> None:
    message = {
        **called("cancel_order", {"order_id": "#1"}, id="x1"),
        "content": "Let me see.",
        "reasoning_content": "They want it gone.",
    }
    with ModelServer(lambda _: message) as server:
        completion = ask(server.url)
    assert completion.message == Message(
        role="assistant",
        content="Let me see.",
        tool_calls=(ToolCall(name="cancel_order", arguments={"order_id": "#1"}, id="x1"),),
        reasoning="They want it gone.",
    )
    assert completion.finish_reason == "stop"
    assert completion.usage == Usage(1, 100, 10)


def test_a_request_holds_what_was_asked_for_and_nothing_that_was_not() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    async def run(url: str) -> None:
        async with Endpoint(url, "small", api_key="secret-key") as endpoint:
            sampling = Sampling(temperature=0.7, extra={"top_k": 5})
            await endpoint.complete(HELLO, tools=tools, sampling=sampling, seed=3)
            await endpoint.complete(HELLO)

    with ModelServer(lambda _: said("Hi")) as server:
        asyncio.run(run(server.url))
        first, second = server.requests
        assert server.keys == {"Bearer secret-key"}
    spoken = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    asked = {"model": "small", "messages": spoken}
    assert first == {**asked, "tools": tools, "temperature": 0.7, "top_k": 5, "seed": 3}
    assert second == asked


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ('{"order": "#1"}', {"order": "#1"}),
        ("", {}),
        ("{malformed", "{malformed"),
        ("[1]", "[1]"),
        ('"text"', '"text"'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        ('{"a": ' * 300 + "1" + "}" * 300, '{"a": ' * 300 + "1" + "}" * 300),
        ("[" * 100_000, "[" * 100_000),
        ('{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 5000 + "}"),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_are_an_object_or_the_text_they_were(sent: str, kept: Any) -> None:
    with ModelServer(lambda _: called("look", sent)) as server:
        (call,) = ask(server.url).message.tool_calls
    assert call.arguments == kept


@pytest.mark.parametrize("id", [None, "", 7])
def test_a_call_without_an_id_gets_one(id: Any) -> None:
    with ModelServer(lambda _: called("look", {}, id=id)) as server:
        (call,) = ask(server.url).message.tool_calls
    assert call.id == "call_2_0"


def test_a_malformed_call_goes_back_as_an_object() -> None:
    calls = (ToolCall(name="look", arguments="{malformed", id="x1"),)
    sent = wire(Message(role="assistant", tool_calls=calls))
    arguments = sent["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"malformed_arguments": "{malformed"}


def test_an_agents_reasoning_is_sent_back_and_nothing_else_that_was_not_said() -> None:
    answered = Message(role="assistant", content="Hi", reasoning="why", reflection="wrong")
    assert wire(answered) == {"role": "assistant", "content": "Hi", "reasoning": "why"}
    asked = Message(role="user", content="Hi", reasoning="why")
    assert wire(asked) == {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("thought", "sent_back"),
    [
        ({"reasoning": "Hm."}, {"reasoning": "Hm."}),
        ({"reasoning_content": "Hm."}, {"reasoning_content": "Hm."}),
        ({"reasoning": None, "reasoning_content": "Hm."}, {"reasoning_content": "Hm."}),
        (
            {"reasoning": "Hm.", "reasoning_content": "Hm."},
            {"reasoning": "Hm.", "reasoning_content": "Hm."},
        ),
        (
            {"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}]},
            {},
        ),
    ],
)
def test_reasoning_is_sent_back_in_the_fields_that_the_endpoint_has(
    thought: dict[str, Any], sent_back: dict[str, Any]
) -> None:
    """Some endpoints refuse a field of a message that they do not know."""
    replies = iter([said("Hi") | thought, said("Bye"), said("Bye")])

    async def run(url: str) -> None:
        async with Endpoint(url, "small") as endpoint:
            first = await endpoint.complete(HELLO)
            history = [*HELLO, first.message, HELLO[-1]]
            second = await endpoint.complete(history)
            await endpoint.complete([*history, second.message, HELLO[-1]])

    with ModelServer(lambda _: next(replies)) as server:
        asyncio.run(run(server.url))
    own = {"role": "assistant", "content": "Hi"}
    assert server.requests[1]["messages"][2] == own | sent_back
    assert server.requests[2]["messages"][2] == own | sent_back
    assert server.requests[2]["messages"][4] == {"role": "assistant", "content": "Bye"}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(b"<html>It works!</html>"), "<html>It works!</html>"),
        (Reply(b""), "(nothing)"),
        (Reply(b"[]"), "got '[]'"),
        (Reply(b"\xff\xfe\x00"), "no JSON"),
        (Reply(b"[" * 100_000), "no JSON"),
        (Reply(b'{"choices": null}'), "choices"),
        (Reply(b'{"choices": [7]}'), "got '7'"),
        (Reply(b'{"choices": [{"message": {"content": 7}}]}'), "got '7'"),
        (Reply(b'{"choices": [{"message": {"tool_calls": "look"}}]}'), "got 'look'"),
        (answer(called(7, {})), "got '7'"),
        (answer(said("")), "it is empty (finish_reason 'stop')"),
        (answer({"role": "assistant"}), "it is empty"),
    ],
)
def test_what_is_no_message_is_the_agents_error_and_quoted(reply: Reply, reason: str) -> None:
    failed = ended_by(lambda _: reply)
    assert failed.termination is Termination.AGENT_ERROR
    assert reason in failed.reason
    assert len(failed.reason) < 500


def test_an_answer_of_fifty_megabytes_is_not_read_to_its_end() -> None:
    big = answer(said("x" * (50 << 20)))
    failed = ended_by(lambda _: big)
    assert failed.termination is Termination.AGENT_ERROR
    assert "larger than 4,194,304 bytes" in failed.reason


def test_a_small_answer_that_becomes_a_large_one_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(128 << 20))
    assert len(bomb) < MAX_ANSWER_BYTES
    tracemalloc.start()
    try:
        failed = ended_by(lambda _: Reply(bomb, headers={"content_encoding": "gzip"}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "cannot be decoded" in failed.reason
    assert peak < 32 << 20


def test_an_answer_that_does_not_come_is_a_timeout_and_asked_for_once() -> None:
    with ModelServer(lambda _: NO_ANSWER) as server:
        with pytest.raises(AnswerFailure) as failed:
            ask(server.url, timeout=2)
        assert failed.value.termination is Termination.TIMEOUT
        assert failed.value.reason == "no whole answer within 2 s"
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_or_broken_endpoint_is_asked_again(status: int) -> None:
    replies = iter([refused(status, "busy"), refused(status, "busy")])
    with ModelServer(lambda _: next(replies, said("Hi"))) as server:
        assert ask(server.url).message.text == "Hi"
        assert len(server.requests) == 3


def test_an_endpoint_that_stays_broken_is_no_fault_of_the_agent() -> None:
    failed = ended_by(lambda _: refused(500, "out of memory"))
    assert failed.termination is Termination.INFRASTRUCTURE_ERROR
    assert failed.reason == "HTTP 500: out of memory; asked 3 times"


def test_a_connection_that_is_cut_is_no_fault_of_the_agent() -> None:
    reply = answer(said("Hi"))
    cut = Reply(reply.body, cut=True)
    failed = ended_by(lambda _: cut)
    assert failed.termination is Termination.INFRASTRUCTURE_ERROR
    assert failed.reason.startswith("no answer: RemoteProtocolError")


@pytest.mark.parametrize("garbage", [b"", b"\x00\x01garbage\r\n\r\n", b"HTTP/9.9 what\r\n\r\n"])
def test_what_is_no_http_is_no_fault_of_the_agent(garbage: bytes) -> None:
    with raw_server(garbage) as url, pytest.raises(AnswerFailure) as failed:
        ask(url)
    assert failed.value.termination is Termination.INFRASTRUCTURE_ERROR


def test_nobody_listening_is_no_fault_of_the_agent() -> None:
    with ModelServer(lambda _: said("Hi")) as server:
        url = server.url
    with pytest.raises(AnswerFailure) as failed:
        ask(url)
    assert failed.value.termination is Termination.INFRASTRUCTURE_ERROR
    assert "ConnectError" in failed.value.reason


@pytest.mark.parametrize(
    ("named", "pause"), [("1", 1.0), ("Sat, 21 Nov 2026 06:46:26 GMT", 0.002), ("-5", 0.002)]
)
def test_the_pause_that_an_endpoint_names_is_kept(named: str, pause: float) -> None:
    pauses: list[float] = []
    hooks = stamina.instrumentation.get_on_retry_hooks()
    stamina.instrumentation.set_on_retry_hooks([lambda details: pauses.append(details.wait_for)])
    replies = iter([refused(429, "slow down", retry_after=named)])
    try:
        with ModelServer(lambda _: next(replies, said("Hi"))) as server:
            ask(server.url)
    finally:
        stamina.instrumentation.set_on_retry_hooks(hooks)
    assert len(pauses) == 1
    assert pauses[0] == pause if pause == 1.0 else pauses[0] <= pause


@pytest.mark.parametrize(
    ("status", "message", "remedy"),
    [
        (401, "no key", "give the API key"),
        (403, "not yours", "give an API key that may"),
        (404, "no such model", "correct the base URL (it mostly ends in /v1) or the model 'small'"),
        (400, "auto tool choice requires a flag", "correct what it names"),
        (301, "moved", "correct what it names"),
    ],
)
def test_a_refusal_of_the_first_request_is_the_configurations(
    status: int, message: str, remedy: str
) -> None:
    with ModelServer(lambda _: refused(status, message)) as server:
        with pytest.raises(EndpointRefusal) as error:
            ask(server.url)
        assert len(server.requests) == 1
    for said_so in (server.url, str(status), message, remedy):
        assert said_so in str(error.value)


def test_a_refused_conversation_after_good_ones_is_the_agents_error() -> None:
    failed = ended_by(good_then(refused(400, "bad tool name")), times=2)
    assert failed.termination is Termination.AGENT_ERROR
    assert failed.reason == "the conversation was refused: HTTP 400: bad tool name"


@pytest.mark.parametrize(
    "reply",
    [
        refused(400, "This model's maximum context length is 4096 tokens."),
        Reply(b'{"error": {"code": "context_length_exceeded", "message": 7}}', 400),
    ],
)
def test_a_conversation_that_is_too_long_says_so(reply: Reply) -> None:
    assert ended_by(lambda _: reply).termination is Termination.CONTEXT_OVERFLOW


def test_the_unusable_choices_of_several_are_left_out() -> None:
    reply = answer(said(""), said("Hi"), {"content": 7}, said("Hello"))
    with ModelServer(lambda _: reply) as server:
        completion = ask(server.url, choices=4)
        assert server.requests[0]["n"] == 4
    assert [message.text for message in completion.messages] == ["Hi", "Hello"]


def test_the_key_is_in_no_error() -> None:
    key = "sk-very-secret"
    answering = good_then(refused(401, "no"))
    with ModelServer(answering) as server, pytest.raises(EndpointRefusal) as error:
        ask(server.url, times=2, api_key=key)
    assert key not in repr(error.value)
    assert error.value.__cause__ is None


def test_checking_finds_who_is_there() -> None:
    async def check(url: str) -> None:
        async with Endpoint(url, "small") as endpoint:
            await endpoint.check()

    with ModelServer(lambda _: said("Hi")) as server:
        asyncio.run(check(server.url))
        server.models = Reply(b"not here", 404)
        asyncio.run(check(server.url))
        server.models = Reply(b"who are you", 401)
        with pytest.raises(EndpointRefusal, match="give the API key"):
            asyncio.run(check(server.url))
    with pytest.raises(EndpointUnavailable, match="cannot be reached"):
        asyncio.run(check(server.url))


def list_names(models: Reply) -> tuple[str, ...] | None:
    """The names of the models that an endpoint lists which answers so."""

    async def ask_for_list(url: str) -> tuple[str, ...] | None:
        async with Endpoint(url, "small") as endpoint:
            return await endpoint.list_models()

    with ModelServer(lambda _: said("Hi")) as server:
        server.models = models
        return asyncio.run(ask_for_list(server.url))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"object": "list", "data": [{"id": "small", "object": "model"}]}', ("small",)),
        (b'[{"id": "small"}, {"id": "large"}]', ("small", "large")),
        (b'{"data": []}', ()),
    ],
)
def test_the_models_of_an_endpoint_are_listed_by_name(body: bytes, names: tuple[str, ...]) -> None:
    assert list_names(Reply(body)) == names


@pytest.mark.parametrize("status", [404, 405])
def test_an_endpoint_may_have_no_list_of_models(status: int) -> None:
    assert list_names(Reply(b"not here", status)) is None


@pytest.mark.parametrize(
    ("reply", "error", "reason"),
    [
        (refused(500, "on fire"), EndpointUnavailable, "HTTP 500: on fire; mend or restart"),
        (refused(503, "loading"), EndpointUnavailable, "HTTP 503: loading"),
        (Reply(b"", 302, {"location": "/login"}), EndpointRefusal, "redirects to /login"),
        (Reply(b"<html>Log in</html>"), EndpointRefusal, "no list of models; it begins <html>"),
        (Reply(b'{"status": "ok"}'), EndpointRefusal, "no list of models"),
        (Reply(b"x" * (5 << 20)), EndpointRefusal, "is larger than"),
    ],
)
def test_an_endpoint_that_lists_no_models_where_it_should_is_named(
    reply: Reply, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason) as failure:
        list_names(reply)
    assert "/v1/models" in str(failure.value)
    assert "; " in str(failure.value)


@pytest.mark.parametrize("url", ["127.0.0.1:8000/v1", "ftp://x/v1", "http://", "http://[::1", ""])
def test_what_is_no_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(EndpointRefusal, match="base URL"):
        Endpoint(url, "small")


@pytest.mark.parametrize("port", [99_999, 65_536, 0, -1])
def test_a_port_that_is_none_is_refused_by_its_number(port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1"
    with pytest.raises(EndpointRefusal, match=rf"{url}' has the port {port}, .* correct it"):
        Endpoint(url, "small")


@pytest.mark.parametrize("key", ["schl\u00fcssel", "two\nlines"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(EndpointRefusal, match="the API key has a character") as refusal:
        Endpoint("http://127.0.0.1:9/v1", "small", api_key=key)
    assert key not in str(refusal.value)


def scored(
    *logprobs: float,
    ids: list[int],
    prompt: Any,
    text: str = "Hi",
    usage: dict[str, int] | None = None,
) -> Reply:
    """An answer with exact tokens, as vLLM gives them; `usage`: else that of these tokens."""
    content = [{"token": "x", "logprob": logprob, "bytes": None} for logprob in logprobs]
    choice = {
        "index": 0,
        "message": said(text),
        "finish_reason": "stop",
        "logprobs": {"content": content},
        "token_ids": ids,
    }
    counts = {"prompt_tokens": len(prompt or ()), "completion_tokens": len(ids)}
    return answer(
        said(text),
        choices=[choice],
        prompt_token_ids=prompt,
        usage=counts if usage is None else usage,
    )


def test_exact_tokens_come_with_an_answer_that_reports_them() -> None:
    with ModelServer(lambda _: scored(-0.5, -1, ids=[7, 2], prompt=[1, 5])) as server:
        assert ask(server.url).tokens == Tokens((1, 5), (7, 2), (-0.5, -1.0))


@pytest.mark.parametrize(
    "reply",
    [
        answer(said("Hi")),
        scored(-0.5, ids=[7, 2], prompt=[1]),
        scored(-0.5, ids=[7], prompt=None),
        scored(-0.5, ids=[7], prompt=[]),
        scored(-0.5, ids=["7"], prompt=[1]),  # type: ignore[list-item]
        scored(-0.5, ids=[7], prompt=[1.5]),
        scored(-0.5, ids=[7], prompt=[1], usage={"completion_tokens": 11}),
        scored(-0.5, ids=[7], prompt=[1], usage={"completion_tokens": 0}),
        scored(-0.5, ids=[7], prompt=[1], usage={"prompt_tokens": 2}),
    ],
)
def test_tokens_that_are_not_all_there_are_none(reply: Reply) -> None:
    with ModelServer(lambda _: reply) as server:
        assert ask(server.url).tokens is None


def test_what_is_no_message_keeps_its_tokens() -> None:
    failed = ended_by(lambda _: scored(-0.5, ids=[2], prompt=[1], text=" "))
    assert failed.termination is Termination.AGENT_ERROR
    assert failed.tokens == Tokens((1,), (2,), (-0.5,))
    assert ended_by(lambda _: answer(said(""))).tokens is None


def test_an_endpoint_that_counts_nothing_contradicts_no_tokens() -> None:
    with ModelServer(lambda _: scored(-0.5, ids=[7], prompt=[1], usage={})) as server:
        assert ask(server.url).tokens == Tokens((1,), (7,), (-0.5,))


def test_usage_that_was_not_reported_stays_unknown() -> None:
    with ModelServer(lambda _: answer(said("Hi"), usage={"completion_tokens": "many"})) as server:
        usage = ask(server.url).usage
    assert usage == Usage(1, None, None)
    assert Usage(2, 10, 20) + usage == Usage(3, None, None)
