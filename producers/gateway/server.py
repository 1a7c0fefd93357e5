"""The gateway behind HTTP: OpenAI's endpoints, Anthropic's, feedback, ends of sessions, traces.

    POST /v1/chat/completions   POST /v1/feedback                    GET /livez
    POST /v1/completions        POST /v1/sessions/{session}/end      GET /readyz
    POST /v1/messages           POST /v1/messages/count_tokens       GET /metrics
    GET  /v1/models                                                  GET /openapi.json

Each path of /v1 also stands below `/r/session/NAME`, `/r/task/ID` and `/r/user/NAME`, one or more
of them in any order, for agents that can set a base URL and nothing else.

Nothing else is forwarded: an engine's own commands cannot be reached through here. What is refused
here never reached a model and is no event; every call that did is (call.py). Who asks is read by
request_context.py, and what the second column is told is taken by ingest_routes.py; calls and
pages are answered here.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from events.envelope import derived_id, minted_id, utc_now
from events.errors import LogError
from events.log import now_ms
from producers.gateway import openapi
from producers.gateway.call import Call, CaptureMode, Desk
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.idempotency import Keyed, Once, Retries
from producers.gateway.capture.record import Arrived, Caller
from producers.gateway.capture.recorder import Recorder
from producers.gateway.capture.session_recovery import remembered
from producers.gateway.capture.sessions import Named, Sessions
from producers.gateway.http.connections import HttpClient
from producers.gateway.http.errors import as_json, handlers
from producers.gateway.http.models import with_aliases
from producers.gateway.http.request_guard import TRACES, Entrance
from producers.gateway.http.wire import Asked, Endpoint, Refused, asked, encoded
from producers.gateway.ingest_routes import Told
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.keys import Client, Keyring
from producers.gateway.privacy.keys import Scope as KeyScope
from producers.gateway.privacy.redaction import Kept, Redaction, unhurried
from producers.gateway.request_context import (
    body_of,
    caller_of,
    client_of,
    named_session,
    path_fields,
    retry_key,
)
from producers.gateway.routing.routing import Routing
from producers.gateway.routing.sticky_recovery import Answered
from producers.gateway.routing.upstreams import Upstream, UpstreamLost, Upstreams
from producers.gateway.shadows import MAX_SHADOWS, Shadows

_CLOSING_SECONDS: Final = 10.0
"""For recording what was cut off."""
_RECALL_SECONDS: Final = 2.0
"""So long a start may take to know again what was known before it."""
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
    shows: Mapping[str, str] = field(default_factory=dict)
    """Headers of GET /livez: by which whoever started it knows it."""


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
        told = Told(
            self.desk,
            self._retries,
            self._client,
            options.feedback_per_minute,
            options.max_body_bytes,
        )
        routes: Sequence[tuple[str, Any, str]] = (
            ("/v1/chat/completions", self._chat, "POST"),
            ("/v1/completions", self._complete, "POST"),
            ("/v1/messages", self._message, "POST"),
            ("/v1/messages/count_tokens", self._count_tokens, "POST"),
            ("/v1/models", self._models, "GET"),
            ("/v1/feedback", told.feedback, "POST"),
            ("/v1/sessions/{ended}/end", told.end_session, "POST"),
            (TRACES, told.traces, "POST"),
        )
        self.routes = [
            Route(prefix + path, endpoint, methods=[method])
            for path, endpoint, method in routes
            for prefix in ("", "/r/{given:path}")
        ] + [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/openapi.json", _openapi),
            *pages,
        ]
        routed = Starlette(
            routes=self.routes,
            exception_handlers=handlers(self.metrics.rejected),
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
        self.desk.sessions.expect_recall()
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
            nothing = Sessions()
            nothing.forget_before(now_ms())
            self.desk.sessions.recall(nothing)
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
        given = path_fields(request)
        caller = caller_of(request, client, given, self._redaction)
        named = named_session(request, client, given, self._redaction)
        body = await body_of(request, self._options.max_body_bytes)
        wanted = asked(endpoint, body)
        kept = await unhurried(len(body), self._redaction.kept, wanted)
        key = retry_key(request, caller, self._redaction)
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
        body = await body_of(request, self._options.max_body_bytes)
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

    def _client(self, request: Request, scope: KeyScope) -> Client:
        if self._stopping and scope == "call":
            raise Refused(
                503, "the gateway is stopping; ask it again when it is back", retry_after=5
            )
        return client_of(request, self._keyring, scope)

    async def _readyz(self, _: Request) -> Response:
        if self._stopping:
            return PlainTextResponse("stopping\n", 503)
        if not self._upstreams.well:
            return PlainTextResponse("no engine answers\n", 503)
        return PlainTextResponse("ready\n")

    async def _livez(self, _: Request) -> Response:
        return PlainTextResponse("alive\n", headers=self._options.shows)

    async def _metrics(self, request: Request) -> Response:
        accepted = request.headers.get("accept", "")
        body, media_type = await asyncio.to_thread(self.metrics.exposition, accepted)
        return Response(body, media_type=media_type)


async def _openapi(_: Request) -> Response:
    return as_json(openapi.DOCUMENT)


def _passed(body: bytes, status: int) -> Response:
    return Response(body, status, media_type="application/json")
