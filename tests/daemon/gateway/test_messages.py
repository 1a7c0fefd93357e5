"""Anthropic's Messages API through the gateway: refusals, keys, and streams that go wrong.

The embedded engine does not have it, and says so itself; test_vllm_messages.py asks one that does.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from producers.gateway.privacy.keys import ClientKey, mint_key
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.conftest import Front, Fronted, fronting, post

Json = dict[str, Any]
MESSAGES = "/v1/messages"
HELLO: Json = {"model": "tiny", "max_tokens": 48, "messages": [{"role": "user", "content": "Hi"}]}


def test_an_engine_without_it_says_so_itself(front: Fronted, live: Live) -> None:
    for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
        direct, through = post(live.url, path, **HELLO), post(front.url, path, **HELLO)
        assert (through.status_code, through.json()) == (404, direct.json())
    (ended,) = front.ended()
    assert (ended.outcome, ended.status) == ("failed", 404)


def test_what_is_refused_here_has_anthropics_shape(front_over: Front, live: Live) -> None:
    front = front_over(live.url, max_body_bytes=100)
    for content, status, kind in (
        (b"{", 400, "invalid_request_error"),
        (b"x" * 101, 413, "request_too_large"),
    ):
        for path in (MESSAGES, f"/r/session/s{MESSAGES}"):
            refused = httpx2.post(f"{front.url}{path}", content=content)
            assert (refused.status_code, refused.json()["type"]) == (status, "error")
            assert refused.json()["error"].keys() == {"type", "message"}
            assert refused.json()["error"]["type"] == kind
    assert front.records() == []


def test_the_key_may_stand_where_anthropics_clients_put_it(front_over: Front, live: Live) -> None:
    key = mint_key()
    entry = ClientKey("writer", sha256(key.encode()).hexdigest(), frozenset(("call",)))
    front = front_over(live.url, keys=[entry])
    token = f"{key}~talk-1"
    with (
        anthropic.Anthropic(base_url=front.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError, match="Authorization: Bearer"),
    ):
        stranger.messages.create(**HELLO)
    for known in (
        anthropic.Anthropic(base_url=front.url, api_key=token, max_retries=0),
        anthropic.Anthropic(base_url=front.url, auth_token=token, max_retries=0),
    ):
        with known, pytest.raises(anthropic.NotFoundError):
            known.messages.create(**HELLO)
    assert {(call.session, call.client) for call in front.started()} == {("talk-1", "writer")}
    assert all(key.encode() not in record.value for record in front.records())


Engine = tuple[list[bytes], list[str | None], str]
"""What it sends, the keys that it was sent, and where it is."""
Over = Callable[..., Fronted]

BEGIN = {"type": "message_start", "message": {"role": "assistant", "content": []}}
WORD = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi "}}
STOP = {"type": "message_stop"}


def named(said: Json) -> bytes:
    return f"event: {said['type']}\ndata: {json.dumps(said)}\n\n".encode()


@pytest.fixture
def engine() -> Iterator[Engine]:
    """One whose streams are the pieces that it is given."""
    pieces: list[bytes] = []
    keys: list[str | None] = []

    async def messages(request: Request) -> StreamingResponse:
        keys.append(request.headers.get("authorization") or request.headers.get("x-api-key"))

        async def sent() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return StreamingResponse(sent(), media_type="text/event-stream")

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "tiny", "owned_by": "somebody"}]})

    app = Starlette(
        routes=[Route(MESSAGES, messages, methods=["POST"]), Route("/v1/models", models)]
    )
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(http.serve()))
    thread.start()
    while not http.started:
        time.sleep(0.005)
    try:
        yield pieces, keys, f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join()


@pytest.fixture
def over_engine(engine: Engine, tmp_path: Path) -> Iterator[Over]:
    with ExitStack() as stack:

        def make(**options: object) -> Fronted:
            made = fronting(tmp_path, [engine[2]], proven=False, **options)  # type: ignore[arg-type]
            return stack.enter_context(made)

        yield make


def test_the_call_is_in_the_log_before_the_stream_ends(engine: Engine, over_engine: Over) -> None:
    front = over_engine()
    engine[0].extend(named(one) for one in (BEGIN, WORD, WORD, STOP))
    with httpx2.stream("POST", f"{front.url}{MESSAGES}", json=HELLO | {"stream": True}) as answer:
        got = b""
        for data in answer.iter_raw():
            got += data
            if named(STOP) in got:
                (ended,) = front.ended()
    assert got == b"".join(engine[0])
    assert ended.outcome == "completed"
    assert ended.content is not None
    assert ended.content.messages[0].text == "Hi Hi "


def test_a_stream_that_is_cut_off_ends_with_an_error_and_without_its_last_event(
    engine: Engine, over_engine: Over
) -> None:
    front = over_engine()
    engine[0].extend(named(one) for one in (BEGIN, WORD))
    answer = post(front.url, MESSAGES, **HELLO, stream=True).content
    sent = b"".join(engine[0])
    assert answer.startswith(sent + b'event: error\ndata: {"type":"error","error":')
    assert b"event: message_stop" not in answer
    (ended,) = front.ended()
    assert ended.outcome == "failed"
    assert "without message_stop" in (ended.error or "")


def test_an_error_in_a_stream_is_passed_on_and_recorded(engine: Engine, over_engine: Over) -> None:
    front = over_engine()
    error = {"type": "error", "error": {"type": "internal_error", "message": "it broke"}}
    engine[0].extend(named(one) for one in (BEGIN, WORD, error))
    assert post(front.url, MESSAGES, **HELLO, stream=True).content == b"".join(engine[0])
    (ended,) = front.ended()
    assert (ended.outcome, ended.error) == ("failed", "it broke")


def test_with_a_disk_that_refuses_nobody_reads_a_last_event_in_vain(
    engine: Engine, over_engine: Over
) -> None:
    front = over_engine(capture="best_effort")
    engine[0].extend(named(one) for one in (BEGIN, WORD, STOP))
    front.log.close()
    with anthropic.Anthropic(base_url=front.url, api_key="none", max_retries=0) as client:
        raw = client.messages.with_raw_response.create(**HELLO, stream=True)
        assert raw.headers["x-kintsugi-recorded"] == "no"
        assert [event.type for event in raw.parse()][-1] == "message_stop"
