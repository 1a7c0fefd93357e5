"""The record of a call: begun and ended once, its end after its start, whoever waits."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from events.blobs import BlobStore
from events.codec import decode
from events.rollouts import CallEnded, CallStarted, EventData, Outcome
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from producers.gateway.capture.answer import Capture, Captured, capturing
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.record import Answerer, Arrived, Caller, Record
from producers.gateway.capture.recorder import Recorder
from producers.gateway.capture.sessions import Attributed, Sessions
from producers.gateway.http.wire import Added, asked, encoded
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.redaction import Kept, Redaction
from producers.gateway.routing.upstreams import Served

HELLO = [{"role": "user", "content": "Hello"}]
ASKED = asked("chat", encoded({"messages": HELLO}))
ARRIVED = Arrived(
    ASKED,
    Kept(ASKED, None),
    Conversation.of(HELLO),
    Caller("shop"),
    Attributed("s", "header", None),
)
BASE = Answerer("agent", "drawn", Served("base", "base"), "http://one/v1")


class Desk:
    """A log, and what is known of calls."""

    def __init__(self, folder: Path) -> None:
        self.log = SqliteLog(folder / "log.db")
        self.sessions = Sessions()
        self.metrics = Metrics()
        self._recorder = Recorder(self.log, BlobStore(folder / "blobs"))

    def record(self) -> Record:
        return Record(self._recorder, self.sessions, self.metrics, Redaction(), ARRIVED)

    def events(self) -> list[EventData]:
        found = [
            decode(record)
            for partition in range(ROLLOUTS.partitions)
            for record in self.log.read(ROLLOUTS.name, partition, 0)
        ]
        return [event.data for event in sorted(found, key=lambda event: event.envelope.id)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.log.close()


def answer(text: str = "Hi") -> Capture:
    capture = capturing(ASKED, Added(), None)
    message = {"role": "assistant", "content": text}
    whole: dict[str, Any] = {"choices": [{"message": message, "finish_reason": "stop"}]}
    capture.whole(whole)
    return capture


def test_a_call_is_its_start_and_its_end(desk: Desk) -> None:
    async def calls() -> bool:
        record = desk.record()
        record.begin(BASE)
        record.status, record.answered_by = 200, "http://two/v1"
        return await record.end("completed", answer(), None)

    assert asyncio.run(calls())
    started, ended = desk.events()
    assert isinstance(started, CallStarted)
    assert isinstance(ended, CallEnded)
    assert (started.call, started.routed, started.upstream) == (
        ended.call, "drawn", "http://one/v1",
    )  # fmt: skip
    assert (ended.outcome, ended.status, ended.upstream) == ("completed", 200, "http://two/v1")


def test_what_was_not_begun_has_no_end(desk: Desk) -> None:
    async def calls() -> tuple[bool, bool]:
        record = desk.record()
        assert not record.begun
        return await record.end("failed", answer(), None, "refused"), await record.ended()

    assert asyncio.run(calls()) == (False, False)
    assert desk.events() == []


def test_the_first_start_and_the_first_end_count(desk: Desk) -> None:
    async def calls() -> None:
        record = desk.record()
        record.begin(BASE)
        record.begin(Answerer("agent", "fallback", Served("a", "base"), "http://two/v1"))
        ends = (record.end(outcome, answer(), None) for outcome in ("timeout", "completed"))
        await asyncio.gather(*ends)
        assert (record.settle(), record.settle()) == ("timeout", None)

    asyncio.run(calls())
    started, ended = desk.events()
    assert isinstance(started, CallStarted)
    assert isinstance(ended, CallEnded)
    assert (started.policy, ended.outcome) == ("base", "timeout")


def test_an_end_that_nobody_waits_for_any_more_is_written(desk: Desk) -> None:
    async def calls() -> bool:
        record = desk.record()
        record.begin(BASE)
        waiting = asyncio.create_task(record.end("aborted", answer(), None))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await record.ended()

    assert asyncio.run(calls())
    assert [type(one) for one in desk.events()] == [CallStarted, CallEnded]


def test_another_call_of_the_request_has_an_id_of_its_own(desk: Desk) -> None:
    async def calls() -> None:
        record = desk.record()
        record.begin(BASE)
        await record.end("failed", answer(), None, "the engine was lost")
        before, other = record.seconds, record.another()
        assert other.seconds >= before, "the request arrived once"
        other.begin(BASE)
        await other.end("completed", answer(), None)

    asyncio.run(calls())
    first, _, second, _ = desk.events()
    assert isinstance(first, CallStarted)
    assert isinstance(second, CallStarted)
    assert first.call != second.call
    assert first.session == second.session


def test_a_call_can_be_gone_on_from_once_its_end_is_settled(desk: Desk) -> None:
    async def calls() -> Record:
        record = desk.record()
        record.begin(BASE)
        await record.end("completed", answer("Hi"), None)
        return record

    record = asyncio.run(calls())
    more = Conversation.of([*HELLO, {"role": "assistant", "content": "Hi"}])
    scope = ARRIVED.caller.scope
    assert desk.sessions.attribute(None, scope, more, "new").by == "none"
    assert record.settle() == "completed"
    found = desk.sessions.attribute(None, scope, more, "new")
    assert found.session == "s"
    assert found.parent is not None
    assert found.parent.call == record.call


class Broken(Capture):
    """What a mistake in the code that takes answers comes to."""

    def captured(self) -> Captured:
        raise ZeroDivisionError


@pytest.mark.parametrize("outcome", ["completed", "aborted"])
def test_an_answer_that_cannot_be_taken_still_ends_its_call(desk: Desk, outcome: Outcome) -> None:
    async def calls() -> None:
        record = desk.record()
        record.begin(BASE)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await record.end(outcome, Broken(ASKED, Added(), None), None)
        assert record.settle() == "failed"

    asyncio.run(calls())
    started, ended = desk.events()
    assert isinstance(started, CallStarted)
    assert isinstance(ended, CallEnded)
    assert (ended.call, ended.outcome, ended.trainable) == (started.call, "failed", False)
    assert ended.error == "the gateway failed: ZeroDivisionError"


def test_a_log_that_refuses_is_said_and_not_raised(desk: Desk) -> None:
    async def calls() -> tuple[bool, bool]:
        record = desk.record()
        desk.log.close()
        record.begin(BASE)
        return await record.started(), await record.end("completed", answer(), None)

    assert asyncio.run(calls()) == (False, False)
