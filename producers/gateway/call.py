"""One call from its request to its last byte (a request -> an engine's answer, and its record).

    asked      one engine after the other until one can be reached, each for whom the route says
    answered   pieces go to the client as they come, without what it did not ask for
    ended      CallEnded is safe before the last byte, or before the event that ends a stream

What the log holds of it is kept by producers/gateway/capture/record.py. Guarantee: whatever
happens to a call that was begun (an answer, an error, a timeout, a client that hangs up, an engine
that dies) becomes its CallEnded; only a gateway that is killed leaves a CallStarted alone. A
client that hangs up cancels the engine. Where the disk refuses, the client is told: with
`best_effort` the call is answered and says it was not recorded, with `required` it is not answered.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from events.rollouts import Outcome
from producers.gateway.capture.answer import Capture, capturing
from producers.gateway.capture.idempotency import MAX_BODY_BYTES
from producers.gateway.capture.record import Answerer, Arrived, Record, Sent
from producers.gateway.capture.recorder import Recorder
from producers.gateway.capture.sessions import Sessions
from producers.gateway.http import sse
from producers.gateway.http.connections import AnswerTooLong, HttpClient, Reply
from producers.gateway.http.wire import PATHS, Added, Asked, Refused, encoded, renamed
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.routing.routing import Attempt, Routing, Use
from producers.gateway.routing.upstreams import Served, Upstream, UpstreamLost

CaptureMode = Literal["best_effort", "required"]

_NOT_RECORDED: Final = b": x-kintsugi-recorded: no\n\n"
_PASSED_ON: Final = ("content-type", "retry-after", "x-request-id")
"""Headers of an engine that the client gets."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What every call of a gateway uses."""

    recorder: Recorder
    sessions: Sessions
    client: HttpClient
    metrics: Metrics
    routing: Routing
    capture: CaptureMode
    timeout_seconds: float
    redaction: Redaction

    def record(self, arrived: Arrived) -> Record:
        """The record of a call that begins now."""
        return Record(self.recorder, self.sessions, self.metrics, self.redaction, arrived)


@dataclass(frozen=True, slots=True)
class _Asking:
    """An engine, what it is asked, and what takes its answer."""

    attempt: Attempt
    asked: Asked
    """For whom the attempt says."""
    added: Added
    answer: Capture
    name: str | None
    """That the answer is to name as its model; None: as the engine says."""

    @property
    def upstream(self) -> Upstream:
        return self.attempt.upstream

    def body(self) -> bytes:
        """As the engine gets it."""
        return self.asked.forwarded(self.added)


