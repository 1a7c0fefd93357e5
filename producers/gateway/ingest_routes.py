"""The HTTP routes other than calls: POST /v1/feedback, /v1/sessions/{session}/end and /v1/traces.
Each answers when the data is in the log, or with 503 if the log cannot be written. Requests with
the same idempotency key are appended once."""

import asyncio
import time
from typing import Any, Final, get_args
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from events.envelope import derive_id, new_id
from events.errors import KintsugiError, LogError
from events.rollouts import EndCause, SessionEnded
from events.sqlite.receipts import Receipt
from producers.gateway.call import GatewayContext
from producers.gateway.capture.feedback import FeedbackBody, Rate, parse_feedback, session_of
from producers.gateway.capture.idempotency import IdempotentRequest, Retries
from producers.gateway.capture.recorder import About
from producers.gateway.http.errors import as_json, unavailable
from producers.gateway.http.wire import Refused, bad_request, identifier
from producers.gateway.large_work import LARGE_BYTES, run_in_thread_if_large
from producers.gateway.request_context import (
    RequestReader,
    parse_path_names,
    read_body,
    read_caller,
    read_header,
    read_traceparent,
)
from producers.gateway.traces import Traces
from producers.spans import otlp
from producers.spans.protobuf_size import TooMuch

_MAX_FEEDBACK_BYTES: Final = 1 << 20

_TRACES_AT_ONCE: Final = 2
"""Most requests with spans that are parsed at the same time, because each may be large."""


class IngestRoutes:
    """Appends feedback, ends of sessions and spans to the log."""

    def __init__(
        self,
        gateway: GatewayContext,
        retries: Retries,
        reader: RequestReader,
        feedback_per_minute: int,
        max_body_bytes: int,
    ) -> None:
        self._gateway = gateway
        self._retries = retries
        self._reader = reader
        self._feedback_per_minute = feedback_per_minute
        self._max_body_bytes = max_body_bytes
        self._rate = Rate(feedback_per_minute)
        self._redaction = gateway.redaction
        self._traces = Traces(gateway, retries)
        self._reading = asyncio.Semaphore(_TRACES_AT_ONCE)

    async def feedback(self, request: Request) -> Response:
        """Record feedback on a call or a session."""
        client = self._reader.authenticate(request, "feedback")
        wait = self._rate.wait(client.name, time.monotonic())
        if wait > 0:
            limit = self._feedback_per_minute
            raise Refused(
                429,
                f"more than {limit} feedback requests in a minute; wait {wait:.1f} seconds",
                retry_after=int(wait) + 1,
            )
        feedback, redaction = (
            parse_feedback(await read_body(request, _MAX_FEEDBACK_BYTES)),
            self._redaction,
        )
        session = redaction.redact_name(feedback.session) or await self._find_session(feedback)
        event_id = feedback.event_id(client.name, redaction)
        person = redaction.redact_name(read_header(request, "x-kintsugi-user"))
        about = About(person, read_traceparent(request, redaction))
        append = self._append if feedback.idempotency_key is None else self._append_once
        data = feedback.event(session, "trusted" in client.scopes, redaction)
        if await append(data, about, event_id):
            self._gateway.metrics.count_feedback()
        if feedback.call is None:
            # Feedback on the whole conversation ends it.
            end = SessionEnded(session=session, because="feedback")
            await append(end, about, derive_id(event_id, "session ended"))
            self._gateway.routing.end_session(session)
            self._gateway.sessions.end_session(session)
        return as_json({"feedback": event_id, "session": session, "call": feedback.call})

    async def _find_session(self, feedback: FeedbackBody) -> str:
        call = feedback.call or ""
        session = self._gateway.sessions.session_of(call)
        if session is None:
            session = await asyncio.to_thread(self._read_session, call)
        if session is None:
            raise Refused(
                404,
                f"call {call[:80]!r} is not in this gateway's log; name its session",
                param="call",
            )
        return session

    def _read_session(self, call: str) -> str | None:
        try:
            return session_of(self._gateway.recorder.spool, call)
        except LogError as error:
            raise unavailable("the log cannot be read; send it again later", error, 5) from error

    async def end_session(self, request: Request) -> Response:
        """End a session that the client says is over."""
        self._reader.authenticate(request, "call")
        ended = unquote(request.path_params["ended"])
        session = self._redaction.redact_name(identifier(ended, "the session"))
        if session is None:
            raise Refused(404, "the path names no session; post to /v1/sessions/SESSION/end")
        cause: EndCause = "asked"
        await self._append(SessionEnded(session=session, because=cause), About(), new_id())
        self._gateway.routing.end_session(session)
        self._gateway.sessions.end_session(session)
        return as_json({"session": session, "ended": True})

    async def traces(self, request: Request) -> Response:
        """Record OTLP spans."""
        client, kind = self._reader.authenticate(request, "call"), _read_otlp_kind(request)
        caller = read_caller(request, client, parse_path_names(request), self._redaction)
        most = self._max_body_bytes
        body = await read_body(request, most)
        async with self._reading:
            spans = await run_in_thread_if_large(
                max(len(body), LARGE_BYTES), _parse_spans, body, kind, _is_gzip(request), most
            )
            result = await self._traces.take(spans, caller)
        for outcome, count in result.counts.items():
            self._gateway.metrics.count_spans(outcome, count)
        answer = otlp.encode_answer(kind, result.counts["rejected"], result.message)
        return Response(answer, media_type=kind)

    async def _append_once(self, data: Any, about: About, event_id: str) -> bool:
        """Append an event unless one with this id exists. Return whether it was appended."""
        keyed = IdempotentRequest(event_id, data.TYPE)
        async with self._retries.turn(keyed):
            if await self._retries.has_receipt(keyed):
                return False
            return await self._append(data, about, event_id, Receipt(event_id, b""))

    async def _append(
        self, data: Any, about: About, event_id: str, receipt: Receipt | None = None
    ) -> bool:
        try:
            with self._gateway.metrics.time_append(data.STREAM, data.TYPE):
                await self._gateway.recorder.append(data, about, id=event_id, receipt=receipt)
        except KintsugiError as error:
            raise unavailable("it cannot be recorded; send it again later", error, 5) from error
        return True


def _read_otlp_kind(request: Request) -> otlp.Kind:
    """Return the media type in which spans are sent. Raises Refused for another one."""
    value = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    for kind in get_args(otlp.Kind):
        if value == kind:
            known: otlp.Kind = kind
            return known
    raise Refused(
        415, f"content-type is {value[:80]!r}; use one of {', '.join(get_args(otlp.Kind))}"
    )


def _is_gzip(request: Request) -> bool:
    return request.headers.get("content-encoding", "").strip().lower() == "gzip"


def _parse_spans(body: bytes, kind: otlp.Kind, gzip: bool, most: int) -> list[otlp.ClientSpan]:
    """Return a body's spans. Raises Refused."""
    try:
        return otlp.spans(otlp.inflate(body, most) if gzip else body, kind)
    except TooMuch as error:
        raise Refused(413, str(error)) from error
    except otlp.BadTraces as error:
        raise bad_request(str(error)) from error
    except otlp.OtlpUnavailable as error:
        raise Refused(501, str(error)) from error
