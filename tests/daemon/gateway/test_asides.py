"""What an agent says to itself about a failed call: in the log, and not for its users."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from events.messages import Message
from producers.gateway.capture.asides import ChatAsides, MessagesAsides
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.privacy.rules import own
from tests.daemon.gateway.conftest import Fronted, fronting, post
from tests.daemon.listening import at_a_port

Json = dict[str, Any]
Over = Callable[..., Fronted]

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
SAID = "<reflect>order_id was W1, it is W2.</reflect>\n\nLet me < look again."
VISIBLE = "Let me < look again."
REFLECTION = "order_id was W1, it is W2."
HELLO: Json = {"model": "tiny", "max_tokens": 48, "messages": [{"role": "user", "content": "Hi"}]}


def cut(text: str, size: int = 5) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def chunk(delta: Json, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'id': '1', 'choices': [choice]})}\n\n".encode()


def chat_stream(text: str) -> bytes:
    begin = chunk({"role": "assistant", "content": ""})
    words = b"".join(chunk({"content": piece}) for piece in cut(text))
    return begin + words + chunk({}, "stop") + b"data: [DONE]\n\n"


def event(document: Json) -> bytes:
    return f"event: {document['type']}\ndata: {json.dumps(document)}\n\n".encode()


def messages_stream(text: str) -> bytes:
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in cut(text)
    ]
    block = {"type": "text", "text": ""}
    parts: list[Json] = [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    return b"".join(map(event, parts))


def chat_answer(text: str) -> Json:
    message = {"role": "assistant", "content": text}
    return {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def messages_answer(text: str) -> Json:
    content = [{"type": "text", "text": text}]
    return {"role": "assistant", "content": content, "stop_reason": "end_turn"}


@pytest.fixture
def engine() -> Iterator[tuple[list[str], str]]:
    """An engine whose answers are the texts that it is given, each once."""
    texts: list[str] = []

    async def answer(request: Request) -> Response:
        text, streams = texts.pop(0), (await request.json()).get("stream")
        chat = request.url.path == CHAT
        if streams:
            body = chat_stream(text) if chat else messages_stream(text)
            return Response(body, media_type="text/event-stream")
        return JSONResponse(chat_answer(text) if chat else messages_answer(text))

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "tiny", "owned_by": "somebody"}]})

    routes = [Route(path, answer, methods=["POST"]) for path in (CHAT, MESSAGES)]
    with at_a_port(Starlette(routes=[*routes, Route("/v1/models", models)])) as url:
        yield texts, url


@pytest.fixture
def over_engine(engine: tuple[list[str], str], tmp_path: Path) -> Iterator[Over]:
    with ExitStack() as stack:

        def make(**options: Any) -> Fronted:
            return stack.enter_context(fronting(tmp_path, [engine[1]], proven=False, **options))

        yield make


def read_stream(answer: httpx2.Response) -> str:
    documents = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    ]
    deltas = [
        document["choices"][0]["delta"].get("content") or ""
        if "choices" in document
        else document.get("delta", {}).get("text", "")
        for document in documents
    ]
    return "".join(deltas)


def read_whole(answer: httpx2.Response) -> str:
    document = answer.json()
    if "choices" in document:
        return str(document["choices"][0]["message"]["content"])
    return "".join(block["text"] for block in document["content"])


def messages_of(front: Fronted) -> list[Message]:
    return [message for call in front.ended() if call.content for message in call.content.messages]


@pytest.mark.parametrize("visible", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("stream", [True, False])
def test_a_reflection_is_recorded_and_the_client_gets_it_only_where_it_is_visible(
    engine: tuple[list[str], str], over_engine: Over, path: str, stream: bool, visible: bool
) -> None:
    front = over_engine(shows_asides=visible)
    engine[0].append(SAID)
    answer = post(front.url, path, **HELLO, stream=stream)
    assert (read_stream if stream else read_whole)(answer) == (SAID if visible else VISIBLE)
    assert visible or "reflect" not in answer.text
    (message,) = messages_of(front)
    assert (message.text, message.reflection) == (VISIBLE, REFLECTION)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("text", ["<reflect>It was W1.</reflect>", "<reflect>It was W1"])
def test_of_an_answer_that_is_only_a_reflection_an_empty_text_is_left(
    engine: tuple[list[str], str], over_engine: Over, path: str, text: str
) -> None:
    front = over_engine()
    engine[0].append(text)
    answer = post(front.url, path, **HELLO, stream=False).json()
    if path == CHAT:
        assert answer["choices"][0]["message"]["content"] == "", "without calls it must be a text"
    else:
        assert answer["content"] == []
    (message,) = messages_of(front)
    assert (message.content, message.text) == ("", "")
    assert message.reflection is not None


def begin_block(number: int, block: Json) -> Json:
    return {"type": "content_block_start", "index": number, "content_block": block}


def text_block(number: int, *pieces: str) -> list[Json]:
    deltas = [
        {"type": "content_block_delta", "index": number,
         "delta": {"type": "text_delta", "text": piece}}
        for piece in pieces
    ]  # fmt: skip
    begin = begin_block(number, {"type": "text", "text": ""})
    return [begin, *deltas, {"type": "content_block_stop", "index": number}]


def call_block(number: int) -> list[Json]:
    arguments = {"type": "input_json_delta", "partial_json": "{}"}
    return [
        begin_block(number, {"type": "tool_use", "id": "t1", "name": "get_order", "input": {}}),
        {"type": "content_block_delta", "index": number, "delta": arguments},
        {"type": "content_block_stop", "index": number},
    ]


def shown(events: list[Json]) -> list[Json]:
    reflections = MessagesAsides()
    return [each for event in events for each in reflections.take_from_chunk(event)]


STOP: Json = {"type": "message_stop"}


@pytest.mark.parametrize(
    "pieces",
    [
        ["<reflect>It was W1.</reflect>"],
        ["<refl", "ect>It was", " W1"],
        ["<reflect>a</reflect>", "\n"],
    ],
)
def test_a_block_of_a_stream_that_is_only_a_reflection_is_left_out(pieces: list[str]) -> None:
    events = [*text_block(0, *pieces), *call_block(1), *text_block(2, "Done."), STOP]
    assert shown(events) == [*call_block(0), *text_block(1, "Done."), STOP]


def test_a_block_begins_for_the_client_with_what_is_seen_of_it() -> None:
    events = text_block(0, "<reflect>It was W1.", "</reflect>", "Let me", " look")
    begin, _, _, first, second, end = events
    assert shown([*events, *call_block(1)]) == [begin, first, second, end, *call_block(1)]
    held = text_block(0, "1 <ref")
    assert shown(held) == text_block(0, "1 ", "<ref")
    whole = begin_block(0, {"type": "text", "text": "<reflect>a</reflect>It is W2"})
    assert shown([whole, end])[0]["content_block"]["text"] == "It is W2"


@pytest.mark.parametrize("pieces", [[], [""], ["\n", " "], ["\n", "", "a"], ["a <b>", " c"]])
def test_the_events_of_a_block_without_a_reflection_are_the_engines(pieces: list[str]) -> None:
    events = [*text_block(0, *pieces), *call_block(1), STOP]
    assert list(map(id, shown(events))) == list(map(id, events))


def test_odd_events_of_blocks_are_passed_on_as_they_came() -> None:
    begin, end = text_block(0)
    odd: list[Json] = [
        {"type": "ping"}, {"type": "content_block_delta", "index": 0, "delta": 3},
        {"type": "content_block_delta", "index": 7, "delta": {"text": "x"}},
        {"type": "content_block_start", "index": 0, "content_block": None},
        {"type": "content_block_start"},
    ]  # fmt: skip
    assert shown(odd) == odd
    assert shown([begin, odd[1], end]) == [begin, odd[1], end]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("text", ["a <b> and <ref", "", "</reflect> ok"])
def test_an_answer_without_a_reflection_is_the_engines_to_the_byte(
    engine: tuple[list[str], str], over_engine: Over, path: str, text: str
) -> None:
    front = over_engine()
    engine[0].append(text)
    answer = post(front.url, path, **HELLO, stream=False)
    assert answer.json() == (chat_answer if path == CHAT else messages_answer)(text)


def test_a_stream_without_a_reflection_is_the_engines_to_the_byte(
    engine: tuple[list[str], str], over_engine: Over
) -> None:
    """The events of a block are held until something of it is seen, and pass on as they came."""
    front = over_engine()
    text = "\n    It is W2, and not W1."
    engine[0].append(text)
    answer = post(front.url, MESSAGES, **HELLO, stream=True)
    assert answer.content == messages_stream(text)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_what_looks_like_the_beginning_of_a_tag_is_not_lost_at_the_end(
    engine: tuple[list[str], str], over_engine: Over, path: str
) -> None:
    front = over_engine()
    engine[0].append("It is 1 <ref")
    assert read_stream(post(front.url, path, **HELLO, stream=True)) == "It is 1 <ref"


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_the_conversation_goes_on_whether_the_client_has_the_reflection_or_not(
    engine: tuple[list[str], str], over_engine: Over, visible: bool, stream: bool
) -> None:
    front = over_engine(shows_asides=visible)
    engine[0].extend([SAID, "Done."])
    first = post(front.url, CHAT, **HELLO, stream=stream)
    answer = (read_stream if stream else read_whole)(first)
    assert ("<reflect>" in answer) == visible
    history = [
        *HELLO["messages"],
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "Go on."},
    ]
    post(front.url, CHAT, **HELLO | {"messages": history}, stream=stream)
    sessions = {call.session for call in front.started()}
    assert len(sessions) == 1
    asked = front.started()[-1].content
    assert asked is not None
    assert all("<reflect>" not in message.text for message in asked.messages)


def test_a_client_may_send_the_reflection_back_in_parts(
    engine: tuple[list[str], str], over_engine: Over
) -> None:
    front = over_engine(shows_asides=True)
    engine[0].extend([SAID, "Done."])
    answer = read_whole(post(front.url, CHAT, **HELLO))
    middle = answer.index("W1")
    parts = [{"type": "text", "text": text} for text in (answer[:middle], answer[middle:])]
    history = [
        {"role": "user", "content": "Another beginning"},
        {"role": "assistant", "content": parts},
        {"role": "user", "content": [{"type": "text", "text": "What is <reflect>?"}]},
    ]
    post(front.url, CHAT, **HELLO | {"messages": history})
    content = front.started()[-1].content
    assert content is not None
    _, asked, question = content.messages
    assert (asked.text, asked.reflection) == (VISIBLE, REFLECTION)
    assert (question.text, question.reflection) == ("What is <reflect>?", None)


@pytest.mark.parametrize("stream", [True, False])
def test_a_retry_gets_no_reflection_either(
    engine: tuple[list[str], str], over_engine: Over, stream: bool
) -> None:
    front = over_engine()
    engine[0].append(SAID)
    first, again = (
        httpx2.post(
            f"{front.url}{CHAT}",
            json={**HELLO, "stream": stream},
            headers={"idempotency-key": "key-1"},
            timeout=60,
        )
        for _ in range(2)
    )
    assert (read_stream if stream else read_whole)(again) == VISIBLE
    assert again.content == first.content


def test_rules_redact_the_recorded_reflection(
    engine: tuple[list[str], str], over_engine: Over
) -> None:
    front = over_engine(redaction=Redaction([own("order", "W[0-9]")], b"salt"))
    engine[0].append(SAID)
    post(front.url, CHAT, **HELLO)
    (message,) = messages_of(front)
    assert message.reflection == "order_id was [redacted:order], it is [redacted:order]."


@pytest.mark.parametrize(
    ("before", "last", "rest"),
    [
        ({"delta": {"content": "a <"}}, {}, {"delta": {"content": "<"}}),
        ({"delta": {"content": "a <"}}, {"delta": None}, {"delta": {"content": "<"}}),
        ({"text": "a <"}, {"text": None}, {"text": "<"}),
    ],
)
def test_what_was_held_back_comes_with_a_last_chunk_that_says_nothing(
    before: Json, last: Json, rest: Json
) -> None:
    reflections = ChatAsides()
    reflections.take_from_chunk({"choices": [{"index": 0, **before, "finish_reason": None}]})
    end = {"index": 0, "finish_reason": "stop"}
    (chunk,) = reflections.take_from_chunk({"choices": [{**end, **last}]})
    assert chunk == {"choices": [{**end, **rest}]}
    silent = {"choices": [{**end, **last}]}
    assert ChatAsides().take_from_chunk(silent) == (silent,)


@pytest.mark.parametrize("odd", ["ab", 1, ["ab"], True, {"content": [1]}, {"content": {}}])
@pytest.mark.parametrize("field", ["delta", "message", "text"])
def test_what_no_engine_says_is_passed_on_as_it_came(field: str, odd: Any) -> None:
    document = {"choices": [{"index": 0, field: odd, "finish_reason": "stop"}]}
    assert ChatAsides().take_from_chunk(document) == (document,)
    assert ChatAsides().take_from_whole(document) is document