class Call(Response):
    """A call; as a response, it answers itself."""

    def __init__(
        self,
        desk: Desk,
        upstreams: Sequence[Upstream],
        arrived: Arrived,
        shadow: Callable[[str], None] | None = None,
    ) -> None:
        """`upstreams` are in the order of the session; `shadow` has the adapter that it is given
        answer as well."""
        # Not super().__init__: status, headers and body are the engine's.
        self.background = None
        self._desk = desk
        self._upstreams = upstreams
        self._arrived = arrived
        self._asked = arrived.asked
        self._shadow = shadow
        self._record = desk.record(arrived)
        self._asking = self._asking_of(Attempt(upstreams[0], None))
        self._served: Served | None = None
        """What was asked to answer, as its events and its headers name it; None before that."""
        self._asked_at = 0.0
        """Seconds after the request's arrival, when an engine was asked last."""
        self._engine_seconds: float | None = None
        """From then until it had said all; None until it has."""
        self._headers_sent = False
        self._complete = False
        self._delivered = False
        """Whether the last byte went to the client."""
        self._continued = False
        """Whether a whole answer was recorded and delivered: the conversation went on."""
        self._silent = True
        """Whether the client has nothing to read yet."""
        self._passed: list[tuple[str, str]] = []
        self._sent = bytearray()
        """Of a stream that may be sent again."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client goes away first."""
        self._use = self._began_use()
        work = asyncio.create_task(self._answered(send))
        gone = asyncio.create_task(_gone(receive))
        stopped: Send | None = None
        with self._desk.metrics.in_flight(), self._use:
            try:
                await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # The server gives up on us: what was begun is recorded, and the client told.
                stopped = send
            finally:
                for task in (work, gone):
                    task.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                await asyncio.shield(self._closed(work, stopped))

    def _began_use(self) -> Use:
        # Without messages and without a name, nothing can go on from it.
        attributed = self._arrived.attributed
        goes_on = attributed.by != "none" or len(self._arrived.conversation) > 0
        return self._desk.routing.begin(self._asked.model, attributed.session, goes_on)

    def _spoke(self) -> None:
        """The client has something to read."""
        if self._silent:
            self._silent = False
            self._desk.metrics.first_byte(self._asked.endpoint, self._record.seconds)

    async def _closed(self, work: "asyncio.Task[None]", stopped: Send | None) -> None:
        (failure,) = await asyncio.gather(work, return_exceptions=True)
        bug = failure if isinstance(failure, Exception) else None
        try:
            if not await self._record.ended():
                await self._broken_off(bug, stopped)
        except Exception as error:  # the call has its end, and what follows must be done
            bug = bug or error
        self._settled()
        if not self._continued:
            self._desk.sessions.settle(self._arrived.attributed.claim, completed=False)
        if bug is not None:
            raise bug

    async def _broken_off(self, bug: Exception | None, stopped: Send | None) -> None:
        if bug is not None:
            await self._end("failed", f"the gateway failed: {type(bug).__name__}")
        elif stopped is not None:
            await self._failed(stopped, _STOPPED, "aborted")
        else:
            await self._end("aborted", "the client went away before the answer was whole")

    async def _answered(self, send: Send) -> None:
        try:
            async with asyncio.timeout(self._desk.timeout_seconds):
                await self._exchange(send)
        except TimeoutError:
            seconds = self._desk.timeout_seconds
            refused = Refused(504, f"the engine gave no whole answer in {seconds:g} seconds")
            await self._failed(send, refused, "timeout")
        except (UpstreamLost, sse.EventTooLong) as error:
            refused = Refused(503, f"the engine was lost: {error}; try again", retry_after=1)
            await self._failed(send, refused, "failed")
        except Refused as refused:
            await self._failed(send, refused, "failed")

    async def _exchange(self, send: Send) -> None:
        """Ask one engine after the other until one can be reached."""
        await self._look()
        failed: UpstreamLost | None = None
        for attempt in self._use.attempts(self._upstreams):
            await self._choose(attempt, str(failed))
            try:
                if await self._answers(send):
                    return
                failed = UpstreamLost(_lacking(attempt))
            except UpstreamLost as error:
                # Another may be asked as long as this one has said nothing.
                if self._record.status is not None:
                    raise
                failed = error
        assert failed is not None, "without an engine to ask, the route refuses"
        raise failed

    async def _look(self) -> None:
        """See what engines serve that never said so, and who has the adapter that is to answer:
        routes turn faster than one watches."""
        await asyncio.gather(*(one.learn(self._desk.client) for one in self._upstreams))
        adapter, position = self._use.choice.policy, self._desk.routing.table.position
        if adapter is not None:
            looks = (one.look_for(adapter, position, self._desk.client) for one in self._upstreams)
            await asyncio.gather(*looks)

    async def _answers(self, send: Send) -> bool:
        """Whether an engine answers; not where it has lost the adapter, or was asked for an alias
        before it said what it serves. Raises UpstreamLost."""
        upstream = self._asking.upstream
        self._asked_at = self._record.seconds
        async with upstream.request(
            self._desk.client,
            "POST",
            PATHS[self._asked.endpoint],
            self._asking.body(),
            self._desk.timeout_seconds,
        ) as response:
            if response.status_code == 404 and await self._lacks_model(self._asking.attempt):
                return False
            await self._relay(response, send)
        return True

    async def _lacks_model(self, attempt: Attempt) -> bool:
        """Whether an engine that refuses a name was asked for one that it cannot have."""
        upstream, policy = attempt.upstream, attempt.policy
        if policy is not None:
            # What it serves may be known from before it was started again.
            await upstream.look(self._desk.client)
            return policy not in upstream.served
        # A client that asked for an alias asked for no model that could be misspelt; one that named
        # none, or an empty name, was passed on as it came, and reads what the engine says.
        model = self._asking.asked.model
        return bool(self._use.choice.order) and model is not None and model not in upstream.served

    async def _choose(self, attempt: Attempt, failed: str) -> None:
        asking = self._asking_of(attempt)
        served = self._served_by(asking)
        if self._record.begun and served != self._served:
            # One call has one policy: what was begun is a call that failed, and this is another.
            await self._end("failed", failed)
            self._settled()
            self._record = self._record.another()
        if attempt.policy != self._use.choice.policy:
            self._desk.metrics.fell_back()
        self._asking, self._served = asking, served
        self._record.begin(self._answerer(served))

    def _asking_of(self, attempt: Attempt) -> _Asking:
        asked, dialect = self._asked, attempt.upstream.dialect
        added = asked.added(dialect)
        return _Asking(
            attempt,
            asked if attempt.name is None else asked.asking(attempt.name),
            added,
            capturing(asked, added, dialect),
            None if attempt.name is None else self._use.said(attempt.upstream),
        )

    def _answerer(self, served: Served) -> Answerer:
        choice, attempt = self._use.choice, self._asking.attempt
        chosen = attempt.policy == choice.policy
        return Answerer(
            choice.alias,
            choice.routed if chosen else "fallback",
            served,
            attempt.upstream.url,
            choice.shares if chosen else None,
        )

    def _served_by(self, asking: _Asking) -> Served:
        """What is asked to answer, as it is written: a name that no engine has is a client's text,
        and an alias is nobody's name."""
        upstream, name = asking.upstream, asking.asked.model
        if name is None or name in upstream.served:
            return upstream.model(name)
        if not self._use.choice.order:
            return upstream.model(self._arrived.kept.asked.model)
        base = asking.attempt.name
        return upstream.model(None) if base is None else Served(base[:128], base[:128])

    async def _relay(self, response: Reply, send: Send) -> None:
        self._record.status = response.status_code
        self._record.answered_by = self._asking.upstream.url
        self._passed = _passed_on(response)
        kind = response.headers.get("content-type", "")
        if response.status_code == 200 and kind.startswith("text/event-stream"):
            await self._stream(response, send)
        else:
            await self._whole(response, send)

    async def _whole(self, response: Reply, send: Send) -> None:
        try:
            body = await response.aread()
        except AnswerTooLong as error:
            # Asked again, it would be as long.
            raise Refused(
                502, f"the engine's answer is too long: {error}; ask for fewer tokens or stream it"
            ) from error
        self._heard()
        document = _object(body)
        if response.status_code == 200 and document is not None:
            restored = renamed(self._asking.answer.whole(document), self._asking.name)
            if restored is not document:
                body = _rewritten(body, encoded, restored)
            recorded = await self._end("completed", body=body)
        else:
            recorded = await self._end("failed", _said(document, response))
        if not recorded and self._desk.capture == "required":
            await self._refuse(send, _UNRECORDED, recorded=False)
            return
        headers = [*self._passed, ("content-length", str(len(body)))]
        await self._begin(send, response.status_code, headers, recorded)
        await self._last(send, body)

    async def _stream(self, response: Reply, send: Send) -> None:
        recorded = await self._record.started()
        if not recorded and self._desk.capture == "required":
            await self._end("failed", str(_UNRECORDED))
            await self._refuse(send, _UNRECORDED, recorded=False)
            return
        await self._begin(send, 200, self._passed, recorded)
        splitter, answer = sse.Splitter(), self._asking.answer
        async for data in response.aiter_bytes():
            for event in splitter.feed(data):
                if answer.is_last(sse.data(event)):
                    await self._finish(send, event, recorded)
                    return
                await self._pass_on(send, event)
        if answer.error is None:
            # Cut off, however politely: without a word of ours it would look whole to a client.
            cut = f"its stream ended without {answer.LAST}"
            raise UpstreamLost(f"{self._asking.upstream.url}: {cut}")
        await self._end("failed", answer.error)
        await self._last(send, splitter.rest())

    async def _pass_on(self, send: Send, event: bytes) -> None:
        payload, answer = sse.data(event), self._asking.answer
        document = _object(payload or b"")
        if payload and document is None:
            # Passed on as it came, but what was said is not known: no answer to learn from.
            answer.error = answer.error or "the engine sent an event that is no JSON"
        if document is not None:
            restored = answer.chunk(document)
            if restored is None:
                return
            restored = renamed(restored, self._asking.name)
            if restored is not document:
                event = _rewritten(event, self._asked.event, restored)
        self._keep(event)
        await send({"type": "http.response.body", "body": event, "more_body": True})
        self._spoke()

    def _keep(self, event: bytes) -> None:
        """Of a call that may be sent again, keep what was sent."""
        if self._arrived.keyed is not None and len(self._sent) <= MAX_BODY_BYTES:
            self._sent += event

    async def _finish(self, send: Send, event: bytes, promised: bool) -> None:
        """The end of a whole stream: recorded, then said."""
        self._heard()
        error = self._asking.answer.error
        self._keep(event)
        recorded = await self._end("failed" if error else "completed", error, bytes(self._sent))
        if not recorded and self._desk.capture == "required":
            # Without its last event the client knows that the call is not acknowledged.
            await self._last(send, b"")
            return
        notice = _NOT_RECORDED if promised and not recorded else b""
        await self._last(send, notice + event)

    async def _failed(self, send: Send, refused: Refused, outcome: Outcome) -> None:
        """An error of ours, as an answer or, after the first byte, as the last event."""
        if self._complete:
            return
        began = self._headers_sent
        if not began:
            self._record.status = refused.status
        recorded = await self._end(outcome, str(refused))
        if began:
            await self._last(send, self._asked.last_words(refused))
        else:
            await self._refuse(send, refused, recorded)

    async def _refuse(self, send: Send, refused: Refused, recorded: bool) -> None:
        body = encoded(refused.body(self._asked.endpoint))
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        if refused.retry_after is not None:
            headers.append(("retry-after", str(refused.retry_after)))
        await self._begin(send, refused.status, headers, recorded)
        await self._last(send, body)

    async def _begin(
        self, send: Send, status: int, headers: list[tuple[str, str]], recorded: bool
    ) -> None:
        ours = self._ours(recorded)
        raw = [(n.encode(), v.encode("latin-1", "replace")) for n, v in [*headers, *ours]]
        self._headers_sent = True
        await send({"type": "http.response.start", "status": status, "headers": raw})

    def _ours(self, recorded: bool) -> list[tuple[str, str]]:
        served = self._served or self._asking.upstream.model(self._asking.asked.model)
        return [
            ("x-kintsugi-call", self._record.call),
            ("x-kintsugi-session", self._arrived.attributed.session),
            ("x-kintsugi-adapter", _header_value(served.policy)),
            ("x-kintsugi-recorded", "yes" if recorded else "no"),
        ]

    async def _last(self, send: Send, body: bytes) -> None:
        self._complete = True
        try:
            await send({"type": "http.response.body", "body": body})
            self._delivered = True
            if body:
                self._spoke()
        finally:
            self._settled()

    async def _end(
        self, outcome: Outcome, error: str | None = None, body: bytes | None = None
    ) -> bool:
        """Record how it ended; whether the whole call is in the log. `body` is a whole answer."""
        asking, sent = self._asking, None
        if body is not None:
            sent = Sent(dict([*self._passed, *self._ours(recorded=True)]), body)
        return await self._record.end(outcome, asking.answer, asking.upstream.unproven, error, sent)

    def _heard(self) -> None:
        """The engine has said all."""
        self._engine_seconds = self._record.seconds - self._asked_at

    def _settled(self) -> None:
        """What has to be known before the next request, and need not hold up this answer."""
        shadow = self._use.choice.shadow
        if self._record.settle() != "completed":
            return
        if self._delivered:
            self._continued = True
            self._desk.sessions.settle(self._arrived.attributed.claim, completed=True)
        if self._engine_seconds is not None:
            seconds = self._record.seconds - self._engine_seconds
            self._desk.metrics.overhead(self._asked.endpoint, seconds)
        if self._shadow and shadow:
            self._shadow(shadow)


