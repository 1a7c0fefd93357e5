"""Engines whose answers are none that HTTP has, and what clients are told of engines at all."""

import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.gateway.conftest import Front, Fronted, fronting
from tests.daemon.gateway.test_troubles import unused_url

Json = dict[str, Any]
HELLO: Json = {"max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
CALLS: dict[str, Json] = {
    "/v1/chat/completions": HELLO,
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": HELLO,
}
CARDS = json.dumps({"data": [{"id": "one", "object": "model", "owned_by": "x"}]}).encode()


def http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Odd:
    """An engine that answers each POST with the same bytes, and lists one model."""

    def __init__(self) -> None:
        self.answer = http(b"{}")
        self.cards = http(CARDS)
        self.url = ""


@contextmanager
def odd_engine() -> Iterator[Odd]:
    odd = Odd()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self._read_head():
                length = re.search(rb"content-length: (\d+)", head)
                self.rfile.read(int(length[1]) if length else 0)
                self.wfile.write(odd.cards if head.startswith(b"GET") else odd.answer)
                if odd.answer.startswith(b"HTTP/1.0"):
                    return

        def _read_head(self) -> bytes:
            """Return the lines before the empty one; none at the end of the connection."""
            lines = []
            while (line := self.rfile.readline()) not in (b"", b"\r\n"):
                lines.append(line)
            return b"".join(lines)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        odd.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield odd
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def odd() -> Iterator[Odd]:
    with odd_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def front(odd: Odd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    with fronting(tmp_path_factory.mktemp("odd"), [odd.url], proven=False) as fronted:
        yield fronted


def ask(front: Fronted, path: str, stream: bool = False) -> httpx2.Response:
    return httpx2.post(f"{front.url}{path}", json=CALLS[path] | {"stream": stream}, timeout=30)


def assert_error(answer: httpx2.Response, path: str, status: int) -> None:
    """Check that an answer is an error in the shape of the path's protocol."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    if path.startswith("/v1/messages"):
        assert document["type"] == "error"
        assert document["error"].keys() == {"type", "message"}
    else:
        assert document["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", CALLS)
def test_a_status_that_http_does_not_have_is_a_bad_gateway(
    path: str, odd: Odd, front: Fronted
) -> None:
    for status in ("000", "600", "1000", "2x0"):
        odd.answer = http(b'{"choices": []}', f"{status} Odd")
        for stream in (False, True):
            assert_error(ask(front, path, stream), path, 502)
        end = front.ended()[-1]
        assert (end.outcome, end.status) == ("failed", 502)
        assert odd.url in (end.error or "")
    odd.answer = http(b'{"choices": []}')
    assert ask(front, path).status_code == 200


def test_other_requests_of_an_engine_with_such_a_status_are_bad_gateways(
    odd: Odd, front: Fronted
) -> None:
    cards, odd.answer = odd.cards, http(b"{}", "999 Odd")
    odd.cards = odd.answer
    path = "/v1/messages/count_tokens"
    assert_error(httpx2.post(f"{front.url}{path}", json=HELLO), path, 502)
    path = "/v1/models"
    assert_error(httpx2.get(f"{front.url}{path}"), path, 502)
    odd.cards = cards


@pytest.mark.parametrize("coding", ["", "identity", "Identity", "IDENTITY"])
def test_an_answer_that_is_not_encoded_is_passed_on(coding: str, odd: Odd, front: Fronted) -> None:
    encoding = b"\r\nContent-Encoding: %b\r\n\r\n" % coding.encode()
    odd.answer = http(b'{"choices": []}').replace(b"\r\n\r\n", encoding, 1)
    assert ask(front, "/v1/chat/completions").content == b'{"choices": []}'


WORDS = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize("kind", ["text/event-stream", "Text/Event-Stream; charset=utf-8"])
@pytest.mark.parametrize("end", [b"\n\n", b"\n", b"", b" \n\n", b"\n\r\n", b"\r\n\n"])
def test_a_stream_is_whole_however_its_last_event_ends(
    kind: str, end: bytes, odd: Odd, front: Fronted
) -> None:
    events = WORDS.replace(b"\n\n", b"\n\r\n") + b"data: [DONE]" + end
    odd.answer = http(events, kind=kind)
    assert ask(front, "/v1/chat/completions", stream=True).content == events
    ended = front.ended()[-1]
    assert (ended.outcome, ended.finish_reason) == ("completed", "stop")
    assert ended.content is not None
    assert [message.content for message in ended.content.messages] == ["a"]


FAULTS = {
    "cut": http(b"x" * 50)[:-20],
    "garbage": b"\x00\x01 no protocol",
    "status": http(b"{}", "999 Odd"),
    "compressed": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    "stream": http(b'data: {"choices": []}\n\n', kind="text/event-stream"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_client_reads_where_an_engine_is(fault: str, odd: Odd, front: Fronted) -> None:
    # A fault that cuts an answer off hangs up, too.
    odd.answer = FAULTS[fault].replace(b"HTTP/1.1", b"HTTP/1.0")
    for path in CALLS:
        for stream in (False, True):
            assert_hides(ask(front, path, stream), odd.url)


def test_no_client_reads_where_an_engine_would_be(tmp_path: Path) -> None:
    for url in (unused_url(), "http://engine.internal.invalid:8123"):
        folder = tmp_path / url[-4:]
        folder.mkdir()
        with fronting(folder, [url], proven=False) as front:
            for path in CALLS:
                answer = ask(front, path)
                assert_error(answer, path, 503)
                assert_hides(answer, url)
            path = "/v1/messages/count_tokens"
            for answer in (
                httpx2.get(f"{front.url}/v1/models"),
                httpx2.post(f"{front.url}{path}", json=HELLO),
            ):
                assert answer.status_code == 503
                assert_hides(answer, url)
            assert all(url in (end.error or "") for end in front.ended())


def test_no_client_reads_of_a_timeout_where_the_engine_is(front_over: Front) -> None:
    with silent() as url:
        front = front_over(url, proven=False, timeout_seconds=0.3)
        for path in CALLS:
            answer = ask(front, path)
            assert_error(answer, path, 504)
            assert_hides(answer, url)


def assert_hides(answer: httpx2.Response, url: str) -> None:
    """Check that neither the body nor a header of an answer holds a part of the engine's URL."""
    host, port = url.removeprefix("http://").split(":")
    shown = f"{answer.headers} {answer.text}".replace(f"{answer.request.url}", "")
    for secret in (host, port):
        assert secret not in shown, shown


@contextmanager
def silent() -> Iterator[str]:
    """An engine that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@given(
    status=st.integers(0, 99) | st.integers(200, 999),
    stream=st.booleans(),
    path=st.sampled_from(sorted(CALLS)),
)
@settings(max_examples=20)
def test_whatever_status_an_engine_has_each_client_gets_an_answer(
    status: int, stream: bool, path: str, odd: Odd, front: Fronted
) -> None:
    odd.answer = http(b'{"choices": []}', f"{status:03} Odd")
    answer = ask(front, path, stream)
    expected = status if 200 <= status < 600 else 502
    assert answer.status_code == expected
