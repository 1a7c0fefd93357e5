"""Requests that nobody would send: chosen ones, described ones and random ones. Long runs:
`python -m ops.fuzz --requests 100000 --examples 2000`."""

import json
import math
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.fuzz.__main__ import run
from ops.fuzz.requests import requests
from ops.fuzz.schema import schemathesis
from ops.fuzz.sockets import send, send_all
from ops.fuzz.stage import stage
from ops.isolated import InstallError
from producers.gateway.http.wire import Refused, parse_request
from producers.gateway.openapi import DOCUMENT
from tests.conftest import missing
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.conftest import Front, Fronted

HELLO = [{"role": "user", "content": "Hello"}]
HEADS = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2'


def test_the_description_lists_exactly_the_routes(front: Fronted) -> None:
    routes = {
        (route.path.replace("{ended:path}", "{ended}"), method.lower())
        for route in front.gateway.routes
        for method in (route.methods or set()) - {"HEAD"}
        if not route.path.startswith("/r/")
    }
    described = {(path, method) for path, of in DOCUMENT["paths"].items() for method in of}
    assert described == routes
    below = {
        (
            route.path.removeprefix("/r/{given:path}").replace("{ended:path}", "{ended}"),
            method.lower(),
        )
        for route in front.gateway.routes
        for method in (route.methods or set()) - {"HEAD"}
        if route.path.startswith("/r/")
    }
    assert below == {(path, method) for path, method in routes if path.startswith("/v1/")}
    assert httpx2.get(f"{front.url}/openapi.json").json() == DOCUMENT


@pytest.mark.parametrize(
    "text",
    [
        HEADS + ', "x": ' + "[" * 100_000,
        HEADS + ', "x": ' + '{"a":' * 100_000,
        HEADS + ', "temperature": NaN}',
        HEADS + ', "temperature": 1e999}',
        HEADS + ', "seed": ' + "9" * 5000 + "}",
        HEADS + ', "seed": -1' + "0" * 309 + "}",
        HEADS + ', "x": [{"y": ' + "9" * 309 + "}]}",
        HEADS,
        HEADS + "}}",
        "",
        "null",
        '"' + HEADS + '"',
    ],
)
def test_what_is_no_json_of_ours_is_refused_with_the_reason(front: Fronted, text: str) -> None:
    for headers in ({}, {"idempotency-key": "k"}):
        answer = httpx2.post(
            f"{front.url}/v1/chat/completions", content=text.encode(), headers=headers, timeout=60
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert len(answer.json()["error"]["message"]) > 20
    assert front.records() == []


@pytest.mark.parametrize("depth", [60, 100, 130, 900, 990])
def test_however_deep_it_is_somebody_answers(front: Fronted, depth: int) -> None:
    for field in ("x", "metadata", "stop", "response_format", "logit_bias"):
        text = HEADS + f', "{field}": ' + "[" * depth + "]" * depth + "}"
        for headers in ({}, {"idempotency-key": f"{field} {depth}".replace(" ", "-")}):
            url = f"{front.url}/v1/chat/completions"
            answer = httpx2.post(url, content=text, headers=headers, timeout=60)
            assert answer.status_code in (200, 400, 422), answer.text
            if answer.status_code == 200:
                assert answer.headers["x-kintsugi-recorded"] == "yes"


@pytest.mark.parametrize("text", ["\x00", "\ud83d", "\x7f\x1b[2J𝕏\uffff\u202e"])
def test_odd_texts_are_answered_and_recorded(front: Fronted, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2, "user": text}
    for stream in (False, True):
        sent = json.dumps(body | {"stream": stream})
        answer = httpx2.post(f"{front.url}/v1/chat/completions", content=sent, timeout=60)
        assert answer.status_code in (200, 400), answer.text
        assert answer.headers["x-kintsugi-recorded"] == "yes"
    said = json.dumps({"session": "s", "comment": text, "tags": [text], "score": 1})
    assert httpx2.post(f"{front.url}/v1/feedback", content=said).status_code in (200, 400)
    assert len(front.ended()) == 2


def test_the_last_of_two_values_counts_here_and_there(live: Live, front_over: Front) -> None:
    front = front_over(live.url)
    text = (
        '{"max_tokens": 9, "messages": [], "messages": ' + json.dumps(HELLO) + ', "max_tokens": 2}'
    )
    answer = httpx2.post(f"{front.url}/v1/chat/completions", content=text, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] <= 2
    (started,) = front.started()
    assert started.sampling["max_tokens"] == 2
    assert started.content is not None
    assert [message.text for message in started.content.messages] == ["Hello"]


@pytest.mark.parametrize("session", ["", "a b", "\x00", "\ud83d", "x" * 257, 7, None])
def test_a_session_that_no_table_could_hold_takes_no_feedback(front: Fronted, session: Any) -> None:
    sent = json.dumps({"session": session, "score": 1})
    answer = httpx2.post(f"{front.url}/v1/feedback", content=sent)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    assert front.records() == []


@given(digits=st.integers(290, 330), first=st.sampled_from("19"), sign=st.sampled_from(["", "-"]))
def test_an_integer_is_taken_exactly_where_it_is_finite_as_a_double(
    digits: int, first: str, sign: str
) -> None:
    integer = sign + first * digits
    body = f'{{"seed": {integer}}}'.encode()
    if math.isfinite(float(integer)):
        assert parse_request("chat", body).document == {"seed": int(integer)}
    else:
        with pytest.raises(Refused, match="too large a number"):
            parse_request("chat", body)


@pytest.mark.parametrize("score", ["1e999", "NaN", "9" * 401, "1e308", '"1"', "true"])
def test_a_score_is_a_number(front: Fronted, score: str) -> None:
    sent = f'{{"session": "s", "score": {score}}}'
    answer = httpx2.post(f"{front.url}/v1/feedback", content=sent)
    assert answer.status_code == (200 if score == "1e308" else 400), answer.text


@pytest.mark.long
@pytest.mark.processes
def test_random_requests_break_nothing(tmp_path: Path) -> None:
    found = run(600, 0, 6, tmp_path)
    assert found["wrong"] == []
    assert found["statuses"][200] > 20, "hardly anything got past the first line of defence"
    assert sum(found["statuses"].values()) == 600


@pytest.mark.processes
def test_described_requests_break_nothing(tmp_path: Path) -> None:
    with stage(tmp_path) as fuzzed:
        try:
            report = schemathesis(f"http://127.0.0.1:{fuzzed.gateway.port}", 3, 6, tmp_path)
        except InstallError as error:
            missing(str(error))
        assert report.passed, report.text
        # All but the description itself.
        assert f"{len(DOCUMENT['paths']) - 1} selected" in report.text
        assert fuzzed.problems() == []


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that answers whatever it is sent with these bytes; its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 1\r\n\r\nx", "status 503"),
        (b"HTTP/1.1 404 No\r\ncontent-length: 9\r\n\r\nNot Found", "without a reason"),
        (b'HTTP/1.1 400 No\r\ncontent-length: 26\r\n\r\n{"error": {"message": ""}}', "empty"),
        (b"nonsense\r\n\r\n", "no HTTP"),
    ],
)
def test_the_fuzzer_sees_what_is_wrong(answer: bytes, why: str) -> None:
    with answering(answer) as port:
        _, said = send(port, b"POST /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert said is not None
        assert why in said
        found = send_all(port, islice(requests(0, 3), 3))
        assert found.wrong
