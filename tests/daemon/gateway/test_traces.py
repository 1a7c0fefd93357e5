"""Calls that were made elsewhere arrive as spans and become rollouts."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from daemon.config.settings import load
from daemon.core.app import App
from producers.gateway.privacy.keys import ClientKey, hash_key
from producers.gateway.traces import BECAUSE
from producers.spans import conventions as genai
from producers.spans.trace_context import parse_traceparent
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.gateway.conftest import Fronted, fronting
from tests.daemon.gateway.spans import ASKED, SAID, Agent

__all__ = ["clean", "home", "kintsugi"]

PATH = "/v1/traces"
NOBODY = "http://127.0.0.1:9"
"""No engine: whoever sends spans asks another."""


@pytest.fixture
def front(home: Path) -> Iterator[Fronted]:
    """A gateway over the home."""
    home.mkdir()
    with fronting(home, [NOBODY], proven=False) as found:
        yield found


def spans_in(front: Fronted) -> dict[str, float]:
    """How many spans came to what."""
    results = ("recorded", "repeated", "ignored", "rejected")
    name = "kintsugi_gateway_spans_total"
    return {one: front.gateway.metrics.value(name, result=one) for one in results}


def test_the_spans_of_a_conversation_become_a_rollout(
    front: Fronted, home: Path, kintsugi: Kintsugi
) -> None:
    agent = Agent()
    agent.talk("talk-1")
    assert agent.sent(front.url, gzip=True)
    first, second = sorted(front.started(), key=lambda one: one.parent_messages)
    assert (first.session, first.alias, first.base, first.policy) == (
        "talk-1", "agent", "gpt-x-2026", "gpt-x-2026",
    )  # fmt: skip
    assert first.sampling["temperature"] == 0.2
    # The second call stores what it adds: the result of the tool.
    assert (second.parent, second.parent_messages, second.parent_tools) == (first.call, 3, True)
    assert second.content is not None
    assert [message.role for message in second.content.messages] == ["tool"]
    one, other = sorted(front.ended(), key=lambda one: one.call != first.call)
    assert (one.outcome, one.finish_reason, one.prompt_tokens) == ("completed", "tool_calls", 30)
    assert (one.trainable, one.untrainable_because, other.completion_tokens) == (False, BECAUSE, 7)
    contexts = {parse_traceparent(event.envelope.traceparent) for event in front.events()}
    assert {(c.trace, c.span) for c in contexts if c} == {
        (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")
        for span in agent.spans
        if span.context and span.name.startswith("chat")
    }
    httpx2.post(f"{front.url}/v1/sessions/talk-1/end").raise_for_status()
    assert kintsugi("work", "--once").json["rollouts"] == 1
    (listed,) = kintsugi("rollouts", "ls", "--json").json
    shown = kintsugi("rollouts", "show", listed["rollout"], "--json").json
    assert [message["role"] for message in shown["messages"]] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert shown["messages"][2]["tool_calls"][0]["name"] == "get_user"
    assert shown["messages"][3]["content"] == '{"name": "Rosa"}'
    assert (shown["success"], shown["policy"], shown["source"]) == (None, "gpt-x-2026", "live")
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_a_span_that_is_sent_again_changes_nothing(front: Fronted) -> None:
    agent = Agent()
    agent.talk("talk-2")
    assert agent.sent(front.url)
    before = front.records()
    assert agent.sent(front.url)
    assert front.records() == before
    assert spans_in(front) == {"recorded": 2, "repeated": 2, "ignored": 4, "rejected": 0}


def test_another_gateway_records_it_under_the_same_ids(front: Fronted, tmp_path: Path) -> None:
    agent = Agent()
    agent.talk("talk-3")
    (tmp_path / "other").mkdir()
    with fronting(tmp_path / "other", [NOBODY], proven=False) as other:
        assert agent.sent(front.url)
        assert agent.sent(other.url)
        assert [one.call for one in other.started()] == [one.call for one in front.started()]
        ids = [{event.envelope.id for event in one.events()} for one in (front, other)]
    assert ids[0] == ids[1]


def test_after_a_restart_it_is_still_known(home: Path) -> None:
    agent = Agent()
    agent.talk("talk-4")
    home.mkdir()
    with fronting(home, [NOBODY], proven=False) as front:
        assert agent.sent(front.url)
        before = front.records()
    with fronting(home, [NOBODY], proven=False) as front:
        assert agent.sent(front.url)
        assert front.records() == before


def test_a_span_without_content_is_rejected_and_the_sender_told(front: Fronted) -> None:
    agent = Agent()
    with agent.chat(**{genai.CONVERSATION: "talk-5", genai.INPUT_TOKENS: 3}):
        pass
    agent.says("talk-5", [ASKED], SAID, "stop")
    assert agent.sent(front.url)
    assert len(front.started()) == 1
    assert spans_in(front) == {"recorded": 1, "repeated": 0, "ignored": 0, "rejected": 1}
    answer = httpx2.post(f"{front.url}{PATH}", content=as_json(agent), headers=JSON)
    partial = answer.json()["partialSuccess"]
    assert (answer.status_code, partial["rejectedSpans"]) == (200, "1")
    assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in partial["errorMessage"]


def test_a_call_that_failed_is_recorded_as_one(front: Fronted) -> None:
    agent = Agent()
    agent.fails("talk-6")
    assert agent.sent(front.url)
    (ended,) = front.ended()
    assert (ended.outcome, ended.error) == ("failed", "the provider is overloaded")


def test_without_a_conversation_the_trace_is_the_session(front: Fronted) -> None:
    agent = Agent()
    with agent.chat(**{genai.INPUT: json.dumps([ASKED]), genai.OUTPUT: json.dumps([SAID])}):
        pass
    assert agent.sent(front.url)
    (started,) = front.started()
    (span,) = agent.spans
    assert span.context is not None
    assert started.session == f"trace-{span.context.trace_id:032x}"


def test_content_may_lie_in_an_event_as_structures(front: Fronted) -> None:
    agent = Agent()
    with agent.chat(**{genai.CONVERSATION: "talk-7"}) as span:
        told = {genai.INPUT: json.dumps([ASKED]), genai.OUTPUT: json.dumps([SAID])}
        span.add_event(genai.DETAILS, told)
    document = json.loads(as_json(agent))
    (event,) = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["events"]
    event["attributes"] = [
        {"key": genai.INPUT, "value": any_value([ASKED])},
        {"key": genai.OUTPUT, "value": any_value([SAID])},
    ]
    answer = httpx2.post(f"{front.url}{PATH}", json=document)
    assert (answer.status_code, answer.json()) == (200, {})
    (ended,) = front.ended()
    assert ended.content is not None
    assert ended.content.messages[0].content == "U12 is Rosa."


def test_bad_input_is_refused_in_the_form_that_was_sent(front: Fronted) -> None:
    bodies: list[tuple[bytes, dict[str, str], int]] = [
        (b"\xff\xff\xff", PROTOBUF, 400),
        (b"{", JSON, 400),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 5}]}]}]}', JSON, 400),
        (b'{"resourceSpans": 7}', JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b"x", {"content-type": "text/plain"}, 415),
        (b"no gzip", {**PROTOBUF, "content-encoding": "gzip"}, 400),
        (gzip.compress(b"x" * 100)[:-6], {**PROTOBUF, "content-encoding": "gzip"}, 400),
        (b"x", {**PROTOBUF, "content-encoding": "br"}, 415),
    ]
    for body, headers, status in bodies:
        answer = httpx2.post(f"{front.url}{PATH}", content=body, headers=headers)
        assert answer.status_code == status, (body[:20], answer.text)
        if headers is JSON:
            assert answer.json()["message"], body[:20]
    assert not front.records()


def test_a_few_bytes_cannot_become_many(front: Fronted, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    with fronting(tmp_path / "small", [NOBODY], proven=False, max_body_bytes=10_000) as small:
        bomb = gzip.compress(b"\x00" * 1_000_000)
        assert len(bomb) < 10_000
        headers = {**PROTOBUF, "content-encoding": "gzip"}
        answer = httpx2.post(f"{small.url}{PATH}", content=bomb, headers=headers)
        assert answer.status_code == 413
        assert httpx2.post(f"{small.url}{PATH}", content=bytes(20_000), headers=PROTOBUF).is_error


def test_only_a_key_may_send_spans(home: Path) -> None:
    keys = [
        ClientKey("a", hash_key("kg-a"), frozenset(("call",))),
        ClientKey("f", hash_key("kg-f"), frozenset(("feedback",))),
    ]
    home.mkdir()
    agent = Agent()
    agent.talk("talk-8")
    with fronting(home, [NOBODY], keys, proven=False) as front:
        assert not agent.sent(front.url)
        assert not agent.sent(front.url, "kg-f")
        assert not front.records()
        assert agent.sent(front.url, "kg-a")
        assert {one.client for one in front.started()} == {"a"}


def test_what_a_rule_matches_is_not_written(home: Path) -> None:
    home.mkdir()
    agent = Agent()
    mail = {"role": "user", "parts": [{"type": "text", "content": "I am rosa@example.org"}]}
    agent.says("talk-9", [mail], SAID, "stop")
    (home / "kintsugi.toml").write_text('redaction.rules = ["email"]\n')
    with App(load(home=home)) as app:
        from daemon.roles.gateway import redaction

        rules = redaction(app)
    with fronting(home, [NOBODY], proven=False, redaction=rules) as front:
        assert agent.sent(front.url)
        (started,), (ended,) = front.started(), front.ended()
    assert started.content is not None
    assert started.content.messages[1].content == "I am [redacted:email]"
    assert ended.untrainable_because == "redaction rules matched: email"


def test_an_exporter_keeps_what_the_log_does_not_take(front: Fronted) -> None:
    agent = Agent()
    agent.talk("talk-10")
    front.log.close()
    answer = httpx2.post(f"{front.url}{PATH}", content=as_json(agent), headers=JSON)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)


def test_a_protobuf_answer_says_what_was_rejected(front: Fronted) -> None:
    agent = Agent()
    with agent.chat():
        pass
    body = message(agent).SerializeToString()
    answer = httpx2.post(f"{front.url}{PATH}", content=body, headers=PROTOBUF)
    found = ExportTraceServiceResponse.FromString(answer.content)
    assert found.partial_success.rejected_spans == 1
    assert genai.INPUT in found.partial_success.error_message


JSON = {"content-type": "application/json"}
PROTOBUF = {"content-type": "application/x-protobuf"}


def message(agent: Agent) -> ExportTraceServiceRequest:
    """Its spans, as the SDK encodes them."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    return encode_spans(agent.spans)


def as_json(agent: Agent) -> bytes:
    """The same as JSON, whose ids are hex."""
    import base64

    from google.protobuf.json_format import MessageToDict

    document = MessageToDict(message(agent))
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    return json.dumps(document).encode()


def any_value(value: Any) -> dict[str, Any]:
    """A value as OTLP's JSON has it."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(one) for one in value]}}
    if isinstance(value, dict):
        pairs = [{"key": name, "value": any_value(one)} for name, one in value.items()]
        return {"kvlistValue": {"values": pairs}}
    return {"stringValue": value}
