"""The record of a call: begun and ended once, its end after its start, whoever waits."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from events.blobs import BlobStore
from events.codec import decode
from events.rollouts import CallEnded, CallStarted, EventData, Outcome
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from producers.gateway.call_record import Record, ServedBy
from producers.gateway.capture.answer import AnswerRecord, Capture, make_capture
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.recorder import Recorder
from producers.gateway.capture.sessions import CallAttribution, Sessions
from producers.gateway.http.wire import (
    EMBEDDED,
    ExtraFields,
    ModelRequest,
    encode_json,
    parse_request,
)
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.redaction import RedactedRequest, Redaction
from producers.gateway.request_context import Caller, RequestContext
from producers.gateway.routing.upstreams import EngineModel

HELLO = [{"role": "user", "content": "Hello"}]
REQUEST = parse_request("chat", encode_json({"messages": HELLO}))
CONTEXT = RequestContext(
    REQUEST, RedactedRequest(REQUEST, None), Conversation.of(HELLO), Caller("shop")
)
ATTRIBUTED = CallAttribution("s", "header", None)
BASE = ServedBy("agent", "drawn", EngineModel("base", "base"), "http://one/v1")


class Journal:
    """A log, and what is known of calls."""

    def __init__(self, folder: Path) -> None:
        self.log = SqliteLog(folder / "log.db")
        self.sessions = Sessions()
        self.metrics = Metrics()
        self._recorder = Recorder(self.log, BlobStore(folder / "blobs"))

    def record(self, request: ModelRequest = REQUEST) -> Record:
        context = replace(CONTEXT, request=request, redacted=RedactedRequest(request, None))
        return Record(self._recorder, self.sessions, self.metrics, Redaction(), context, ATTRIBUTED)

    def events(self) -> list[EventData]:
        found = [
            decode(record)
            for partition in range(ROLLOUTS.partitions)
            for record in self.log.read(ROLLOUTS.name, partition, 0)
        ]
        return [event.data for event in sorted(found, key=lambda event: event.envelope.id)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path)
    yield opened
    opened.log.close()


def answer(text: str = "Hi") -> Capture:
    capture = make_capture(REQUEST, ExtraFields(), None)
    message = {"role": "assistant", "content": text}
    whole: dict[str, Any] = {"choices": [{"message": message, "finish_reason": "stop"}]}
    capture.whole(whole)
    return capture


def test_what_was_not_begun_has_no_end(journal: Journal) -> None:
    async def calls() -> tuple[bool, bool]:
        record = journal.record()
        assert not record.has_start
        return await record.end("failed", answer(), None, "refused"), await record.wait_for_end()

    assert asyncio.run(calls()) == (False, False)
    assert journal.events() == []


def test_the_first_start_and_the_first_end_count(journal: Journal) -> None:
    async def calls() -> None:
        record = journal.record()
        record.begin(BASE)
        record.begin(ServedBy("agent", "fallback", EngineModel("a", "base"), "http://two/v1"))
        ends = (record.end(outcome, answer(), None) for outcome in ("timeout", "completed"))
        await asyncio.gather(*ends)
        assert (record.settle(), record.settle()) == ("timeout", None)

    asyncio.run(calls())
    started, ended = journal.events()
    assert isinstance(started, CallStarted)
    assert isinstance(ended, CallEnded)
    assert (started.policy, ended.outcome) == ("base", "timeout")


def test_an_end_that_nobody_waits_for_any_more_is_written(journal: Journal) -> None:
    async def calls() -> bool:
        record = journal.record()
        record.begin(BASE)
        waiting = asyncio.create_task(record.end("aborted", answer(), None))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await record.wait_for_end()

    assert asyncio.run(calls())
    assert [type(one) for one in journal.events()] == [CallStarted, CallEnded]


def test_another_call_of_the_request_has_an_id_of_its_own(journal: Journal) -> None:
    async def calls() -> None:
        record = journal.record()
        record.begin(BASE)
        await record.end("failed", answer(), None, "the engine was lost")
        before, other = record.seconds, record.make_next()
        assert other.seconds >= before, "the request arrived once"
        other.begin(BASE)
        await other.end("completed", answer(), None)

    asyncio.run(calls())
    first, _, second, _ = journal.events()
    assert isinstance(first, CallStarted)
    assert isinstance(second, CallStarted)
    assert first.call != second.call
    assert first.session == second.session


def test_a_call_can_be_gone_on_from_once_its_end_is_settled(journal: Journal) -> None:
    async def calls() -> Record:
        record = journal.record()
        record.begin(BASE)
        await record.end("completed", answer("Hi"), None)
        return record

    record = asyncio.run(calls())
    more = Conversation.of([*HELLO, {"role": "assistant", "content": "Hi"}])
    scope = CONTEXT.caller.scope
    assert journal.sessions.attribute(None, scope, more, "new").by == "none"
    assert record.settle() == "completed"
    found = journal.sessions.attribute(None, scope, more, "new")
    assert found.session == "s"
    assert found.parent is not None
    assert found.parent.call == record.call


class Broken(Capture):
    """What a mistake in the code that takes answers comes to."""

    def build_record(self) -> AnswerRecord:
        raise ZeroDivisionError


@pytest.mark.parametrize("outcome", ["completed", "aborted"])
def test_an_answer_that_cannot_be_taken_still_ends_its_call(
    journal: Journal, outcome: Outcome
) -> None:
    async def calls() -> None:
        record = journal.record()
        record.begin(BASE)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await record.end(outcome, Broken(REQUEST, ExtraFields(), None), None)
        assert record.settle() == "failed"

    asyncio.run(calls())
    started, ended = journal.events()
    assert isinstance(started, CallStarted)
    assert isinstance(ended, CallEnded)
    assert (ended.call, ended.outcome, ended.trainable) == (started.call, "failed", False)
    assert ended.error == "the gateway failed: ZeroDivisionError"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, None),
        ({"reasoning_effort": "low", "temperature": 0.5}, None),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools.strict",
        ),
        ({"a_field_of_2028": 1}, "unknown_field"),
    ],
)
def test_a_call_under_a_rule_keeps_no_tokens_and_is_counted_by_its_field(
    journal: Journal, fields: dict[str, Any], field: str | None
) -> None:
    request = parse_request("chat", encode_json({"messages": HELLO, **fields}))
    capture = make_capture(request, ExtraFields(token_ids=True, logprobs=True), EMBEDDED)
    choice = {
        "index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop",
        "token_ids": [7], "logprobs": {"content": [{"token": "Hi", "logprob": -0.5}]},
    }  # fmt: skip
    capture.whole({"choices": [choice], "prompt_token_ids": [4, 5]})

    async def calls() -> None:
        record = journal.record(request)
        record.begin(BASE)
        assert await record.end("completed", capture, None)
        record.settle()

    asyncio.run(calls())
    started, ended = journal.events()
    assert isinstance(started, CallStarted)
    assert isinstance(ended, CallEnded)
    assert ended.trainable is (field is None), ended.untrainable_because
    assert fields.keys() - {"tools"} <= started.sampling.keys()
    name = "kintsugi_gateway_untrainable_requests_total"
    assert journal.metrics.value(name, field=field or "response_format") == (field is not None)
