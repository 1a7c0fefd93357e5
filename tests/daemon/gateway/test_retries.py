"""A call that is sent again under its idempotency key: one answer, one CallEnded."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from events.rollouts import CallEnded, CallStarted
from events.sqlite.receipts import MAX_RECEIPT_BYTES
from producers.gateway.capture.idempotency import IdempotentRequest, receipt
from producers.gateway.http.wire import ModelRequest
from producers.gateway.privacy.keys import ClientKey, hash_key, mint_key
from producers.gateway.privacy.redaction import RedactedRequest, Redaction
from producers.gateway.privacy.rules import own
from tests.daemon.engine.conftest import Live, Recite
from tests.daemon.gateway.conftest import Front, Fronted
from tests.daemon.gateway.program import Program, read_log, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
SHORT: dict[str, Any] = {"messages": HELLO, "max_tokens": 24, "ignore_eos": True}


def send(url: str, body: Any, path: str = CHAT, **headers: str) -> httpx2.Response:
    """As whoever sends a call with a key; without a seed, so that no two answers are equal."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("idempotency-key", "key-1")
    return httpx2.post(f"{url}{path}", json=body, headers=named, timeout=120)


def replayed(answer: httpx2.Response) -> bool:
    return answer.headers.get("x-kintsugi-replayed") == "yes"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, SHORT),
        (CHAT, SHORT | {"n": 3, "logprobs": True, "top_logprobs": 2}),
        (CHAT, SHORT | {"return_token_ids": True}),
        (CHAT, SHORT | {"stream": True}),
        (CHAT, SHORT | {"stream": True, "n": 2, "stream_options": {"include_usage": True}}),
        (TEXT, {"prompt": ["Hello", "Rosa"], "max_tokens": 24, "logprobs": 2}),
        (TEXT, {"prompt": [5, 6, 7], "max_tokens": 24, "stream": True}),
    ],
)
def test_the_answer_is_given_again_byte_by_byte_and_nothing_is_appended(
    front: Fronted, path: str, body: Any
) -> None:
    first = send(front.url, body, path)
    records = len(front.records())
    again = send(front.url, body, path)
    assert (first.status_code, again.status_code) == (200, 200)
    assert (replayed(first), replayed(again)) == (False, True)
    assert again.content == first.content
    for name in ("x-kintsugi-call", "x-kintsugi-session", "x-kintsugi-adapter", "content-type"):
        assert again.headers[name] == first.headers[name]
    assert again.headers["x-kintsugi-recorded"] == "yes"
    assert len(front.records()) == records == 2


def test_the_order_of_fields_makes_no_other_request(front: Fronted) -> None:
    first = send(front.url, SHORT)
    again = send(front.url, dict(reversed(SHORT.items())))
    assert replayed(again)
    assert again.content == first.content


def test_another_request_under_the_same_key_is_refused(front: Fronted) -> None:
    assert send(front.url, SHORT).status_code == 200
    others: list[Any] = [SHORT | {"max_tokens": 5}, SHORT | {"stream": True}, {"messages": []}]
    for other in others:
        refused = send(front.url, other)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            422,
            "idempotency_key_reused",
        )
    assert len(front.records()) == 2


def test_a_key_counts_for_its_client_and_its_user(live: Live, front_over: Front) -> None:
    one, two = mint_key(), mint_key()
    keys = [ClientKey(n, hash_key(k), frozenset(("call",))) for n, k in (("a", one), ("b", two))]
    front = front_over(live.url, keys=keys)
    calls = [
        send(front.url, SHORT, authorization=f"Bearer {key}", x_kintsugi_user=user)
        for key in (one, two)
        for user in ("ana", "rosa")
    ]
    assert not any(map(replayed, calls))
    assert len({call.headers["x-kintsugi-call"] for call in calls}) == 4
    assert replayed(send(front.url, SHORT, authorization=f"Bearer {two}", x_kintsugi_user="rosa"))


@pytest.mark.parametrize("stream", [False, True])
def test_sent_again_while_it_is_answered_it_waits_and_gets_the_same(
    front: Fronted, stream: bool
) -> None:
    body = SHORT | {"max_tokens": 100, "stream": stream}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: send(front.url, body), range(4)))
    assert sum(map(replayed, answers)) == 3
    assert len({answer.content for answer in answers}) == 1
    assert len(front.ended()) == 1


def test_while_it_is_answered_another_request_is_refused(front: Fronted) -> None:
    long = SHORT | {"max_tokens": 4000, "stream": True}
    headers = {"idempotency-key": "key-1"}
    with httpx2.stream("POST", f"{front.url}{CHAT}", json=long, headers=headers) as response:
        pieces = response.iter_raw()
        next(pieces)
        assert send(front.url, SHORT).status_code == 422


def test_one_that_waits_too_long_is_told_to_come_back(live: Live, front_over: Front) -> None:
    front = front_over(live.url, timeout_seconds=2.0)
    slow = SHORT | {"max_tokens": 8000}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: send(front.url, slow), range(2)))
    # The first has used up its time, and the second what it would wait or ask for.
    assert {answer.status_code for answer in answers} <= {504, 409}
    assert 504 in {answer.status_code for answer in answers}
    for answer in answers:
        assert answer.status_code != 409 or answer.headers["retry-after"] == "5"


