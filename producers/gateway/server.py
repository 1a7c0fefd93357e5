"""The gateway behind HTTP: OpenAI's endpoints, Anthropic's, feedback, ends of sessions, traces.

    POST /v1/chat/completions   POST /v1/feedback                    GET /livez
    POST /v1/completions        POST /v1/sessions/{session}/end      GET /readyz
    POST /v1/messages           POST /v1/messages/count_tokens       GET /metrics
    GET  /v1/models                                                  GET /openapi.json

Each path of /v1 also stands below `/r/session/NAME`, `/r/task/ID` and `/r/user/NAME`, one or more
of them in any order, for agents that can set a base URL and nothing else.

Nothing else is forwarded: an engine's own commands cannot be reached through here. What is refused
here never reached a model and is no event; every call that did is (call.py).
"""

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from events.envelope import derived_id, minted_id, utc_now
from events.errors import KintsugiError, LogError
from events.rollouts import EndCause, Purpose, SessionEnded
from events.sqlite_receipts import Receipt
from producers import otlp
from producers.gateway import openapi
from producers.gateway.answered import Answered
from producers.gateway.call import Call, CaptureMode, Desk
from producers.gateway.connections import HttpClient
from producers.gateway.entrance import TRACES, Entrance
from producers.gateway.feedback import Posted, Rate, posted, session_of
from producers.gateway.keys import Client, Keyring
from producers.gateway.keys import Scope as KeyScope
from producers.gateway.memory import remembered
from producers.gateway.metrics import Metrics
from producers.gateway.models import with_aliases
from producers.gateway.record import Arrived, Caller
from producers.gateway.recorder import About, Recorder
from producers.gateway.redaction import Kept, Redaction, unhurried
from producers.gateway.retries import Keyed, Once, Retries
from producers.gateway.routing import Routing
from producers.gateway.sessions import Conversation, Named, Sessions
from producers.gateway.shadows import MAX_SHADOWS, Shadows
from producers.gateway.traces import Traces
from producers.gateway.upstreams import Upstream, UpstreamLost, Upstreams
from producers.gateway.wire import (
    Asked,
    Endpoint,
    Refused,
    asked,
    bad_request,
    encoded,
    identifier,
)

_MAX_FEEDBACK_BYTES: Final = 1 << 20
_CLOSING_SECONDS: Final = 10.0
"""For recording what was cut off."""
_RECALL_SECONDS: Final = 2.0
"""So long a start may take to know again what was known before it."""
_PATH_FIELDS: Final = ("session", "task", "user")
_GONE: Final = 499
"""Status of what nobody reads any more."""

_TRACES_AT_ONCE: Final = 2
"""Requests with spans that are read: each may be as large as the largest body."""

_OTLP_ANSWERS: Final[Mapping[str, otlp.Kind]] = {otlp.PROTOBUF: otlp.PROTOBUF}
"""Asked in any other form, a refusal is JSON."""

