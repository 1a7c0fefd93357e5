"""Whatever goes wrong with a call becomes its event, and nobody is told what is not so."""

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from events.rollouts import CallEnded, FeedbackReceived, SessionEnded
from events.sqlite.log import SqliteLog
from producers.gateway.capture.answer import AnswerRecord, Capture
from producers.gateway.privacy.keys import ClientKey, hash_key, mint_key
from tests.daemon.engine.conftest import Live, Recite
from tests.daemon.gateway.conftest import Front, Fronted, fronting, post
from tests.daemon.gateway.recording_upstream import recording_upstream

HELLO = [{"role": "user", "content": "Hello"}]
LONG: dict[str, Any] = {"messages": HELLO, "max_tokens": 8000, "ignore_eos": True, "stream": True}
CHAT = "/v1/chat/completions"


@contextmanager
def streaming(url: str, **body: Any) -> Iterator[tuple[httpx2.Response, Iterator[bytes]]]:
    """A long stream whose first piece was read."""
    with httpx2.stream("POST", f"{url}{CHAT}", json=LONG | body, timeout=60) as response:
        pieces = response.iter_raw()
        next(pieces)
        yield response, pieces


def unused_url() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_who_hangs_up_stops_the_engine_and_is_recorded(front: Fronted, live: Live) -> None:
    with streaming(front.url) as (_, pieces):
        for _ in range(5):
            next(pieces)
    assert live.idle()
    assert front.wait_for(lambda: len(front.ended()) == 1)
    (ended,) = front.ended()
    assert (ended.outcome, ended.trainable) == ("aborted", False)
    assert ended.completion_tokens is not None
    assert 0 < ended.completion_tokens < 8000
    assert ended.content is not None
    assert ended.content.messages[0].text
    in_flight = "kintsugi_gateway_calls_in_flight"
    assert front.wait_for(lambda: front.gateway.metrics.value(in_flight) == 0)


def test_who_hangs_up_before_the_answer_stops_the_engine(front: Fronted, live: Live) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{front.url}{CHAT}", json=LONG | {"stream": False}, timeout=2)
    assert live.idle()
    assert front.wait_for(lambda: len(front.ended()) == 1)
    assert front.ended()[0].outcome == "aborted"


