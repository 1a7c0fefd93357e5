"""A call that would be too much work is refused, and one of good faith is served, however large.

How long others wait meanwhile, and what memory it takes, `python -m ops.fuzz.work` measures.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ops.processes import find_ports
from tests.daemon.gateway.conftest import Front, Fronted, fronting, post
from tests.daemon.gateway.recording_upstream import recording_upstream

Json = dict[str, Any]
HELLO: Json = {"role": "user", "content": "Hi"}
PART: Json = {"type": "text", "text": "x"}
PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
MANY_LISTS = b"[" + b"[]," * 1_000_000 + b"[]]"


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Fronted]:
    with recording_upstream() as engine, fronting(tmp_path, [engine.url[:-3]], proven=False) as it:
        yield it


@pytest.fixture(scope="module")
def flood() -> Iterator[str]:
    """An engine that answers with as much as it is told."""
    (port,) = find_ports(1)
    process = subprocess.Popen([sys.executable, "-m", "ops.fuzz.flood", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        while not _answers(url):
            assert process.poll() is None
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/v1/models").status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"],
)
def test_what_holds_too_much_is_refused_in_the_protocols_shape(path: str, front: Fronted) -> None:
    body = b'{"messages": [], "prompt": "x", "metadata": ' + MANY_LISTS + b"}"
    refused = httpx2.post(f"{front.url}{path}", content=body, timeout=60)
    assert refused.status_code == 400
    assert (refused.json().get("type") == "error") == ("messages" in path)
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "more than 100,000 objects and lists" in error["message"]
    assert "send less" in error["message"]
    assert front.records() == []
    metrics = httpx2.get(f"{front.url}/metrics").text
    assert 'kintsugi_capture_rejected_total{status="400"} 1.0' in metrics


def test_a_large_agent_of_good_faith_is_served_and_recorded(front: Fronted) -> None:
    noise = '",[]{}:\\' * (2 << 20)
    turns = [HELLO, {"role": "assistant", "content": "x"}] * 1_000
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [{"role": "system", "content": noise}, *turns]
    body = json.dumps({"messages": messages, "tools": [tool] * 128})
    assert len(body) > 20 << 20
    headers = {"x-kintsugi-session": "s", "idempotency-key": "k"}
    answer = httpx2.post(
        f"{front.url}/v1/chat/completions", content=body, headers=headers, timeout=60
    )
    assert (answer.status_code, answer.headers["x-kintsugi-recorded"]) == (200, "yes")
    (started,) = front.started()
    assert started.session == "s"
    parts = post(front.url, messages=[{"role": "user", "content": [PART] * 2_000}])
    assert parts.headers["x-kintsugi-recorded"] == "yes"


def test_a_prompt_nested_as_none_is_goes_to_the_engine(front: Fronted) -> None:
    deep: Any = [1]
    for _ in range(400):
        deep = [deep]
    assert post(front.url, "/v1/completions", prompt=deep).status_code == 200


def test_an_answer_that_holds_too_much_is_refused(flood: str, front_over: Front) -> None:
    front = front_over(flood, proven=False)
    answer = post(front.url, user="too_many", messages=[HELLO])
    assert answer.status_code == 502
    message = answer.json()["error"]["message"]
    assert "too long: it holds more than 400,000 objects and lists; ask for fewer" in message
    (ended,) = front.ended()
    assert (ended.outcome, ended.status) == ("failed", 502)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("stream_too_many", "holds more than 400,000 objects and lists"),
        ("stream_lines", "more than 10,000 lines"),
        ("stream_endless", "more than 33,554,432 bytes"),
    ],
)
def test_an_event_that_holds_too_much_ends_its_stream(
    name: str, why: str, flood: str, front_over: Front
) -> None:
    front = front_over(flood, proven=False)
    answer = post(front.url, user=name, messages=[HELLO], stream=True)
    assert "[DONE]" not in answer.text
    assert why in answer.text[-1000:]
    assert [ended.outcome for ended in front.ended()] == ["failed"]


def test_of_an_answer_with_very_many_calls_some_are_recorded(flood: str, front_over: Front) -> None:
    front = front_over(flood, proven=False)
    answer = post(front.url, user="calls", messages=[HELLO])
    assert len(answer.json()["choices"][0]["message"]["tool_calls"]) > 10_000
    (ended,) = front.ended()
    assert ended.content is not None
    assert len(ended.content.messages[0].tool_calls) == 1_000
    assert ended.trainable is False


def test_feedback_holds_no_more_than_it_can_say(front: Fronted) -> None:
    body = b'{"call": "c", "tags": [' + b'"",' * 300_000 + b'""]}'
    refused = httpx2.post(f"{front.url}/v1/feedback", content=body)
    assert refused.status_code == 400
    assert "more than 1,000 values" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"\x0a\x00" * 1_000_000, PROTOBUF),
        (b'{"resourceSpans": ' + MANY_LISTS + b"}", JSON),
        (
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{}] * 20_001}]}]}).encode(),
            JSON,
        ),
    ],
)
def test_spans_hold_no_more_than_is_taken(
    body: bytes, headers: dict[str, str], front: Fronted
) -> None:
    refused = httpx2.post(f"{front.url}/v1/traces", content=body, headers=headers, timeout=60)
    assert refused.status_code == 413
    assert b"send smaller batches" in refused.content
