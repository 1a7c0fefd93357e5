"""The HTTP routes of a gateway.

    POST /v1/chat/completions   POST /v1/feedback                    GET /livez
    POST /v1/completions        POST /v1/sessions/{session}/end      GET /readyz
    POST /v1/messages           POST /v1/messages/count_tokens       GET /metrics
    GET  /v1/models             POST /v1/traces                      GET /openapi.json

Each path of /v1 also exists below `/r/session/NAME`, `/r/task/ID` and `/r/user/NAME`, in any
combination, for agents that can only set a base URL. No other path reaches an engine. A request
that is refused here reaches no model and is not recorded; other calls are (call.py).
"""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from events.envelope import derive_id, new_id, utc_now
from events.errors import LogError
from events.log import now_ms
from producers.gateway import openapi
from producers.gateway.call import Call, CaptureMode, GatewayContext, MakeChooser
from producers.gateway.capture.idempotency import Once, Retries
from producers.gateway.capture.recorder import Recorder
from producers.gateway.capture.session_recovery import recover_sessions
from producers.gateway.capture.sessions import Sessions
from producers.gateway.http.connections import HttpClient
from producers.gateway.http.control_strings import ControlStrings, ControlText, ControlTokens
from producers.gateway.http.errors import as_json, handlers, unavailable
from producers.gateway.http.request_guard import TRACES, RequestGuard
from producers.gateway.http.wire import Endpoint, Json, bad_request, encode_json, parse_request
from producers.gateway.ingest_routes import IngestRoutes
from producers.gateway.large_work import measure_work, run_in_thread_if_large
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.keys import ClientKeys
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.request_context import RequestContext, RequestReader, read_body
from producers.gateway.routing.routing import Routing
from producers.gateway.routing.sticky_recovery import StickyRecovery
from producers.gateway.routing.upstreams import Upstream, UpstreamFailure, Upstreams
from producers.gateway.shadows import MAX_SHADOWS, Shadows

_CLOSING_SECONDS: Final = 10.0
"""Seconds for recording calls that a stop interrupts."""
_RECALL_SECONDS: Final = 2.0
"""Most seconds that a start waits for sessions to be restored."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a gateway."""

    alias: str = "agent"
    capture: CaptureMode = "best_effort"
    timeout_seconds: float = 600.0
    """Most seconds for a whole call."""
    max_body_bytes: int = 32 << 20
    feedback_per_minute: int = 600
    max_shadows: int = MAX_SHADOWS
    shows_asides: bool = False
    """Whether clients get the asides in answers (text that is not for the user)."""
    control_tokens: ControlTokens = "count"
    """Treatment of a call with a control token in a message."""
    control_strings: Sequence[str] = ()
    ships: bool = False
    """Whether the spool is copied to Kafka; then a metric counts unshipped events."""
    shows: Mapping[str, str] = field(default_factory=dict)
    """Headers in answers to GET /livez, by which a supervisor recognizes its gateway."""