_ANTHROPICS: Final = re.compile(r"/v1/messages(/count_tokens)?$")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How a gateway behaves."""

    alias: str = "agent"
    capture: CaptureMode = "best_effort"
    timeout_seconds: float = 600.0
    """For a whole call."""
    max_body_bytes: int = 32 << 20
    feedback_per_minute: int = 600
    """Per key."""
    max_shadows: int = MAX_SHADOWS
    """That answer at once."""
    ships: bool = False
    """Whether the spool is copied to Kafka: what waits for it is counted."""


class Gateway:
    """The application, and all that its calls share."""

    def __init__(
        self,
        recorder: Recorder,
        upstreams: Upstreams,
        keyring: Keyring,
        options: Options,
        redaction: Redaction | None = None,
        routing: Routing | None = None,
        pages: Sequence[Route] = (),
    ) -> None:
        """`routing` is fed by who follows the routes; without it there are none. `pages` are what
        the gateway answers for others, who let in whom they like."""
        self._options = options
        self._redaction = redaction or Redaction()
        self._retries = Retries(recorder, options.timeout_seconds)
        self._upstreams = upstreams
        self._keyring = keyring
        self._rate = Rate(options.feedback_per_minute)
        self.metrics = Metrics()
        self.metrics.watch(upstreams.all, recorder.spool, options.ships)
        self.desk = Desk(
            recorder=recorder,
            sessions=Sessions(),
            client=HttpClient(),
            metrics=self.metrics,
            routing=routing or Routing(options.alias),
            capture=options.capture,
            timeout_seconds=options.timeout_seconds,
            redaction=self._redaction,
        )
        self._shadows = Shadows(self.desk, upstreams, options.max_shadows)
        self._traces = Traces(self.desk, self._retries)
        self._reading = asyncio.Semaphore(_TRACES_AT_ONCE)
        routes: Sequence[tuple[str, Any, str]] = (
            ("/v1/chat/completions", self._chat, "POST"),
            ("/v1/completions", self._complete, "POST"),
            ("/v1/messages", self._message, "POST"),
            ("/v1/messages/count_tokens", self._count_tokens, "POST"),
            ("/v1/models", self._models, "GET"),
            ("/v1/feedback", self._feedback, "POST"),
            ("/v1/sessions/{ended}/end", self._end_session, "POST"),
            (TRACES, self._take_traces, "POST"),
        )
        self.routes = [
            Route(prefix + path, endpoint, methods=[method])
            for path, endpoint, method in routes
            for prefix in ("", "/r/{given:path}")
        ] + [
            Route("/livez", _livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/openapi.json", _openapi),
            *pages,
        ]
        routed = Starlette(
            routes=self.routes,
            exception_handlers=self._handlers(),
            lifespan=self._lifespan,
        )
        # A path is what it is: the other one of a redirect would be made of what the client sent.
        routed.router.redirect_slashes = False
        self.app = Entrance(routed, keyring.open, self.metrics.rejected)
        self._stopping = False

    def stop(self) -> None:
        """From now on nothing new is begun; GET /readyz says so."""
        self._stopping = True

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.app.live)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        look = asyncio.create_task(self._upstreams.first_look(self.desk.client))
        given_up = threading.Event()
        recall = asyncio.create_task(self._recall(given_up))
        # Calls that come meanwhile wait for it at the door, but not for long.
        await asyncio.wait((recall, look), timeout=_RECALL_SECONDS)
        watch = asyncio.create_task(self._upstreams.watch(self.desk.client))
        try:
            yield
        finally:
            given_up.set()
            # Whom the server gave up on is being recorded.
            await self.app.left(_CLOSING_SECONDS)
            await self._shadows.stop()
            for task in (look, watch):
                task.cancel()
            await asyncio.gather(look, watch, return_exceptions=True)
            await self.desk.client.aclose()
            await recall

    async def _recall(self, given_up: threading.Event) -> None:
        """Know again what was known before a restart."""
        spool, routing = self.desk.recorder.spool, self.desk.routing
        answered = Answered(routing.no_stays(), routing.clock(), utc_now())
        recall = partial(
            remembered, spool, given_up.is_set, also=answered.take, keys=self.desk.recorder.keys
        )
        try:
            earlier = await asyncio.to_thread(recall)
        except LogError as error:
            # Sessions begin anew and calls are stored whole, which is all that this would save.
            _logger.warning("%s", error, extra={"action": "nothing_recalled"})
            return
        self.desk.sessions.recall(earlier)
        routing.recall(answered.stays)

    async def _chat(self, request: Request) -> Response:
        return await self._call(request, "chat")

    async def _complete(self, request: Request) -> Response:
        return await self._call(request, "completions")

    async def _message(self, request: Request) -> Response:
        return await self._call(request, "messages")

    async def _call(self, request: Request, endpoint: Endpoint) -> Response:
        client = self._client(request, "call")
        given = _path_fields(request)
        caller = _caller(request, client, given, self._redaction)
        named = _named(request, client, given, self._redaction)
        body = await _body(request, self._options.max_body_bytes)
        wanted = asked(endpoint, body)
        kept = await unhurried(len(body), self._redaction.kept, wanted)
        key = _key(request, caller, self._redaction)
        if key is None:
            return self._made(wanted, kept, caller, named, None)
        keyed = Keyed.of(key, kept)
        return Once(self._retries, keyed, lambda: self._made(wanted, kept, caller, named, keyed))

    def _made(
        self, wanted: Asked, kept: Kept, caller: Caller, named: Named | None, keyed: Keyed | None
    ) -> Call:
        conversation = Conversation.of(wanted.raw_messages, wanted.tools)
        # Sent again after it failed, a call is of the session that it began the first time.
        fresh = minted_id() if keyed is None else derived_id("session", keyed.key)
        attributed = self.desk.sessions.attribute(named, caller.scope, conversation, fresh)
        if attributed.by == "none":
            self.metrics.unattributed()
        arrived = Arrived(wanted, kept, conversation, caller, attributed, keyed)
        shadow = partial(self._shadows.answer, arrived) if caller.purpose == "live" else None
        upstreams = self._upstreams.for_session(attributed.session)
        return Call(self.desk, upstreams, arrived, shadow)

    async def _models(self, request: Request) -> Response:
        self._client(request, "call")
        upstream, routing = self._upstreams.for_session("")[0], self.desk.routing
        routes = routing.table.routes
        aliases = {a: routes[a].base if a in routes else None for a in routing.aliases}
        body, status = await self._passed_on(upstream, "GET", "/models", None)
        return _passed(with_aliases(body, aliases), status)

    async def _count_tokens(self, request: Request) -> Response:
        self._client(request, "call")
        body = await _body(request, self._options.max_body_bytes)
        wanted = asked("messages", body)
        with self.desk.routing.begin(wanted.model, "", goes_on=False) as use:
            attempt = next(iter(use.attempts(self._upstreams.for_session(""))))
            if attempt.name is not None:
                body = encoded(wanted.asking(attempt.name).given)
            path = "/messages/count_tokens"
            return _passed(*await self._passed_on(attempt.upstream, "POST", path, body))

    async def _passed_on(
        self, upstream: Upstream, method: str, path: str, sent: bytes | None
    ) -> tuple[bytes, int]:
        """An engine's answer to what is no call of the model, and its status."""
        try:
            async with upstream.request(self.desk.client, method, path, sent, 10) as response:
                return await response.aread(), response.status_code
        except (UpstreamLost, TimeoutError) as error:
            raise Refused(503, f"no engine answers: {error}; try again", retry_after=1) from error

    async def _feedback(self, request: Request) -> Response:
        client = self._client(request, "feedback")
        wait = self._rate.wait(client.name, time.monotonic())
        if wait > 0:
            limit = self._options.feedback_per_minute
            raise Refused(
                429,
                f"more than {limit} feedback requests in a minute; wait {wait:.1f} seconds",
                retry_after=int(wait) + 1,
            )
        said, redaction = posted(await _body(request, _MAX_FEEDBACK_BYTES)), self._redaction
        session = redaction.name(said.session) or await self._session_of(said)
        event_id = said.event_id(client.name, redaction)
        person = redaction.name(_header(request, "x-kintsugi-user"))
        about = About(person, _traceparent(request, redaction))
        append = self._append if said.idempotency_key is None else self._append_once
        data = said.event(session, "trusted" in client.scopes, redaction)
        if await append(data, about, event_id):
            self.metrics.feedback()
        if said.call is None:
            # An outcome of the whole conversation: it is over.
            end = SessionEnded(session=session, because="feedback")
            await append(end, about, derived_id(event_id, "session ended"))
            self.desk.routing.ended(session)
        return _json({"feedback": event_id, "session": session, "call": said.call})

    async def _session_of(self, said: Posted) -> str:
        call = said.call or ""
        found = self.desk.sessions.session_of(call)
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
            return session_of(self.desk.recorder.spool, call)
        except LogError as error:
            raise Refused(
                503, f"the log cannot be read: {error}; send it again later", retry_after=5
            ) from error

    async def _end_session(self, request: Request) -> Response:
        self._client(request, "call")
        session = self._redaction.name(identifier(request.path_params["ended"], "the session"))
        assert session is not None, "a path parameter is never empty"
        because: EndCause = "asked"
        await self._append(SessionEnded(session=session, because=because), About(), minted_id())
        self.desk.routing.ended(session)
        return _json({"session": session, "ended": True})

    async def _take_traces(self, request: Request) -> Response:
        client, kind = self._client(request, "call"), _otlp_kind(request)
        caller = _caller(request, client, _path_fields(request), self._redaction)
        most = self._options.max_body_bytes
        body = await _body(request, most)
        async with self._reading:
            # Beside the loop: a batch of spans is larger than a call, and calls must not wait.
            spans = await asyncio.to_thread(_spans, body, kind, _is_gzip(request), most)
            taken = await self._traces.take(spans, caller)
        for result, count in taken.counts.items():
            self.metrics.spans(result, count)
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
            with self.metrics.appending(data.STREAM, data.TYPE):
                await self.desk.recorder.append(data, about, id=event_id, receipt=receipt)
        except KintsugiError as error:
            raise Refused(
                503, f"it cannot be recorded: {error}; send it again later", retry_after=5
            ) from error
        return True

    def _client(self, request: Request, scope: KeyScope) -> Client:
        if self._stopping and scope == "call":
            raise Refused(
                503, "the gateway is stopping; ask it again when it is back", retry_after=5
            )
        client = self._keyring.client(_authorization(request))
        if client is None:
            raise Refused(
                401,
                "no key, or one that this gateway does not know; send Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        if scope not in client.scopes:
            raise Refused(
                403, f"key {client.name!r} lacks the scope {scope!r}; use one that has it"
            )
        return client

    async def _readyz(self, _: Request) -> Response:
        if self._stopping:
            return PlainTextResponse("stopping\n", 503)
        if not self._upstreams.well:
            return PlainTextResponse("no engine answers\n", 503)
        return PlainTextResponse("ready\n")

    async def _metrics(self, request: Request) -> Response:
        accepted = request.headers.get("accept", "")
        body, media_type = await asyncio.to_thread(self.metrics.exposition, accepted)
        return Response(body, media_type=media_type)

    def _handlers(self) -> Mapping[Any, Any]:
        def refuse(request: Request, error: Exception) -> Response:
            refused = _refusal(error)
            self.metrics.rejected(refused.status)
            return _refused(refused, request)

        return {
            Refused: refuse,
            HTTPException: refuse,
            Exception: refuse,
            ClientDisconnect: _left,
        }


def _path_fields(request: Request) -> Mapping[str, str]:
    """What the path names: `/r/session/s1/user/u1/v1/...`. Raises Refused."""
    given = request.path_params.get("given")
    if given is None:
        return {}
    parts = given.split("/")
    found = dict(zip(parts[::2], parts[1::2], strict=False))
    if len(parts) % 2 or len(found) * 2 != len(parts) or not found.keys() <= set(_PATH_FIELDS):
        raise Refused(
            404,
            f"the path /r/{given[:80]} is not /r/NAME/VALUE/v1/... with the names session, task "
            "and user",
        )
    return found


def _named(
    request: Request, client: Client, given: Mapping[str, str], redaction: Redaction
) -> Named | None:
    if session := redaction.name(_header(request, "x-kintsugi-session")):
        return Named(session, "header")
    if session := redaction.name(identifier(client.session, "the session in the key")):
        return Named(session, "key")
    if session := redaction.name(identifier(given.get("session"), "the session in the path")):
        return Named(session, "path")
    return None


def _caller(
    request: Request, client: Client, given: Mapping[str, str], redaction: Redaction
) -> Caller:
    person = _header(request, "x-kintsugi-user") or identifier(given.get("user"), "the user")
    task = _header(request, "x-kintsugi-task") or identifier(given.get("task"), "the task")
    if task is not None and "trusted" not in client.scopes:
        raise Refused(
            403, "a task was named, and only a key with the scope 'trusted' may; leave it out"
        )
    return Caller(
        client=client.name,
        person=redaction.name(person),
        task=redaction.name(task),
        purpose=_purpose(request),
        traceparent=_traceparent(request, redaction),
    )


def _purpose(request: Request) -> Purpose:
    header = "x-kintsugi-purpose"
    named = request.headers.get(header, "live")
    for purpose in get_args(Purpose):
        if named == purpose:
            found: Purpose = purpose
            return found
    raise bad_request(f"{header} is {named[:40]!r}; use one of {', '.join(get_args(Purpose))}")


def _key(request: Request, caller: Caller, redaction: Redaction) -> str | None:
    """Of a call that may be sent again: the idempotency key, of this client and person."""
    key = redaction.name(_header(request, "idempotency-key"))
    if key is None:
        return None
    return derived_id("call", caller.client or "", caller.person or "", key)


def _authorization(request: Request) -> str | None:
    """The client's key; Anthropic's clients send it in a header of their own."""
    key = request.headers.get("x-api-key")
    given = request.headers.get("authorization")
    return given if given is not None or key is None else f"Bearer {key}"


def _header(request: Request, name: str) -> str | None:
    return identifier(request.headers.get(name), name)


def _traceparent(request: Request, redaction: Redaction) -> str | None:
    """The trace that a call is part of; what a proxy malformed is left out."""
    value = request.headers.get("traceparent", "")
    proper = len(value) == 55 and value.isascii() and value.isprintable()
    return value if proper and redaction.text(value) == value else None


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


async def _body(request: Request, most: int) -> bytes:
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > most:
            raise Refused(413, f"the body is larger than {most:,} bytes; send less")
    return bytes(read)


async def _openapi(_: Request) -> Response:
    return _json(openapi.DOCUMENT)


async def _livez(_: Request) -> Response:
    return PlainTextResponse("alive\n")


def _passed(body: bytes, status: int) -> Response:
    return Response(body, status, media_type="application/json")


def _json(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(document), status, headers, media_type="application/json")


def _refusal(error: Exception) -> Refused:
    """What a client is told of an error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, HTTPException):
        return Refused(error.status_code, error.detail)
    _logger.error("a request failed", exc_info=error, extra={"action": "gateway_bug"})
    return Refused(500, f"the gateway failed: {type(error).__name__}; please report it")


def _refused(refused: Refused, request: Request) -> Response:
    """As the clients of this path read it."""
    headers = {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}
    # Not request.url: a Host that is none makes no URL.
    path = request.scope["path"]
    if path.endswith(TRACES):
        kind = _OTLP_ANSWERS.get(request.headers.get("content-type", ""), otlp.JSON)
        body = otlp.refused(kind, str(refused))
        return Response(body, refused.status, headers, media_type=kind)
    anthropics = _ANTHROPICS.search(path) is not None
    return _json(refused.body("messages" if anthropics else None), refused.status, headers)


def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=_GONE)