_UNRECORDED: Final = Refused(
    503, "the call cannot be recorded and capture is required; free space on the gateway's disk"
)

_STOPPED: Final = Refused(
    503, "the gateway was stopped before the answer was whole; ask again", retry_after=5
)


def _lacking(attempt: Attempt) -> str:
    """What an engine is lost for that answers, and has not what it was asked for."""
    url = attempt.upstream.url
    if attempt.policy is not None:
        return f"{url} has no {attempt.policy} any more"
    return (
        f"{url} has not said yet what it serves"
        if attempt.name is None
        else f"{url} has no {attempt.name}"
    )


def _header_value(text: str) -> str:
    """A client may ask for a model of any name."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _rewritten(
    sent: bytes, write: Callable[[dict[str, Any]], bytes], restored: dict[str, Any]
) -> bytes:
    """What an engine sent, without what we asked for; as it came where JSON cannot be written as it
    was read: with our fields, it is still what the engine says."""
    try:
        written = write(restored)
    except RecursionError:
        return sent
    # A number beyond what a float holds was read as infinite, which is no JSON.
    return sent if b"Infinity" in written and b"Infinity" not in sent else written


def _said(document: dict[str, Any] | None, response: Reply) -> str:
    """What an engine that refused says went wrong."""
    error = (document or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else f"the engine answers {response.status_code}"
    return text.encode("utf-8", "replace").decode()


def _passed_on(response: Reply) -> list[tuple[str, str]]:
    return [(name, response.headers[name]) for name in _PASSED_ON if name in response.headers]