def test_an_engine_that_takes_too_long_is_a_timeout(live: Live, front_over: Front) -> None:
    front = front_over(live.url, timeout_seconds=1.0)
    whole = post(front.url, **LONG | {"stream": False})
    assert (whole.status_code, whole.json()["error"]["type"]) == (504, "timeout")
    assert whole.headers["x-kintsugi-recorded"] == "yes"
    streamed = post(front.url, **LONG)
    *_, last = [line for line in streamed.text.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "timeout"
    assert [ended.outcome for ended in front.ended()] == ["timeout", "timeout"]
    assert live.idle()


def test_an_engine_that_cannot_be_reached_is_said_and_recorded(tmp_path: Path) -> None:
    with fronting(tmp_path, [unused_url()], proven=False) as front:
        answer = post(front.url, messages=HELLO)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert httpx2.get(f"{front.url}/readyz").status_code == 503
        assert httpx2.get(f"{front.url}/livez").status_code == 200
        (ended,) = front.ended()
        assert (ended.outcome, ended.status, ended.upstream) == ("failed", 503, None)


def test_an_engine_that_came_up_later_is_asked_for_its_own_name_at_once(tmp_path: Path) -> None:
    url = unused_url()
    with fronting(tmp_path, [url], proven=False) as front:
        assert post(front.url, model="agent", messages=HELLO).status_code == 503
        with recording_upstream(int(url.rsplit(":", 1)[1])) as engine:
            assert post(front.url, model="agent", messages=HELLO).status_code == 200
            assert b'"model":"one"' in engine.received
            assert b'"model":"agent"' not in engine.received


def test_a_disk_that_refuses_is_told(live: Live, front_over: Front) -> None:
    front = front_over(live.url)
    front.log.close()
    answer = post(front.url, messages=HELLO, max_tokens=2)
    assert (answer.status_code, answer.headers["x-kintsugi-recorded"]) == (200, "no")
    streamed = post(front.url, messages=HELLO, max_tokens=2, stream=True)
    assert streamed.headers["x-kintsugi-recorded"] == "no"
    assert streamed.text.endswith("data: [DONE]\n\n")
    # Counted after the last byte, which this thread may read before.
    dropped = "kintsugi_capture_dropped_total"
    assert front.wait_for(lambda: front.gateway.metrics.value(dropped) == 2)


def test_a_disk_that_refuses_in_a_stream_is_told_before_its_end(
    live: Live, front_over: Front
) -> None:
    front = front_over(live.url)
    with streaming(front.url, max_tokens=200) as (response, pieces):
        assert response.headers["x-kintsugi-recorded"] == "yes"
        front.log.close()
        rest = b"".join(pieces)
    assert rest.endswith(b": x-kintsugi-recorded: no\n\ndata: [DONE]\n\n")


def test_where_recording_is_required_a_disk_that_refuses_is_no_answer(
    live: Live, front_over: Front
) -> None:
    front = front_over(live.url, capture="required")
    with streaming(front.url, max_tokens=200) as (_, pieces):
        front.log.close()
        rest = b"".join(pieces)
    assert b"[DONE]" not in rest
    for stream in (False, True):
        answer = post(front.url, messages=HELLO, max_tokens=2, stream=stream)
        assert (answer.status_code, answer.headers["x-kintsugi-recorded"]) == (503, "no")
        assert "recorded" in answer.json()["error"]["message"]


def test_what_the_log_cannot_hold_is_served_and_marked(front: Fronted) -> None:
    half = '{"messages": [{"role": "user", "content": "\\ud83d"}], "max_tokens": 2}'
    assert httpx2.post(f"{front.url}{CHAT}", content=half).status_code in (200, 400)
    deep: Any = "x"
    for _ in range(150):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    answer = post(front.url, messages=HELLO, tools=[tool], max_tokens=2)
    assert answer.headers["x-kintsugi-recorded"] == "yes"
    assert len(front.ended()) == 2


def test_keys_open_what_they_are_for(live: Live, front_over: Front) -> None:
    call, judge = mint_key(), mint_key()
    front = front_over(
        live.url,
        keys=[
            ClientKey("agent", hash_key(call), frozenset(("call",))),
            ClientKey("grader", hash_key(judge), frozenset(("feedback", "trusted", "call"))),
        ],
    )

    def ask(key: str | None, path: str = CHAT, /, **given: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers |= given.pop("headers", {})
        return httpx2.post(f"{front.url}{path}", json=given, headers=headers, timeout=60)

    assert ask(None, messages=HELLO).status_code == 401
    assert ask("wrong", messages=HELLO).json()["error"]["code"] == "invalid_api_key"
    answer = ask(f"{call}~talk", messages=HELLO, max_tokens=2)
    assert (answer.status_code, answer.headers["x-kintsugi-session"]) == (200, "talk")
    said = {"call": answer.headers["x-kintsugi-call"], "success": True}
    assert ask(call, "/v1/feedback", **said).status_code == 403
    assert ask(judge, "/v1/feedback", **said).status_code == 200
    named: dict[str, Any] = {
        "headers": {"x-kintsugi-task": "shop/lend/1"},
        "messages": HELLO,
        "max_tokens": 2,
    }
    assert ask(call, **named).status_code == 403
    assert ask(judge, **named).status_code == 200
    feedback = [e.data for e in front.events() if isinstance(e.data, FeedbackReceived)]
    assert [(one.session, one.verified) for one in feedback] == [("talk", True)]
    assert [call.client for call in front.started()] == ["agent", "grader"]
    stored = b"".join(record.value + repr(record.headers).encode() for record in front.records())
    assert call.encode() not in stored
    assert sha256(call.encode()).hexdigest().encode() not in stored


def test_feedback_is_late_once_and_joined(live: Live, tmp_path: Path) -> None:
    with fronting(tmp_path, [live.url]) as front:
        calls = [
            post(front.url, messages=HELLO, max_tokens=2).headers["x-kintsugi-call"]
            for _ in range(5)
        ]
    with fronting(tmp_path, [live.url], log=SqliteLog(tmp_path / "log.db")) as front:
        sessions = {one.call: one.session for one in front.started()}
        for call in calls:
            for _ in range(2):
                said = post(
                    front.url, "/v1/feedback", call=call, score=0.5, idempotency_key=f"k {call}"
                )
                assert said.status_code == 200, said.text
                assert said.json()["session"] == sessions[call]
        assert post(front.url, "/v1/feedback", call="none", score=1).status_code == 404
        assert post(front.url, "/v1/feedback", score=1).status_code == 400
        found = [e for e in front.events() if isinstance(e.data, FeedbackReceived)]
        assert len(found) == len(calls)


def test_feedback_sent_again_is_one_event_at_once_and_after_a_restart(
    live: Live, tmp_path: Path
) -> None:
    said = {"session": "s", "success": True, "idempotency_key": "k"}
    for _ in range(2):
        with (
            fronting(tmp_path, [live.url], log=SqliteLog(tmp_path / "log.db")) as front,
            ThreadPoolExecutor(8) as pool,
        ):
            posts = [pool.submit(post, front.url, "/v1/feedback", **said) for _ in range(8)]
            assert {one.result().status_code for one in posts} == {200}
            types = [type(event.data) for event in front.events()]
    assert types == [FeedbackReceived, SessionEnded]


def test_a_session_is_ended_by_its_outcome_or_by_asking(front: Fronted) -> None:
    post(front.url, "/v1/feedback", session="one", success=False, comment="wrong size")
    assert post(front.url, "/v1/sessions/two/end").json() == {"session": "two", "ended": True}
    ends = [e.data for e in front.events() if isinstance(e.data, SessionEnded)]
    assert {(end.session, end.because) for end in ends} == {("one", "feedback"), ("two", "asked")}


@given(name=st.text([chr(code) for code in range(0x21, 0x7F)], min_size=1, max_size=256))
@example(name="a/b")
@example(name="a%2Fb")
@example(name="/")
@example(name="//x//")
@example(name="a/end")
@example(name="/v1/sessions/b/end")
@example(name=".")
@example(name="..")
@example(name="a?b#c;d")
@settings(max_examples=15)
def test_every_session_that_is_accepted_can_be_ended(front_with_names: Fronted, name: str) -> None:
    front, encoded = front_with_names, quote(name, safe="")
    body = {"messages": HELLO, "max_tokens": 1}
    headers = {"x-kintsugi-session": name}
    for prefix, named in (("", headers), (f"/r/session/{encoded}/user/a%2Fb", {})):
        answer = send_as_written(front.url, f"{prefix}{CHAT}", body, named)
        assert (answer.status, answer.getheader("x-kintsugi-session")) == (200, name)
        ended = send_as_written(front.url, f"{prefix}/v1/sessions/{encoded}/end", {}, {})
        assert (ended.status, json.loads(ended.read())) == (200, {"session": name, "ended": True})
    ends = [e.data.session for e in front.events() if isinstance(e.data, SessionEnded)]
    assert ends[-1] == name


@pytest.fixture(scope="module")
def front_with_names(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    with fronting(tmp_path_factory.mktemp("names"), [live.url]) as fronted:
        yield fronted


def send_as_written(
    url: str, path: str, body: dict[str, Any], headers: dict[str, str]
) -> http.client.HTTPResponse:
    """POST to exactly this path: other clients resolve dots in it."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", path, json.dumps(body), headers)
    return connection.getresponse()


def test_an_engine_that_breaks_in_a_stream_is_recorded(recite: Recite, front_over: Front) -> None:
    live = recite("abc")
    front = front_over(live.url)
    with streaming(front.url, max_tokens=100) as (_, pieces):
        live.engine.cache.keys.clear()
        rest = b"".join(pieces)
    assert b"the engine failed" in rest
    assert b"[DONE]" not in rest
    (ended,) = front.ended()
    assert isinstance(ended, CallEnded)
    assert ended.outcome == "failed"
    assert "the engine failed" in (ended.error or "")


@pytest.mark.parametrize("stream", [False, True])
def test_tools_without_a_readable_name_are_served_and_recorded(
    stream: bool, tmp_path: Path
) -> None:
    tools = [{"type": "function", "function": {"name": ["x"]}}]
    with recording_upstream() as engine:
        url = engine.url.removesuffix("/v1")
        with fronting(tmp_path, [url], proven=False) as front:
            answer = post(front.url, messages=HELLO, tools=tools, stream=stream)
            assert (answer.status_code, b"Hi" in answer.content) == (200, True)
            (ended,) = front.ended()
            assert (len(front.started()), ended.outcome) == (1, "completed")


class Broken(Capture):
    """What a mistake in the code that takes answers comes to."""

    def build_record(self) -> AnswerRecord:
        raise ZeroDivisionError


@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_in_the_capture_ends_the_call_as_failed(
    stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.gateway.call.make_capture", Broken)
    with recording_upstream() as engine:
        url = engine.url.removesuffix("/v1")
        with fronting(tmp_path, [url], proven=False) as front:
            try:
                answer = post(front.url, messages=HELLO, stream=stream)
                assert answer.status_code == 500
            except httpx2.RemoteProtocolError:
                assert stream, "a stream that began is cut off"
            (ended,) = front.ended()
            assert [one.call for one in front.started()] == [ended.call]
            assert (ended.outcome, ended.content) == ("failed", None)
            assert ended.error == "the gateway failed: ZeroDivisionError"
            in_flight = "kintsugi_gateway_calls_in_flight"
            assert front.wait_for(lambda: front.gateway.metrics.value(in_flight) == 0)
