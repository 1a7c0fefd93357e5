"""Connections to engines, against a server that answers as a script says, byte by byte."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from producers.gateway.http.connections import (
    MAX_ANSWER_BYTES,
    AnswerTooLong,
    ExchangeFailure,
    HttpClient,
    Reply,
)

OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"content-length: 5\r\nContent-Type: text/plain\r\n\r\nhello"

Script = Callable[["Server", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Counts connections and requests; each connection is served by the script until it returns."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections = 0
        self.requests: list[bytes] = []
        self.sockets: list[int] = []
        """The file descriptors of its connections."""
        self.left = asyncio.Event()
        """The client closed a connection while it was answered."""

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.sockets.append(writer.get_extra_info("socket").fileno())
        try:
            await self._script(self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The next one."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request


def saying(*answers: bytes, close: bool = False) -> Script:
    """Answers each request of a connection with these writes; `close`: then hangs up."""

    async def script(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await server.request(reader)
            for answer in answers:
                writer.write(answer)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                return

    return script


Ask = Callable[[HttpClient, Server], Awaitable[Any]]


@pytest.fixture(autouse=True, params=[asyncio.new_event_loop, uvloop.new_event_loop])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything on both: the program runs on the second."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(main)

    monkeypatch.setattr(asyncio, "run", run)


def tried(script: Script, ask: Ask) -> tuple[Any, Server]:
    """What `ask` returns, and the server afterwards."""

    async def run() -> tuple[Any, Server]:
        async with Server(script) as server:
            async with HttpClient() as client:
                found = await ask(client, server)
            return found, server

    return asyncio.run(run())


async def read(client: HttpClient, server: Server, body: bytes | None = b"{}") -> tuple[int, bytes]:
    """Status and body of one request."""
    async with client.request("POST", server.url, "/chat", {"x": "y"}, body, 5) as reply:
        return reply.status_code, await reply.aread()


CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "close", "body"),
    [
        (WHOLE, False, b"hello"),
        (CHUNKED, False, b"hello world"),
        (OK + b"\r\nuntil the end", True, b"until the end"),
        (OK + b"content-length: 0\r\n\r\n", False, b""),
        (b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + WHOLE, False, b"hello"),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_body_is_what_was_sent_however_it_was_cut(
    answer: bytes, close: bool, body: bytes, cut: int
) -> None:
    pieces = [answer[at : at + cut] for at in range(0, len(answer), cut)]
    found, server = tried(saying(*pieces, close=close), read)
    assert found == (200, body)
    assert server.requests == [
        b"POST /v1/chat HTTP/1.1\r\nhost: " + server.url[7:-3].encode() + b"\r\naccept: */*\r\n"
        b"x: y\r\ncontent-length: 2\r\n\r\n{}"
    ]


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED])
def test_a_connection_is_used_again_after_a_whole_answer(answer: bytes) -> None:
    async def ask(client: HttpClient, server: Server) -> None:
        for _ in range(3):
            await read(client, server)

    assert tried(saying(answer), ask)[1].connections == 1


def test_a_connection_is_used_again_although_its_last_bytes_were_not_asked_for() -> None:
    async def ask(client: HttpClient, server: Server) -> None:
        for _ in range(2):
            async with client.request("POST", server.url, "/chat", {}, b"", 5) as reply:
                async for _ in reply.aiter_bytes():
                    break

    assert tried(saying(CHUNKED), ask)[1].connections == 1


@pytest.mark.parametrize(
    "answer", [OK + b"connection: close\r\n" + WHOLE[len(OK) :], b"HTTP/1.0" + WHOLE[8:]]
)
def test_an_engine_that_closes_is_connected_to_again(answer: bytes) -> None:
    async def ask(client: HttpClient, server: Server) -> None:
        await read(client, server)
        await read(client, server)

    assert tried(saying(answer, close=True), ask)[1].connections == 2


def test_whoever_leaves_an_answer_closes_its_connection() -> None:
    async def endless(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.001)

    async def ask(client: HttpClient, server: Server) -> None:
        async with client.request("POST", server.url, "/chat", {}, b"", 5) as reply:
            async for _ in reply.aiter_bytes():
                break
        await server.left.wait()

    tried(endless, ask)


def test_whoever_is_cancelled_before_an_answer_closes_its_connection() -> None:
    async def silent(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        await reader.readexactly(1)

    async def ask(client: HttpClient, server: Server) -> None:
        asking = asyncio.create_task(read(client, server))
        while not server.requests:
            await asyncio.sleep(0.001)
        asking.cancel()
        await server.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking

    tried(silent, ask)


def closing_the_first(after: int) -> Script:
    """The first connection is closed by the request after `after` answers; others answer."""

    async def script(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first = server.connections == 1
        answered = 0
        while True:
            await server.request(reader)
            if first and answered == after:
                return
            writer.write(WHOLE)
            answered += 1

    return script


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async def ask(client: HttpClient, server: Server) -> list[tuple[int, bytes]]:
        return [await read(client, server) for _ in range(2)]

    found, server = tried(closing_the_first(after=1), ask)
    assert found == [(200, b"hello")] * 2
    assert server.connections == 2


def test_a_fresh_connection_that_answers_nothing_is_not_tried_again() -> None:
    async def ask(client: HttpClient, server: Server) -> None:
        with pytest.raises(ExchangeFailure, match="the connection was closed"):
            await read(client, server)

    assert len(tried(closing_the_first(after=0), ask)[1].requests) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (OK + b"content-length: 50\r\n\r\nhello", "connection was closed"),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhel", "connection was closed"),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello", "answers no HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "answers no HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "HTTP"),
        (OK + b"content-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello", "compresses"),
        (OK + b"x: " + b"y" * 100_000, "headers are longer"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error_that_says_why(answer: bytes, why: str) -> None:
    async def ask(client: HttpClient, server: Server) -> None:
        with pytest.raises(ExchangeFailure, match=why):
            await read(client, server)

    tried(saying(answer, close=True), ask)


def test_what_came_before_an_answer_broke_is_read_first() -> None:
    async def ask(client: HttpClient, server: Server) -> bytes:
        async with client.request("POST", server.url, "/chat", {}, b"", 5) as reply:
            pieces = reply.aiter_bytes()
            found = [await anext(pieces)]
            with pytest.raises(ExchangeFailure):
                found.append(await anext(pieces))
            return b"".join(found)

    answer = OK + b"content-length: 50\r\n\r\nhello"
    assert tried(saying(answer, close=True), ask)[0] == b"hello"


def test_whoever_reads_slowly_slows_the_engine_down() -> None:
    size, sent = 200 << 20, 0

    async def fast(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal sent
        await server.request(reader)
        writer.write(OK + b"content-length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async def until_it_rests() -> int:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        return before

    async def ask(client: HttpClient, server: Server) -> tuple[int, int]:
        async with client.request("POST", server.url, "/chat", {}, b"", 5) as reply:
            return await until_it_rests(), await length(reply)

    (before, whole), _ = tried(fast, ask)
    assert before < size / 2
    assert whole == size


async def length(reply: Reply) -> int:
    return sum([len(data) async for data in reply.aiter_bytes()])


def test_nobody_there_is_an_error_that_says_so() -> None:
    async def ask() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with HttpClient() as client:
            for url in (f"http://127.0.0.1:{port}/v1", "http://nowhere.invalid/v1"):
                with pytest.raises(ExchangeFailure, match="cannot be reached"):
                    async with client.request("GET", url, "/models", {}, None, 5):
                        pass

    asyncio.run(ask())


def test_a_header_cannot_hold_another() -> None:
    async def ask(client: HttpClient, server: Server) -> None:
        with pytest.raises(ValueError, match="authorization"):
            async with client.request(
                "GET", server.url, "/models", {"authorization": "a\r\nx: y"}, None, 5
            ):
                pass

    assert tried(saying(WHOLE), ask)[1].requests == []


def _with_length(body: bytes) -> bytes:
    return OK + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def _in_chunks(body: bytes) -> bytes:
    return OK + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def _with_trailer(body: bytes) -> bytes:
    return _in_chunks(body)[:-2] + b"content-type: other\r\n\r\n"


def _after_interim(body: bytes) -> bytes:
    interim = b"HTTP/1.1 100 Continue\r\ncontent-length: 9\r\n\r\n"
    return interim + b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" + _with_length(body)


FORMS = (_with_length, _in_chunks, _with_trailer, _after_interim)
SURPLUS = (
    _with_length(b"spliced"),
    _in_chunks(b"spliced"),
    b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    OK[:9],
    b"spliced",
    b"\x00",
)
"""Bytes that may follow an answer on its connection, and belong to no request."""


def numbering(form: Callable[[bytes], bytes], surplus: bytes, cut: int) -> Script:
    """Answers each request with its number, and the first one with a surplus, in pieces of `cut`
    bytes."""

    async def script(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await server.request(reader)
            number = len(server.requests)
            answer = form(b"answer %d" % number) + (surplus if number == 1 else b"")
            for at in range(0, len(answer), cut):
                writer.write(answer[at : at + cut])
                await writer.drain()
                await asyncio.sleep(0)

    return script


async def read_twice(client: HttpClient, server: Server) -> list[tuple[int, bytes]]:
    return [await read(client, server) for _ in range(2)]


@pytest.mark.parametrize("surplus", SURPLUS)
@pytest.mark.parametrize("form", FORMS)
def test_bytes_behind_an_answer_in_one_segment_belong_to_no_answer(
    form: Callable[[bytes], bytes], surplus: bytes
) -> None:
    found, server = tried(numbering(form, surplus, cut=10_000), read_twice)
    assert found == [(200, b"answer 1"), (200, b"answer 2")]
    assert server.connections == 2


@given(form=st.sampled_from(FORMS), surplus=st.sampled_from(SURPLUS) | st.binary(min_size=1))
def test_whatever_follows_an_answer_is_in_neither_this_nor_the_next(
    form: Callable[[bytes], bytes], surplus: bytes
) -> None:
    found, _ = tried(numbering(form, surplus, cut=10_000), read_twice)
    assert found == [(200, b"answer 1"), (200, b"answer 2")]


def test_an_answer_without_a_body_ends_with_its_head() -> None:
    async def ask(client: HttpClient, server: Server) -> list[tuple[int, bytes]]:
        return [await read(client, server) for _ in range(2)]

    for status in (b"204 No Content", b"304 Not Modified"):
        answer = b"HTTP/1.1 " + status + b"\r\ncontent-length: 7\r\n\r\nspliced"
        found, server = tried(saying(answer), ask)
        assert found == [(int(status[:3]), b"")] * 2
        assert server.connections == 2


def test_an_answer_that_nobody_asked_for_is_not_the_next_calls() -> None:
    async def ask(client: HttpClient, server: Server) -> list[tuple[int, bytes]]:
        first = await read(client, server)
        # It lies in the kernel at the moment at which the connection is to be used again.
        with socket.socket(fileno=os.dup(server.sockets[0])) as connection:
            connection.send(_with_length(b"spliced"))
        return [first, await read(client, server)]

    found, server = tried(numbering(_with_length, b"", cut=10_000), ask)
    assert found == [(200, b"answer 1"), (200, b"answer 2")]
    assert server.connections == 2


def test_a_body_without_end_is_read_to_a_bound() -> None:
    sent = 0

    async def script(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal sent
        await server.request(reader)
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        while sent < 100 * MAX_ANSWER_BYTES:
            writer.write(b"%x\r\n%s\r\n" % (1 << 20, bytes(1 << 20)))
            await writer.drain()
            sent += 1 << 20

    async def ask(client: HttpClient, server: Server) -> None:
        with pytest.raises(AnswerTooLong, match="longer than 1,000,000 bytes"):
            async with client.request("POST", server.url, "/chat", {}, b"{}", 5) as reply:
                await reply.aread(1_000_000)
        await asyncio.wait_for(server.left.wait(), 10)

    tried(script, ask)
    assert sent < MAX_ANSWER_BYTES


def test_what_follows_a_body_is_bounded_and_changes_no_header() -> None:
    chunk = OK + b"content-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"

    async def headers(client: HttpClient, server: Server) -> tuple[bytes, dict[str, str]]:
        async with client.request("POST", server.url, "/chat", {}, b"{}", 5) as reply:
            return await reply.aread(), dict(reply.headers)

    mild = saying(chunk + b"content-type: text/event-stream\r\nmore: y\r\n\r\n")
    (body, named), _ = tried(mild, headers)
    assert (body, named["content-type"]) == (b"x", "text/plain")
    assert "more" not in named

    async def lost(client: HttpClient, server: Server) -> None:
        with pytest.raises(ExchangeFailure, match="headers are longer"):
            await read(client, server)

    for trailer in (b"a: " + bytes([98]) * 100_000, b"a: b\r\n" * 100_000):
        pieces = [trailer[at : at + 16_384] for at in range(0, len(trailer), 16_384)]
        tried(saying(chunk, *pieces), lost)
