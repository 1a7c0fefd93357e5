"""Answers one call: RequestContext -> one EngineRequest per attempt -> the client's response.

Guarantee: every call with a CallStarted gets a CallEnded, after an answer, an error, a timeout, a
client's disconnect or an engine's death. Only a killed gateway leaves a CallStarted without it.
CallEnded is appended before the answer's last byte or last event is sent. A client's disconnect
cancels the engine's work. If the log cannot be written, mode `best_effort` answers with a header
that says so, and `required` refuses the call.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from events.json_text.size import find_excess
from events.rollouts import MemberChoice, Outcome
from producers.gateway.call_record import ClientAnswer, Record, ServedBy
from producers.gateway.capture.answer import Capture, make_capture
from producers.gateway.capture.asides import Asides, make_asides
from producers.gateway.capture.idempotency import MAX_BODY_BYTES
from producers.gateway.capture.recorder import Recorder
from producers.gateway.capture.sessions import CallAttribution, Sessions
from producers.gateway.http import sse
from producers.gateway.http.connections import AnswerTooLong, HttpClient, Reply
from producers.gateway.http.request_limits import MAX_ANSWER_JSON
from producers.gateway.http.wire import (
    PATHS,
    ExtraFields,
    ModelRequest,
    Refused,
    encode_json,
    encode_large_json,
    parse_large_json,
    set_model,
)
from producers.gateway.large_work import (
    LARGE_BYTES,
    SMALL_BYTES,
    Turn,
    measure_work,
    run_in_thread_if_large,
)
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.request_context import RequestContext
from producers.gateway.routing.routes import Adapter
from producers.gateway.routing.routing import Attempt, Routing
from producers.gateway.routing.upstreams import EngineModel, Upstream, UpstreamFailure

CaptureMode = Literal["best_effort", "required"]

_PART_BYTES: Final = 1 << 20
_NOT_RECORDED: Final = b": x-kintsugi-recorded: no\n\n"
_BODILESS: Final = (204, 304)
_ENGINE_HEADERS: Final = ("content-type", "retry-after", "x-request-id")


class Chooser(Protocol):
    """Chooses which member of a policy answers a session."""

    async def choose(
        self,
        name: str,
        adapter: Adapter,
        session: str,
        request: ModelRequest,
        upstreams: Sequence[Upstream],
        metrics: Metrics,
    ) -> MemberChoice:
        """Return the member of policy `name` for a call; try `upstreams` in the order given."""
        ...

    def reconsider(self, session: str, policy: str) -> None:
        """Let the session's next call choose again, because the choosing call failed."""
        ...

    async def stop(self) -> None:
        """Cancel all requests."""
        ...


MakeChooser = Callable[[Routing, HttpClient], Chooser]
"""Makes a gateway's chooser, which sends requests with the gateway's HTTP client."""


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """The objects that all calls of a gateway share."""

    recorder: Recorder
    sessions: Sessions
    client: HttpClient
    metrics: Metrics
    routing: Routing
    members: Chooser
    capture: CaptureMode
    timeout_seconds: float
    redaction: Redaction
    shows_asides: bool = False


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One attempt: an engine, the request to it, and the capture of its answer."""

    attempt: Attempt
    request: ModelRequest
    """The client's request with the attempt's model in its `model` field."""
    extras: ExtraFields
    answer: Capture
    asides: Asides | None
    """Removes asides from the client's answer; None if the client gets them."""
    model_name: str | None
    """Model name to write into the answer; None keeps the engine's name."""

    @property
    def upstream(self) -> Upstream:
        return self.attempt.upstream