def test_a_call_that_failed_or_was_given_up_is_asked_again_in_its_session(
    front: Fronted, live: Live
) -> None:
    headers = {"idempotency-key": "key-1"}
    long = SHORT | {"max_tokens": 400, "stream": True}
    with httpx2.stream("POST", f"{front.url}{CHAT}", json=long, headers=headers) as response:
        next(response.iter_raw())
    assert live.idle()
    assert front.wait_for(lambda: len(front.ended()) == 1)
    again = send(front.url, long)
    assert (again.status_code, replayed(again)) == (200, False)
    assert again.text.endswith("data: [DONE]\n\n")
    assert replayed(send(front.url, long))
    assert sorted(ended.outcome for ended in front.ended()) == ["aborted", "completed"]
    assert len({started.session for started in front.started()}) == 1
    assert len({started.call for started in front.started()}) == 2
    wrong = {"messages": HELLO, "max_tokens": "many"}
    for _ in range(2):
        assert send(front.url, wrong, idempotency_key="key-2").status_code == 400
    assert len(front.ended()) == 4


def test_a_redacted_answer_cannot_be_given_again(recite: Recite, front_over: Front) -> None:
    front = front_over(recite("abc").url, redaction=Redaction([own("letters", "abc")]))
    assert "abc" in send(front.url, {"messages": HELLO}).text
    refused = send(front.url, {"messages": HELLO})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "answer_not_kept")
    assert "redaction rules matched: letters" in refused.json()["error"]["message"]
    assert len(front.ended()) == 1


def test_where_the_log_cannot_be_asked_a_key_is_refused(live: Live, front_over: Front) -> None:
    front = front_over(live.url)
    front.log.close()
    refused = send(front.url, SHORT)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "idempotency key" in refused.json()["error"]["message"]


def test_an_answer_that_is_too_large_is_not_kept_but_known() -> None:
    keyed = IdempotentRequest.of("key", RedactedRequest(ModelRequest("chat", {}), None))
    body = b"".join(hash_key(f"{n}").encode() for n in range(MAX_RECEIPT_BYTES // 16))
    small = receipt(keyed, {"x-kintsugi-call": "c"}, body)
    assert len(small.value) < 1000


# Over a restart


def of(kind: type, home: Path) -> list[Any]:
    return [data for data in read_log(home) if isinstance(data, kind)]


def wait_for(true: Callable[[], bool]) -> None:
    while not true():
        threading.Event().wait(0.01)


def proven(program: Program) -> None:
    """Answers for an engine that was asked for proof."""
    wait_for(lambda: httpx2.get(f"{program.url}/readyz").status_code == 200)


def send_and_never_read(program: Program, body: Any) -> threading.Thread:
    """A client that is gone when the answer comes."""

    def run() -> None:
        with pytest.raises(httpx2.TransportError):
            send(program.url, body)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.processes
@pytest.mark.faults
@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.long), True])
def test_killed_before_it_could_say_what_it_had_recorded_it_says_it_afterwards(
    live: Live, tmp_path: Path, stream: bool
) -> None:
    home, body = tmp_path / "home", SHORT | {"stream": stream}
    with running(home, [f"{live.url}/v1"]) as program:
        proven(program)
        with program.connect() as client:
            client.sendall(_request(program, body))
            wait_for(lambda: len(of(CallEnded, home)) == 1)
            # Whatever was sent of the answer is lost with the connection.
            program.process.kill()
    recorded = read_log(home)
    with running(home, [f"{live.url}/v1"]) as program:
        again = send(program.url, body)
        assert (again.status_code, replayed(again)) == (200, True)
        assert again.headers["x-kintsugi-call"] == of(CallEnded, home)[0].call
        said = of(CallEnded, home)[0].content.messages[0].text
        assert stream or again.json()["choices"][0]["message"]["content"] == said
    assert read_log(home) == recorded


@pytest.mark.processes
@pytest.mark.faults
def test_killed_before_it_had_an_answer_it_asks_again(live: Live, tmp_path: Path) -> None:
    home, body = tmp_path / "home", SHORT | {"max_tokens": 300}
    with running(home, [f"{live.url}/v1"]) as program:
        proven(program)
        client = send_and_never_read(program, body)
        wait_for(lambda: len(of(CallStarted, home)) == 1)
        program.process.kill()
        client.join()
    with running(home, [f"{live.url}/v1"]) as program:
        again = send(program.url, body)
        assert (again.status_code, replayed(again)) == (200, False)
        assert replayed(send(program.url, body))
    (ended,) = of(CallEnded, home)
    assert ended.outcome == "completed"
    assert {started.session for started in of(CallStarted, home)} == {ended.session}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.faults
def test_an_unnamed_conversation_goes_on_after_a_kill(live: Live, tmp_path: Path) -> None:
    home = tmp_path / "home"
    said: list[Any] = [{"role": "system", "content": "Be brief."}]
    sessions: list[str] = []
    for turn in range(2):
        with running(home, [f"{live.url}/v1"]) as program:
            proven(program)
            said.append({"role": "user", "content": f"Turn {turn}"})
            answer = httpx2.post(f"{program.url}{CHAT}", json={"messages": said, "max_tokens": 8})
            assert answer.headers["x-kintsugi-recorded"] == "yes"
            sessions.append(answer.headers["x-kintsugi-session"])
            said.append(answer.json()["choices"][0]["message"])
            program.process.kill()
    assert len(set(sessions)) == 1
    started = sorted(of(CallStarted, home), key=lambda one: one.call)
    assert [one.attribution for one in started] == ["none", "prefix"]
    assert [one.parent for one in started] == [None, started[0].call]
    assert [one.parent_messages for one in started] == [0, 3]
    assert [len(one.content.messages) for one in started] == [2, 1]


def _request(program: Program, body: Any) -> bytes:
    """As bytes, so that nobody reads what comes back."""
    sent = httpx2.Request("POST", f"{program.url}{CHAT}", json=body)
    sent.headers["idempotency-key"] = "key-1"
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items())
    return f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + sent.read()