class Gateway:
    """The ASGI application of a gateway, and the objects that its calls share."""

    def __init__(
        self,
        recorder: Recorder,
        upstreams: Upstreams,
        keyring: ClientKeys,
        options: Options,
        make_chooser: MakeChooser,
        redaction: Redaction | None = None,
        routing: Routing | None = None,
        pages: Sequence[Route] = (),
    ) -> None:
        """`routing`: default: no routes. `pages`: more routes, which check keys themselves."""
        self._options = options
        redaction = redaction or Redaction()
        self._reader = RequestReader(
            keyring, redaction, options.max_body_bytes, ControlStrings(options.control_strings)
        )
        self._retries = Retries(recorder, options.timeout_seconds)
        self._upstreams = upstreams
        self.metrics = Metrics()
        self.metrics.watch(upstreams.all, recorder.spool, options.ships)
        routing, client = routing or Routing(options.alias), HttpClient()
        self.context = GatewayContext(
            recorder=recorder,
            sessions=Sessions(),
            client=client,
            metrics=self.metrics,
            routing=routing,
            members=make_chooser(routing, client),
            capture=options.capture,
            timeout_seconds=options.timeout_seconds,
            redaction=redaction,
            shows_asides=options.shows_asides,
        )
        self._shadows = Shadows(self.context, upstreams, options.max_shadows)
        ingest = IngestRoutes(
            self.context,
            self._retries,
            self._reader,
            options.feedback_per_minute,
            options.max_body_bytes,
        )
        self.routes = [*self._build_routes(ingest), *pages]
        application = Starlette(
            routes=self.routes,
            exception_handlers=handlers(self.metrics.count_rejection),
            lifespan=self._lifespan,
        )
        # No redirects, because their target would come from the client's headers.
        application.router.redirect_slashes = False
        self.app = RequestGuard(
            _EncodedPaths(application), keyring.open, self.metrics.count_rejection
        )

    def _build_routes(self, ingest: IngestRoutes) -> list[Route]:
        """Return the gateway's HTTP routes; those below /v1 exist below /r/ too."""
        routes: Sequence[tuple[str, Any, str]] = (
            ("/v1/chat/completions", partial(self._answer_call, endpoint="chat"), "POST"),
            ("/v1/completions", partial(self._answer_call, endpoint="completions"), "POST"),
            ("/v1/messages", partial(self._answer_call, endpoint="messages"), "POST"),
            ("/v1/messages/count_tokens", self._count_tokens, "POST"),
            ("/v1/models", self._models, "GET"),
            ("/v1/feedback", ingest.feedback, "POST"),
            ("/v1/sessions/{ended:path}/end", ingest.end_session, "POST"),
            (TRACES, ingest.traces, "POST"),
        )
        return [
            Route(prefix + path, endpoint, methods=[method])
            for path, endpoint, method in routes
            for prefix in ("", "/r/{given:path}")
        ] + [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/openapi.json", _openapi),
        ]

    def stop(self) -> None:
        """Refuse new calls from now on; GET /readyz then reports it."""
        self._reader.stopping = True

    @property
    def busy(self) -> bool:
        """Return whether a request is being answered."""
        return bool(self.app.live)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        look = asyncio.create_task(self._upstreams.first_look(self.context.client))
        stop_recall = threading.Event()
        self.context.sessions.expect_recall()
        recall = asyncio.create_task(self._recall(stop_recall))
        # The gateway accepts calls only after this, at most _RECALL_SECONDS later.
        await asyncio.wait((recall, look), timeout=_RECALL_SECONDS)
        watch = asyncio.create_task(self._upstreams.watch(self.context.client))
        try:
            yield
        finally:
            stop_recall.set()
            # Calls that the server cancelled are still being recorded.
            await self.app.wait_until_idle(_CLOSING_SECONDS)
            await self._shadows.stop()
            await self.context.members.stop()
            for task in (look, watch):
                task.cancel()
            await asyncio.gather(look, watch, return_exceptions=True)
            await self.context.client.aclose()
            await recall

    async def _recall(self, stop_recall: threading.Event) -> None:
        spool, routing = self.context.recorder.spool, self.context.routing
        answered = StickyRecovery(routing.make_sticky_sessions(), routing.clock(), utc_now())
        recall = partial(
            recover_sessions,
            spool,
            stop_recall.is_set,
            also=answered.take,
            keys=self.context.recorder.keys,
        )
        try:
            earlier = await asyncio.to_thread(recall)
        except LogError as error:
            # Without restored sessions, new ones begin and calls are stored whole: no data is lost.
            _logger.warning("%s", error, extra={"action": "nothing_recalled"})
            nothing = Sessions()
            nothing.forget_before(now_ms())
            self.context.sessions.recall(nothing)
            return
        self.context.sessions.recall(earlier)
        routing.recall(answered.stays)

    async def _answer_call(self, request: Request, endpoint: Endpoint) -> Response:
        context = await self._reader.read_context(request, endpoint)
        if context.control_text is not None:
            self._take_control_text(context.request.model, context.control_text)
        if context.retry is None:
            return self._start_call(context)
        return Once(self._retries, context.retry, partial(self._start_call, context))

    def _take_control_text(self, model: str | None, text: ControlText) -> None:
        """Count messages with control tokens. Raises Refused if the setting is `refuse`."""
        self.metrics.count_control_texts(self.context.routing.find_alias(model), text.count)
        if self._options.control_tokens == "refuse":
            raise bad_request(
                f"{text.place} spells {text.string}, a control token, with which a text can pass "
                "for another message; take it out, or break it up by a space",
                param=text.place,
            )

    def _start_call(self, context: RequestContext) -> Call:
        retry = context.retry
        # A repeated call with an idempotency key stays in the session that it began first.
        fresh = new_id() if retry is None else derive_id("session", retry.key)
        attributed = self.context.sessions.attribute(
            context.session, context.caller.scope, context.conversation, fresh
        )
        if attributed.by == "none":
            self.metrics.count_new_session()
        live = context.caller.purpose == "live"
        shadow = partial(self._shadows.answer, context, attributed) if live else None
        upstreams = self._upstreams.for_session(attributed.session)
        return Call(self.context, upstreams, context, attributed, shadow)

    async def _models(self, request: Request) -> Response:
        self._reader.authenticate(request, "call")
        upstream, routing = self._upstreams.for_session("")[0], self.context.routing
        routes = routing.table.routes
        aliases = {a: routes[a].base if a in routes else None for a in routing.aliases}
        body, status = await self._ask_engine(upstream, "GET", "/models", None)
        return _json_response(with_aliases(body, aliases, routing.table.user_names), status)

    async def _count_tokens(self, request: Request) -> Response:
        self._reader.authenticate(request, "call")
        body = await read_body(request, self._options.max_body_bytes)
        size = measure_work(body)
        model_request = await run_in_thread_if_large(size, parse_request, "messages", body)
        with self.context.routing.begin(model_request.model, "", goes_on=False) as lease:
            async with aclosing(lease.attempts(self._upstreams.for_session(""))) as attempts:
                attempt = await anext(attempts)
            if attempt.name is not None:
                named = model_request.with_model(attempt.name).document
                body = await run_in_thread_if_large(size, encode_json, named)
            path = "/messages/count_tokens"
            return _json_response(*await self._ask_engine(attempt.upstream, "POST", path, body))

    async def _ask_engine(
        self, upstream: Upstream, method: str, path: str, payload: bytes | None
    ) -> tuple[bytes, int]:
        """Return an engine's answer and status for a request other than a call. Raises Refused."""
        try:
            async with upstream.request(self.context.client, method, path, payload, 10) as response:
                return await response.aread(), response.status_code
        except UpstreamFailure as error:
            _logger.warning("%s", error, extra={"action": "unavailable"})
            raise error.refusal from error
        except TimeoutError as error:
            raise unavailable("no engine answers in time; try again", error, 1) from error

    async def _readyz(self, _: Request) -> Response:
        if self._reader.stopping:
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