class Call(Response):
    """One call to the gateway, as an ASGI response that gets and relays the engine's answer."""

    def __init__(
        self,
        gateway: GatewayContext,
        upstreams: Sequence[Upstream],
        context: RequestContext,
        attributed: CallAttribution,
        shadow: Callable[[str], None] | None = None,
    ) -> None:
        """`upstreams`: in the session's order. `shadow`: has a shadow adapter answer, too."""
        # Not super().__init__: the engine's answer brings status, headers and body.
        self.background = None
        self._gateway = gateway
        self._upstreams = upstreams
        self._context = context
        self._attributed = attributed
        self._request = context.request
        self._shadow = shadow
        self._record = Record(
            gateway.recorder,
            gateway.sessions,
            gateway.metrics,
            gateway.redaction,
            context,
            attributed,
        )
        self._engine_request = self._prepare_request(Attempt(upstreams[0], None))
        self._served: EngineModel | None = None
        """Policy and base as events and headers name them; None before the first attempt."""
        self._member: MemberChoice | None = None
        self._engine_start = 0.0
        """Seconds from the request's arrival to the start of the last engine request."""
        self._engine_seconds: float | None = None
        """Seconds from that start to the answer's last byte; None before the last byte."""
        self._headers_sent = False
        self._complete = False
        self._delivered = False
        self._continued = False
        """Whether a whole answer was recorded and delivered, so that the conversation continues."""
        self._silent = True
        self._engine_headers: list[tuple[str, str]] = []
        self._sent = bytearray()
        self._held_events: dict[int, tuple[dict[str, Any], bytes]] = {}
        """id() of a held-back event -> (the event, so that its id stays valid; its bytes)."""
        """Bytes of the stream so far, kept if the call has an idempotency key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # No later call can continue a call without messages and without a named session.
        goes_on = self._attributed.by != "none" or len(self._context.conversation) > 0
        self._lease = self._gateway.routing.begin(
            self._request.model, self._attributed.session, goes_on
        )
        work = asyncio.create_task(self._answer_in_time(send))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        stopped: Send | None = None
        with self._gateway.metrics.in_flight(), self._lease:
            try:
                await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # The server cancels the call: record it, and send the client an error.
                stopped = send
            finally:
                for task in (work, gone):
                    task.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                await asyncio.shield(self._close(work, stopped))

    def _observe_first_byte(self) -> None:
        if self._silent:
            self._silent = False
            self._gateway.metrics.time_first_byte(self._request.endpoint, self._record.seconds)

    async def _close(self, work: "asyncio.Task[None]", stopped: Send | None) -> None:
        (failure,) = await asyncio.gather(work, return_exceptions=True)
        bug = failure if isinstance(failure, Exception) else None
        try:
            if not await self._record.wait_for_end():
                await self._record_interruption(bug, stopped)
        except Exception as error:  # the call is recorded; the steps below must still run
            bug = bug or error
        self._finalize()
        if not self._continued:
            self._gateway.sessions.settle(self._attributed.claim, completed=False)
            if self._served is not None and self._member is not None and not self._member.kept:
                self._gateway.members.reconsider(self._attributed.session, self._served.policy)
        if bug is not None:
            raise bug

    async def _record_interruption(self, bug: Exception | None, stopped: Send | None) -> None:
        if bug is not None:
            await self._record_end("failed", f"the gateway failed: {type(bug).__name__}")
        elif stopped is not None:
            await self._send_error(stopped, _STOPPED, "aborted")
        else:
            await self._record_end("aborted", "the client went away before the answer was whole")

    async def _answer_in_time(self, send: Send) -> None:
        try:
            async with asyncio.timeout(self._gateway.timeout_seconds):
                await self._exchange(send)
        except TimeoutError:
            seconds = self._gateway.timeout_seconds
            refusal = Refused(504, f"the engine gave no whole answer in {seconds:g} seconds")
            await self._send_error(send, refusal, "timeout")
        except UpstreamFailure as error:
            await self._send_error(send, error.refusal, "failed", str(error))
        except sse.EventTooLong as error:
            await self._send_error(send, Refused(502, str(error)), "failed")
        except Refused as refusal:
            await self._send_error(send, refusal, "failed")

    async def _exchange(self, send: Send) -> None:
        await self._look_for_adapter()
        loss: UpstreamFailure | None = None
        async with aclosing(self._lease.attempts(self._upstreams, self._choose_member)) as attempts:
            async for attempt in attempts:
                await self._begin_attempt(attempt, str(loss))
                try:
                    if await self._try_engine(send):
                        return
                    loss = UpstreamFailure(_explain_absent_model(attempt))
                except UpstreamFailure as error:
                    # Another engine may be asked as long as this one has sent nothing.
                    if self._record.status is not None:
                        raise
                    loss = error
        assert loss is not None, "without an engine to ask, the route refuses"
        raise loss

    async def _look_for_adapter(self) -> None:
        """Ask new engines for their models, and all engines for the route's adapters."""
        await asyncio.gather(
            *(upstream.learn(self._gateway.client) for upstream in self._upstreams)
        )
        position = self._gateway.routing.table.position
        looks = (
            upstream.look_for(adapter, position, self._gateway.client)
            for adapter in self._lease.adapters
            for upstream in self._upstreams
        )
        await asyncio.gather(*looks)

    async def _choose_member(self, policy: str, adapter: Adapter) -> MemberChoice:
        return await self._gateway.members.choose(
            policy,
            adapter,
            self._attributed.session,
            self._request,
            self._upstreams,
            self._gateway.metrics,
        )

    async def _try_engine(self, send: Send) -> bool:
        """Relay the engine's answer. Return False if the engine lost the adapter, or was asked for
        an alias before its models were known. Raises UpstreamFailure."""
        request = self._engine_request
        body = await run_in_thread_if_large(
            self._request.size, request.request.encode_for_engine, request.extras
        )
        self._engine_start = self._record.seconds
        async with request.upstream.request(
            self._gateway.client,
            "POST",
            PATHS[self._request.endpoint],
            body,
            self._gateway.timeout_seconds,
        ) as response:
            if response.status_code == 404 and await self._lacks_model(request.attempt):
                return False
            await self._relay(response, send)
        return True

    async def _lacks_model(self, attempt: Attempt) -> bool:
        """Return whether an engine that refused the model's name does not serve that model."""
        upstream, adapter = attempt.upstream, attempt.adapter
        if adapter is not None:
            # The engine may have restarted since its models were read.
            await upstream.look(self._gateway.client)
            return adapter not in upstream.served
        # An alias is never a client's misspelt model. A request without a model, or with an empty
        # name, was passed on unchanged, and the client gets the engine's error.
        model = self._engine_request.request.model
        return bool(self._lease.choice.order) and model is not None and model not in upstream.served

    async def _begin_attempt(self, attempt: Attempt, error: str) -> None:
        engine_request = self._prepare_request(attempt)
        served, member = self._identify_model(engine_request), attempt.member
        if self._record.has_start and (served, member) != (self._served, self._member):
            # A recorded call has one policy and member: end it as failed and begin another.
            await self._record_end("failed", error)
            self._finalize()
            self._record = self._record.make_next()
        if attempt.policy != self._lease.choice.policy:
            self._gateway.metrics.count_fallback()
        if member is not None and member.doubt == "absent" and member != self._member:
            self._gateway.metrics.count_choice("absent", None)
        self._engine_request, self._served, self._member = engine_request, served, member
        choice, chosen = self._lease.choice, attempt.policy == self._lease.choice.policy
        self._record.begin(
            ServedBy(
                choice.alias,
                choice.routed if chosen else "fallback",
                served,
                attempt.upstream.url,
                choice.shares if chosen else None,
                choice.holdout,
                member,
            )
        )

    def _prepare_request(self, attempt: Attempt) -> EngineRequest:
        request, dialect = self._request, attempt.upstream.dialect
        extras = request.choose_extras(dialect)
        return EngineRequest(
            attempt,
            request if attempt.name is None else request.with_model(attempt.name),
            extras,
            make_capture(request, extras, dialect),
            None if self._gateway.shows_asides else make_asides(request.endpoint),
            None if attempt.name is None else self._lease.response_model(attempt.upstream),
        )

    def _identify_model(self, engine_request: EngineRequest) -> EngineModel:
        """Return policy and base for the events; an unknown model name is redacted."""
        model = self._identify_model_of_call(engine_request)
        attempt = engine_request.attempt
        if attempt.member is None or attempt.policy is None:
            return model
        return EngineModel(attempt.policy, model.base)

    def _identify_model_of_call(self, engine_request: EngineRequest) -> EngineModel:
        upstream, name = engine_request.upstream, engine_request.request.model
        if name is None or name in upstream.served:
            return upstream.model(name)
        if not self._lease.choice.order:
            return upstream.model(self._context.redacted.request.model)
        base = engine_request.attempt.name
        return upstream.model(None) if base is None else EngineModel(base[:128], base[:128])

    async def _relay(self, response: Reply, send: Send) -> None:
        self._record.status = response.status_code
        self._record.upstream = self._engine_request.upstream.url
        self._engine_headers = _select_headers(response)
        kind = response.headers.get("content-type", "").lower()
        if response.status_code == 200 and kind.startswith("text/event-stream"):
            await self._relay_stream(response, send)
        else:
            await self._relay_whole(response, send)

    async def _relay_whole(self, response: Reply, send: Send) -> None:
        try:
            body = await response.aread()
        except AnswerTooLong as error:
            # No retry: the next answer would be as long.
            raise Refused(
                502, f"the engine's answer is too long: {error}; {_ASK_FOR_LESS}"
            ) from error
        self._stop_engine_clock()
        size = measure_work(body)
        document = await run_in_thread_if_large(size, _parse_answer, body)
        if response.status_code == 200 and document is not None:
            body = await run_in_thread_if_large(size, self._restore_whole, document, body)
            recorded = await self._record_end("completed", body=body)
        else:
            recorded = await self._record_end("failed", _read_engine_error(document, response))
        if not recorded and self._gateway.capture == "required":
            await self._send_refusal(send, _UNRECORDED, recorded=False)
            return
        headers = list(self._engine_headers)
        if response.status_code not in _BODILESS:
            headers.append(("content-length", str(len(body))))
        await self._send_headers(send, response.status_code, headers, recorded)
        await self._send_last(send, body)

    def _restore_whole(self, document: dict[str, Any], body: bytes) -> bytes:
        restored = self._engine_request.answer.whole(document)
        if self._engine_request.asides is not None:
            restored = self._engine_request.asides.take_from_whole(restored)
        restored = set_model(restored, self._engine_request.model_name)
        if restored is document:
            return body
        encode = encode_large_json if _is_large(body) else encode_json
        return _rewrite(body, encode, restored)

    async def _relay_stream(self, response: Reply, send: Send) -> None:
        recorded = await self._record.wait_for_start()
        if not recorded and self._gateway.capture == "required":
            await self._record_end("failed", str(_UNRECORDED))
            await self._send_refusal(send, _UNRECORDED, recorded=False)
            return
        await self._send_headers(send, 200, self._engine_headers, recorded)
        splitter, answer = sse.Splitter(), self._engine_request.answer
        async for data in response.aiter_bytes():
            turn = Turn()
            for event in splitter.feed(data):
                if len(event) < SMALL_BYTES:
                    is_last, event = self._read_event(event)
                else:
                    is_last, event = await self._read_large_event(event)
                if is_last:
                    await self._finish_stream(send, event, recorded)
                    return
                await self._send_event(send, event)
                if turn.is_over:
                    await turn.give_way()
        rest = splitter.rest()
        if answer.is_last(sse.data(rest)):
            # The stream's last event came without a blank line after it.
            await self._finish_stream(send, rest, recorded)
            return
        if answer.error is None:
            # The stream was cut off. Without an error from us it would look whole to a client.
            cut = f"its stream ended without {answer.LAST}"
            raise UpstreamFailure(f"{self._engine_request.upstream.url}: {cut}")
        await self._record_end("failed", answer.error)
        await self._send_last(send, rest)

    async def _read_large_event(self, event: bytes) -> tuple[bool, bytes]:
        size = measure_work(event)
        payload = await run_in_thread_if_large(size, _read_payload, event)
        if await run_in_thread_if_large(size, self._engine_request.answer.is_last, payload):
            return True, event
        document = await run_in_thread_if_large(
            size, _parse_object, payload or b"", parse_large_json
        )
        return False, await run_in_thread_if_large(size, self._take_event, event, payload, document)

    def _read_event(self, event: bytes) -> tuple[bool, bytes]:
        """Return whether an event is the last, and its bytes to send. Raises EventTooLong."""
        payload = sse.data(event)
        if self._engine_request.answer.is_last(payload):
            return True, event
        return False, self._take_event(event, payload, _parse_object(payload or b"", json.loads))

    def _take_event(
        self, event: bytes, payload: bytes | None, document: dict[str, Any] | None
    ) -> bytes:
        answer = self._engine_request.answer
        began = answer.has_begun
        if payload and document is None:
            # Pass it on unchanged; the answer becomes untrainable.
            answer.error = answer.error or "the engine sent an event that is no JSON"
        if document is not None:
            event = self._restore_event(event, document)
        if answer.has_begun and not began:
            seconds = self._record.seconds - self._engine_start
            self._engine_request.upstream.first_tokens.add(seconds)
        return event

    async def _send_event(self, send: Send, event: bytes) -> None:
        if event:
            self._keep_for_retry(event)
            await _send_body(send, event, more=True)
            self._observe_first_byte()

    def _restore_event(self, event: bytes, document: dict[str, Any]) -> bytes:
        request = self._engine_request
        chunk = request.answer.chunk(document)
        chunks: Sequence[dict[str, Any]] = () if chunk is None else (chunk,)
        if chunk is not None and request.asides is not None:
            chunks = request.asides.take_from_chunk(chunk)
        restored = [set_model(each, request.model_name) for each in chunks]
        if not restored and "index" in document:
            # It may begin a block that is held back until visible text comes.
            self._held_events[id(document)] = document, event
        written = b"".join(self._write_event(event, document, each) for each in restored)
        if document.get("type") == "content_block_stop":
            self._held_events.clear()
        return written

    def _write_event(
        self, event: bytes, document: dict[str, Any], restored: dict[str, Any]
    ) -> bytes:
        if restored is document:
            return event
        held = self._held_events.pop(id(restored), None)
        if held is not None:
            return held[1]
        encode = self._request.encode_event
        return _rewrite(event, partial(encode, large=_is_large(event)), restored)

    def _keep_for_retry(self, event: bytes) -> None:
        if self._context.retry is not None and len(self._sent) <= MAX_BODY_BYTES:
            # Keep one byte more than allowed, to mark that the body is too large.
            self._sent += event[: MAX_BODY_BYTES + 1 - len(self._sent)]

    async def _finish_stream(self, send: Send, event: bytes, promised: bool) -> None:
        """Record the end of a whole stream, then send its last event."""
        self._stop_engine_clock()
        error = self._engine_request.answer.error
        self._keep_for_retry(event)
        recorded = await self._record_end(
            "failed" if error else "completed", error, bytes(self._sent)
        )
        if not recorded and self._gateway.capture == "required":
            # The missing last event tells the client that the call is not acknowledged.
            await self._send_last(send, b"")
            return
        notice = _NOT_RECORDED if promised and not recorded else b""
        await self._send_last(send, notice + event)

    async def _send_error(
        self, send: Send, refusal: Refused, outcome: Outcome, reason: str | None = None
    ) -> None:
        """Send an error as the response, or as the last event of a stream. If given, `reason` is
        recorded instead of the client's text, which must not name an engine's address."""
        if self._complete:
            return
        began = self._headers_sent
        if not began:
            self._record.status = refusal.status
        recorded = await self._record_end(outcome, reason or str(refusal))
        if began:
            await self._send_last(send, self._request.encode_error_event(refusal))
        else:
            await self._send_refusal(send, refusal, recorded)

    async def _send_refusal(self, send: Send, refusal: Refused, recorded: bool) -> None:
        body = encode_json(refusal.body(self._request.endpoint))
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        if refusal.retry_after is not None:
            headers.append(("retry-after", str(refusal.retry_after)))
        await self._send_headers(send, refusal.status, headers, recorded)
        await self._send_last(send, body)

    async def _send_headers(
        self, send: Send, status: int, headers: list[tuple[str, str]], recorded: bool
    ) -> None:
        ours = self._call_headers(recorded)
        raw = [(n.encode(), v.encode("latin-1", "replace")) for n, v in [*headers, *ours]]
        self._headers_sent = True
        await send({"type": "http.response.start", "status": status, "headers": raw})

    def _call_headers(self, recorded: bool) -> list[tuple[str, str]]:
        served = self._served or self._engine_request.upstream.model(
            self._engine_request.request.model
        )
        member = self._member
        return [
            ("x-kintsugi-call", self._record.call),
            ("x-kintsugi-session", self._attributed.session),
            ("x-kintsugi-adapter", _header_value(served.policy)),
            *(
                [("x-kintsugi-member", _header_value(member.adapter or served.base))]
                if member
                else []
            ),
            ("x-kintsugi-recorded", "yes" if recorded else "no"),
        ]

    async def _send_last(self, send: Send, body: bytes) -> None:
        self._complete = True
        try:
            await _send_body(send, body)
            self._delivered = True
            if body:
                self._observe_first_byte()
        finally:
            self._finalize()

    async def _record_end(
        self, outcome: Outcome, error: str | None = None, body: bytes | None = None
    ) -> bool:
        """Record the end with the whole answer `body`; return whether the call is in the log."""
        engine_request, client_answer = self._engine_request, None
        if body is not None:
            client_answer = ClientAnswer(
                dict([*self._engine_headers, *self._call_headers(recorded=True)]), body
            )
        return await self._record.end(
            outcome,
            engine_request.answer,
            engine_request.upstream.unproven,
            error,
            client_answer,
        )

    def _stop_engine_clock(self) -> None:
        self._engine_seconds = self._record.seconds - self._engine_start

    def _finalize(self) -> None:
        """After the answer was sent, report the outcome to sessions, metrics and the shadow."""
        shadow = self._lease.choice.shadow
        if self._record.settle() != "completed":
            return
        if self._delivered:
            self._continued = True
            self._gateway.sessions.settle(self._attributed.claim, completed=True)
        if self._engine_seconds is not None:
            seconds = self._record.seconds - self._engine_seconds
            self._gateway.metrics.time_overhead(self._request.endpoint, seconds)
        if self._shadow and shadow:
            self._shadow(shadow)


