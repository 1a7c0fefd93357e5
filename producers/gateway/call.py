"""One call from its request to its last byte, recorded on the way (request -> two events).

    started    CallStarted is appended while the engine works
    answered   pieces go to the client as they come, without what it did not ask for
    ended      CallEnded is safe before the last byte, or before the event that ends a stream

Guarantee: whatever happens to a call that was started (an answer, an error, a timeout, a client
that hangs up, an engine that dies) becomes its CallEnded; only a gateway that is killed leaves a
CallStarted alone. A client that hangs up cancels the engine. Where the disk refuses, the client is
told: with `best_effort` the call is answered and says it was not recorded, with `required` it is
not answered.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from starlette.responses import Response
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from events.codec import Arrays
from events.envelope import minted_id
from events.errors import KintsugiError
from events.messages import Message
from events.rollouts import (
    CallEnded,
    CallEndedContent,
    CallStarted,
    CallStartedContent,
    EventData,
    Outcome,
    Purpose,
)
from events.sqlite_receipts import Receipt
from producers.gateway import sse
from producers.gateway.capture import capturing
from producers.gateway.connections import HttpClient, Reply
from producers.gateway.memory import as_sent
from producers.gateway.metrics import Metrics
from producers.gateway.recorder import About, Recorder
from producers.gateway.redaction import Kept, Redaction, unhurried
from producers.gateway.retries import MAX_BODY_BYTES, Keyed, receipt
from producers.gateway.sessions import Attributed, Conversation, Sessions
from producers.gateway.sessions import Scope as SessionScope
from producers.gateway.upstreams import Served, Upstream, UpstreamLost
from producers.gateway.wire import (
    PATHS,
    Added,
    Asked,
    Refused,
    encoded,
    storable_tools,
)

CaptureMode = Literal["best_effort", "required"]

_NOT_RECORDED: Final = b": x-kintsugi-recorded: no\n\n"
_LONGEST_ERROR: Final = 1000
_PASSED_ON: Final = ("content-type", "retry-after", "x-request-id")
"""Headers of an engine that the client gets."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what for."""

    client: str | None
    person: str | None = None
    task: str | None = None
    purpose: Purpose = "live"
    traceparent: str | None = None

    @property
    def scope(self) -> SessionScope:
        return self.client, self.person


@dataclass(frozen=True, slots=True)
class Desk:
    """What every call of a gateway uses."""

    recorder: Recorder
    sessions: Sessions
    client: HttpClient
    metrics: Metrics
    alias: str
    capture: CaptureMode
    timeout_seconds: float
    redaction: Redaction


