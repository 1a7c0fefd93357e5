"""What a gateway is told beside calls: outcomes, ends of sessions, calls that were made elsewhere.

    POST /v1/feedback    POST /v1/sessions/{session}/end    POST /v1/traces

Each is answered when it is in the log; where the log refuses, the answer is 503, and what is sent
again under the same idempotency key is appended once.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, get_args

from starlette.requests import Request
from starlette.responses import Response

from events.envelope import derived_id, minted_id
from events.errors import KintsugiError, LogError
from events.rollouts import EndCause, SessionEnded
from events.sqlite.receipts import Receipt
from producers.gateway.call import Desk
from producers.gateway.capture.feedback import Posted, Rate, posted, session_of
from producers.gateway.capture.idempotency import Keyed, Retries
from producers.gateway.capture.recorder import About
from producers.gateway.http.errors import as_json
from producers.gateway.http.wire import Refused, bad_request, identifier
from producers.gateway.privacy.keys import Client
from producers.gateway.privacy.keys import Scope as KeyScope
from producers.gateway.request_context import (
    body_of,
    caller_of,
    header,
    path_fields,
    traceparent_of,
)
from producers.gateway.traces import Traces
from producers.spans import otlp

_MAX_FEEDBACK_BYTES: Final = 1 << 20

_TRACES_AT_ONCE: Final = 2
"""Requests with spans that are read: each may be as large as the largest body."""

_Admit = Callable[[Request, KeyScope], Client]


class Told:
    """Takes what a gateway is told, and appends it."""

    def __init__(
        self,
        desk: Desk,
        retries: Retries,
        admit: _Admit,
        feedback_per_minute: int,
        max_body_bytes: int,
    ) -> None:
        """`admit` says whose request it is, or raises Refused."""
        self._desk = desk
        self._retries = retries
        self._admit = admit
        self._feedback_per_minute = feedback_per_minute
        self._max_body_bytes = max_body_bytes
        self._rate = Rate(feedback_per_minute)
        self._redaction = desk.redaction
        self._traces = Traces(desk, retries)
        self._reading = asyncio.Semaphore(_TRACES_AT_ONCE)

    async def feedback(self, request: Request) -> Response:
        """An outcome of a call or a session."""
        client = self._admit(request, "feedback")
        wait = self._rate.wait(client.name, time.monotonic())
        if wait > 0:
            limit = self._feedback_per_minute
            raise Refused(
                429,
                f"more than {limit} feedback requests in a minute; wait {wait:.1f} seconds",
                retry_after=int(wait) + 1,
            )
        said, redaction = posted(await body_of(request, _MAX_FEEDBACK_BYTES)), self._redaction
        session = redaction.name(said.session) or await self._session_of(said)
        event_id = said.event_id(client.name, redaction)
        person = redaction.name(header(request, "x-kintsugi-user"))
        about = About(person, traceparent_of(request, redaction))
        append = self._append if said.idempotency_key is None else self._append_once
        data = said.event(session, "trusted" in client.scopes, redaction)
        if await append(data, about, event_id):
            self._desk.metrics.feedback()
        if said.call is None:
            # An outcome of the whole conversation: it is over.
            end = SessionEnded(session=session, because="feedback")
            await append(end, about, derived_id(event_id, "session ended"))
            self._desk.routing.ended(session)
            self._desk.sessions.ended(session)
        return as_json({"feedback": event_id, "session": session, "call": said.call})

    async def _session_of(self, said: Posted) -> str:
        call = said.call or ""
        found = self._desk.sessions.session_of(call)
        if found is None:
            found = await asyncio.to_thread(self._recorded_session, call)
        if found is None:
            raise Refused(
                404,
                f"call {call[:80]!r} is not in this gateway's log; name its session",
                param="call",
            )
        return found

    def _recorded_session(self, call: str) -> str | None:
        try:
            return session_of(self._desk.recorder.spool, call)
        except LogError as error:
            raise Refused(
                503, f"the log cannot be read: {error}; send it again later", retry_after=5
            ) from error

    async def end_session(self, request: Request) -> Response:
        """A session is over."""
        self._admit(request, "call")
        session = self._redaction.name(identifier(request.path_params["ended"], "the session"))
        assert session is not None, "a path parameter is never empty"
        because: EndCause = "asked"
        await self._append(SessionEnded(session=session, because=because), About(), minted_id())
        self._desk.routing.ended(session)
        self._desk.sessions.ended(session)
        return as_json({"session": session, "ended": True})

    async def traces(self, request: Request) -> Response:
        """Spans, as OTLP has them."""
        client, kind = self._admit(request, "call"), _otlp_kind(request)
        caller = caller_of(request, client, path_fields(request), self._redaction)
        most = self._max_body_bytes
        body = await body_of(request, most)
        async with self._reading:
            # Beside the loop: a batch of spans is larger than a call, and calls must not wait.
            spans = await asyncio.to_thread(_spans, body, kind, _is_gzip(request), most)
            taken = await self._traces.take(spans, caller)
        for result, count in taken.counts.items():
            self._desk.metrics.spans(result, count)
        answer = otlp.answered(kind, taken.counts["rejected"], taken.message)
        return Response(answer, media_type=kind)

    async def _append_once(self, data: Any, about: About, event_id: str) -> bool:
        """Append, unless an event of this id is there: it follows from an idempotency key."""
        keyed = Keyed(event_id, data.TYPE)
        async with self._retries.turn(keyed):
            if await self._retries.known(keyed):
                return False
            return await self._append(data, about, event_id, Receipt(event_id, b""))

    async def _append(
        self, data: Any, about: About, event_id: str, receipt: Receipt | None = None
    ) -> bool:
        try:
            with self._desk.metrics.appending(data.STREAM, data.TYPE):
                await self._desk.recorder.append(data, about, id=event_id, receipt=receipt)
        except KintsugiError as error:
            raise Refused(
                503, f"it cannot be recorded: {error}; send it again later", retry_after=5
            ) from error
        return True


def _otlp_kind(request: Request) -> otlp.Kind:
    """How spans are sent. Raises Refused."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    for kind in get_args(otlp.Kind):
        if given == kind:
            found: otlp.Kind = kind
            return found
    raise Refused(
        415, f"content-type is {given[:80]!r}; use one of {', '.join(get_args(otlp.Kind))}"
    )


def _is_gzip(request: Request) -> bool:
    return request.headers.get("content-encoding", "").strip().lower() == "gzip"


def _spans(body: bytes, kind: otlp.Kind, gzip: bool, most: int) -> list[otlp.Received]:
    """The spans of a body. Raises Refused."""
    try:
        return otlp.spans(otlp.inflated(body, most) if gzip else body, kind)
    except otlp.TooMuch as error:
        raise Refused(413, str(error)) from error
    except otlp.BadTraces as error:
        raise bad_request(str(error)) from error
    except otlp.OtlpMissing as error:
        raise Refused(501, str(error)) from error