class _EncodedPaths:
    """Passes paths on undecoded, because a decoded slash would split a name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await self._app(scope, receive, send)


async def _openapi(_: Request) -> Response:
    return as_json(openapi.DOCUMENT)


def _json_response(body: bytes, status: int) -> Response:
    return Response(body, status, media_type="application/json")


def with_aliases(
    listed: bytes, aliases: Mapping[str, str | None], hidden: Collection[str] = ()
) -> bytes:
    """Return an engine's list of models with `aliases` and without the adapters in `hidden`.
    `aliases`: alias -> base, or None without a route. An alias gets the card of its base, but `id`
    is the alias, `root` and `parent` are the base. Names in the list and aliases without a base are
    not added. A document that is no list of models is returned unchanged."""
    try:
        document = json.loads(listed)
        cards = [card for card in document["data"] if card["id"].partition("~")[0] not in hidden]
        bases = {card["id"]: card for card in cards if not card.get("parent")}
        taken = {card["id"] for card in cards}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return listed
    added = [
        _make_card(alias, bases.get(base) or next(iter(bases.values())))
        for alias, base in aliases.items()
        if alias not in taken and bases
    ]
    if not added and len(cards) == len(document["data"]):
        return listed
    return encode_json({**document, "data": [*cards, *added]})


def _make_card(alias: str, base: Json) -> Json:
    return {**base, "id": alias, "root": base["id"], "parent": base["id"]}