class Call(Response):
    """A call; as a response, it answers itself."""

    def __init__(
        self,
        desk: Desk,
        upstreams: Sequence[Upstream],
        asked: Asked,
        kept: Kept,
        conversation: Conversation,
        caller: Caller,
        attributed: Attributed,
        keyed: Keyed | None,
    ) -> None:
        # Not super().__init__: status, headers and body are the engine's.
        self.background = None
        self._desk = desk
        self._upstreams = upstreams
        self._upstream = upstreams[0]
        self._asked = asked
        self._kept = kept
        self._keyed = keyed
        self._conversation = conversation
        self._caller = caller
        self._attributed = attributed
        self._call = minted_id()
        self._about = About(caller.person, caller.traceparent)
        self._began = time.monotonic()
        self._added = Added()
        self._answer = capturing(asked, self._added, None)
        self._status: int | None = None
        self._headers_sent = False
        self._said = False
        self._complete = False
        self._start: asyncio.Task[bool] | None = None
        self._end_task: asyncio.Task[bool] | None = None
        self._started_event: str | None = None
        self._storable = False
        self._after: Callable[[], None] | None = None
        self._passed: list[tuple[str, str]] = []
        self._sent = bytearray()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client goes away first."""
        work = asyncio.create_task(self._answered(self._timed(send)))
        gone = asyncio.create_task(_gone(receive))
        stopped: Send | None = None
        with self._desk.metrics.in_flight():
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

    def _timed(self, send: Send) -> Send:
        """Counts when the client has something to read."""

        async def timed(message: AsgiMessage) -> None:
            await send(message)
            if not self._said and message.get("body"):
                self._said = True
                self._desk.metrics.first_byte(self._asked.endpoint, self._seconds)

        return timed

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    async def _closed(self, work: "asyncio.Task[None]", stopped: Send | None) -> None:
        (failure,) = await asyncio.gather(work, return_exceptions=True)
        bug = failure if isinstance(failure, Exception) else None
        if self._end_task is not None:
            await self._end_task
        elif bug is not None:
            await self._end("failed", f"the gateway failed: {type(bug).__name__}")
        elif stopped is not None:
            await self._failed(stopped, _STOPPED, "aborted")
        else:
            await self._end("aborted", "the client went away before the answer was whole")
        self._settled()
        if bug is not None:
            raise bug

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

    async def _exchange(self, send: Send) -> None:
        """Ask one engine after the other until one can be reached."""
        for place, upstream in enumerate(self._upstreams, start=1):
            self._choose(upstream)
            body = self._asked.forwarded(self._added)
            path = PATHS[self._asked.endpoint]
            try:
                async with upstream.request(
                    self._desk.client, "POST", path, body, self._desk.timeout_seconds
                ) as response:
                    await self._relay(response, send)
                break
            except UpstreamLost:
                # Another may be asked as long as this one has said nothing.
                if place == len(self._upstreams) or self._status is not None:
                    raise

    def _choose(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._added = self._asked.added(upstream.dialect)
        self._answer = capturing(self._asked, self._added, upstream.dialect)
        if self._start is None:
            self._start = asyncio.create_task(self._record_start())

    async def _relay(self, response: Reply, send: Send) -> None:
        self._status = response.status_code
        self._passed = _passed_on(response)
        kind = response.headers.get("content-type", "")
        if response.status_code == 200 and kind.startswith("text/event-stream"):
            await self._stream(response, send)
        else:
            await self._whole(response, send)

    async def _whole(self, response: Reply, send: Send) -> None:
        body = await response.aread()
        document = _object(body)
        if response.status_code == 200 and document is not None:
            restored = self._answer.whole(document)
            body = body if restored is document else encoded(restored)
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
        recorded = await self._started()
        if not recorded and self._desk.capture == "required":
            await self._end("failed", str(_UNRECORDED))
            await self._refuse(send, _UNRECORDED, recorded=False)
            return
        await self._begin(send, 200, self._passed, recorded)
        splitter = sse.Splitter()
        async for data in response.aiter_bytes():
            for event in splitter.feed(data):
                if self._answer.is_last(sse.data(event)):
                    await self._finish(send, event, recorded)
                    return
                await self._pass_on(send, event)
        if self._answer.error is None:
            # Cut off, however politely: without a word of ours it would look whole to a client.
            cut = f"its stream ended without {self._answer.LAST}"
            raise UpstreamLost(f"{self._upstream.url}: {cut}")
        await self._end("failed", self._answer.error)
        await self._last(send, splitter.rest())

    async def _pass_on(self, send: Send, event: bytes) -> None:
        payload = sse.data(event)
        document = _object(payload or b"")
        if payload and document is None:
            # Passed on as it came, but what was said is not known: no answer to learn from.
            self._answer.error = self._answer.error or "the engine sent an event that is no JSON"
        if document is not None:
            restored = self._answer.chunk(document)
            if restored is None:
                return
            if restored is not document:
                event = sse.event(encoded(restored))
        self._keep(event)
        await send({"type": "http.response.body", "body": event, "more_body": True})

    def _keep(self, event: bytes) -> None:
        """Of a call that may be sent again, keep what was sent."""
        if self._keyed is not None and len(self._sent) <= MAX_BODY_BYTES:
            self._sent += event

    async def _finish(self, send: Send, event: bytes, promised: bool) -> None:
        """The end of a whole stream: recorded, then said."""
        error = self._answer.error
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
            self._status = refused.status
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
        return [
            ("x-kintsugi-call", self._call),
            ("x-kintsugi-session", self._attributed.session),
            ("x-kintsugi-adapter", _header_value(self._upstream.model(self._asked.model).policy)),
            ("x-kintsugi-recorded", "yes" if recorded else "no"),
        ]

    async def _last(self, send: Send, body: bytes) -> None:
        self._complete = True
        try:
            await send({"type": "http.response.body", "body": body})
        finally:
            self._settled()

    async def _started(self) -> bool:
        """Whether the start of the call is in the log."""
        assert self._start is not None, "a call is started before anything is said"
        return await asyncio.shield(self._start)

    async def _record_start(self) -> bool:
        kept, parent = self._kept.asked, self._attributed.parent
        messages, tools = kept.messages(), storable_tools(kept.tools)
        self._storable = messages is not None
        if messages is None or tools is None:
            messages, tools, parent = (), (), None
        elif len(messages) != len(self._conversation):
            parent = None  # a rule made other messages of these
        known = 0 if parent is None else parent.messages
        same_tools = parent is not None and parent.same_tools and bool(tools)
        served = self._served()
        data = CallStarted(
            call=self._call,
            session=self._attributed.session,
            alias=self._desk.alias,
            base=served.base,
            policy=served.policy,
            task=self._caller.task,
            parent=None if parent is None else parent.call,
            parent_messages=known,
            stream=self._asked.stream,
            sampling=kept.sampling,
            endpoint=self._asked.endpoint,
            parent_tools=same_tools,
            attribution=self._attributed.by,
            client=self._caller.client,
            purpose=self._caller.purpose,
            upstream=self._upstream.url,
            content=CallStartedContent(
                messages=messages[known:],
                tools=() if same_tools else tools,
                prompts=kept.prompts,
            ),
        )
        self._started_event = await self._append(data)
        if self._started_event is None:
            return False
        self._desk.sessions.placed(self._call, data.session)
        if messages:
            self._desk.sessions.started(data.session, self._call, self._conversation)
        return True

    def _served(self) -> Served:
        """What answers, as it is written: a name that no engine has is a client's text."""
        name = self._asked.model
        known = name is None or name in self._upstream.served
        return self._upstream.model(name if known else self._kept.asked.model)

    async def _end(
        self, outcome: Outcome, error: str | None = None, body: bytes | None = None
    ) -> bool:
        """Record how it ended; whether the whole call is in the log. `body` is a whole answer."""
        if self._start is None:
            return False
        # Once: a deadline may pass while the end is being recorded. And what was begun is finished,
        # whoever stops waiting for it.
        if self._end_task is None:
            self._end_task = asyncio.create_task(self._record_end(outcome, error, body))
        return await asyncio.shield(self._end_task)

    async def _record_end(self, outcome: Outcome, error: str | None, body: bytes | None) -> bool:
        started = await self._started()
        found = self._answer.captured()
        redaction = self._desk.redaction
        error = None if error is None else redaction.text(error)[:_LONGEST_ERROR]
        messages, redacted = await self._redacted(found.messages, body)
        redacted = self._kept.because or redacted
        why = redacted or found.untrainable_because or self._upstream.unproven
        if outcome != "completed":
            why = error or outcome
        elif not self._storable and redacted is None:
            why = "the messages are in a form that the log does not hold"
        data = CallEnded(
            call=self._call,
            session=self._attributed.session,
            outcome=outcome,
            finish_reason=found.finish_reason and redaction.text(found.finish_reason),
            prompt_tokens=found.prompt_tokens,
            completion_tokens=found.completion_tokens,
            duration_ms=int(self._seconds * 1000),
            trainable=why is None,
            untrainable_because=why,
            invalid_tool_calls=found.invalid_tool_calls,
            error=error,
            status=self._status,
            content=CallEndedContent(messages=messages) if messages else None,
        )
        kept = None
        if self._keyed is not None and started and outcome == "completed" and body is not None:
            headers = dict([*self._passed, *self._ours(recorded=True)])
            kept = await unhurried(len(body), receipt, self._keyed, headers, body, redacted)
        ended = await self._append(data, found.arrays if why is None else None, kept)
        recorded = started and ended is not None
        answer = (
            found.messages[0] if recorded and outcome == "completed" and found.messages else None
        )
        self._after = partial(self._settle, outcome, recorded, answer)
        return recorded

    def _settle(self, outcome: Outcome, recorded: bool, answer: Message | None) -> None:
        """What has to be known before the next request, and need not hold up this answer."""
        self._desk.metrics.ended(self._asked.endpoint, outcome, recorded, self._seconds)
        if answer is not None:
            self._remember_answer(as_sent(answer))

    def _settled(self) -> None:
        after, self._after = self._after, None
        if after is not None:
            after()

    async def _redacted(
        self, messages: tuple[Message, ...], body: bytes | None
    ) -> tuple[tuple[Message, ...], str | None]:
        """An answer as it may be written, and why it may keep no tokens."""
        if not self._desk.redaction.active:
            return messages, None
        spoken = list(self._answer.spoken())
        if self._keyed is not None and body is not None:
            # It is kept as it was sent: fields that nothing else is read of as well.
            spoken.append(body.decode(errors="replace"))
        return await unhurried(sum(map(len, spoken)), self._desk.redaction.answer, messages, spoken)

    def _remember_answer(self, said: dict[str, Any]) -> None:
        scope, session = self._caller.scope, self._attributed.session
        self._desk.sessions.answered(session, self._call, scope, self._conversation, said)

    async def _append(
        self, data: EventData, arrays: Arrays | None = None, receipt: Receipt | None = None
    ) -> str | None:
        """The id of the event, which is in the log now; None when it is not."""
        try:
            with self._desk.metrics.appending(data.STREAM, data.TYPE):
                return await self._desk.recorder.append(
                    data, self._about, cause=self._started_event, arrays=arrays, receipt=receipt
                )
        except KintsugiError as error:
            # The client is told, and with `required` refused: see _whole, _stream and _finish.
            said = {"action": "call_not_recorded", "call": self._call}
            _logger.warning("%s of call %s: %s", data.TYPE, self._call, error, extra=said)
            return None


_UNRECORDED: Final = Refused(
    503, "the call cannot be recorded and capture is required; free space on the gateway's disk"
)

_STOPPED: Final = Refused(
    503, "the gateway was stopped before the answer was whole; ask again", retry_after=5
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


def _said(document: dict[str, Any] | None, response: Reply) -> str:
    """What an engine that refused says went wrong."""
    error = (document or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else f"the engine answers {response.status_code}"
    return text.encode("utf-8", "replace").decode()


def _passed_on(response: Reply) -> list[tuple[str, str]]:
    return [(name, response.headers[name]) for name in _PASSED_ON if name in response.headers]