_ASK_FOR_LESS: Final = "ask for fewer tokens or log-probabilities, or stream it"

_UNRECORDED: Final = Refused(
    503, "the call cannot be recorded and capture is required; free space on the gateway's disk"
)

_STOPPED: Final = Refused(
    503, "the gateway was stopped before the answer was whole; ask again", retry_after=5
)


def _explain_absent_model(attempt: Attempt) -> str:
    """Return the error text for an engine that answers but lacks the attempt's model."""
    url = attempt.upstream.url
    if attempt.adapter is not None:
        return f"{url} has no {attempt.adapter} any more"
    return (
        f"{url} has not said yet what it serves"
        if attempt.name is None
        else f"{url} has no {attempt.name}"
    )


def _header_value(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_body(send: Send, data: bytes, more: bool = False) -> None:
    """Send a body in small pieces, so other calls can run. `more`: further data follows."""
    begin = 0
    while len(data) - begin > _PART_BYTES:
        piece = data[begin : begin + _PART_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        begin += _PART_BYTES
    await send({"type": "http.response.body", "body": data[begin:], "more_body": more})


def _parse_answer(body: bytes) -> dict[str, Any] | None:
    """Return an engine's JSON object; None for anything else. Raises Refused if it is too large."""
    excess = find_excess(body, most=MAX_ANSWER_JSON)
    if excess is not None:
        raise Refused(502, f"the engine's answer is too long: it holds {excess}; {_ASK_FOR_LESS}")
    return _parse_object(body, parse_large_json if _is_large(body) else json.loads)


def _read_payload(event: bytes) -> bytes | None:
    """Return a large event's payload. Raises EventTooLong if its JSON holds too many values."""
    payload = sse.data(event)
    excess = None if payload is None else find_excess(payload, most=MAX_ANSWER_JSON)
    if excess is not None:
        raise sse.EventTooLong(f"the upstream sent an event that holds {excess}")
    return payload


def _is_large(body: bytes) -> bool:
    return measure_work(body) >= LARGE_BYTES


def _parse_object(body: bytes, parse: Callable[[bytes], Any]) -> dict[str, Any] | None:
    try:
        document = parse(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _rewrite(
    sent: bytes, write: Callable[[dict[str, Any]], bytes], restored: dict[str, Any]
) -> bytes:
    """Return the answer's bytes without added fields; unchanged if JSON cannot express it."""
    try:
        written = write(restored)
    except RecursionError:
        return sent
    # A number too large for a float was read as infinite, which JSON cannot express.
    return sent if b"Infinity" in written and b"Infinity" not in sent else written


def _read_engine_error(document: dict[str, Any] | None, response: Reply) -> str:
    error = (document or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else f"the engine answers {response.status_code}"
    return text.encode("utf-8", "replace").decode()


def _select_headers(response: Reply) -> list[tuple[str, str]]:
    return [(name, response.headers[name]) for name in _ENGINE_HEADERS if name in response.headers]
