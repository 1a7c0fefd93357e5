"""Shadow answers: a second adapter answers a call too, but no client sees its answer.

Once the client has its answer, the request goes to the route's shadow adapter. The answer is
recorded as a call of the session `SESSION#shadow` with the purpose `probe`, which no statistics of
live traffic count. Its member is chosen as for any call.

Guarantee: the client's call is over before, so it is neither delayed nor failed. At most `most`
shadows run at once. Beyond that, or if no engine has the adapter, a shadow is left out and counted.
Not covered: a shadow takes engine time from other calls.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.types import Message as AsgiMessage

from producers.gateway.call import Call, GatewayContext
from producers.gateway.capture.sessions import CallAttribution, SessionName, Sessions
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.redaction import RedactedRequest
from producers.gateway.request_context import RequestContext
from producers.gateway.routing.routes import shadow_session
from producers.gateway.routing.upstreams import Upstreams, find_missing

MAX_SHADOWS: Final = 8

_KNOWN: Final = 8_192

_logger = logging.getLogger(__name__)


class Shadows:
    """Runs the shadow answers of a gateway."""

    def __init__(self, gateway: GatewayContext, upstreams: Upstreams, most: int) -> None:
        # A shadow's answer must not count as a client's, in sessions or in metrics.
        self._gateway = replace(
            gateway, sessions=Sessions(_KNOWN), metrics=Metrics(), capture="best_effort"
        )
        self._metrics = gateway.metrics
        self._upstreams = upstreams
        self._most = most
        self._running: set[asyncio.Task[None]] = set()

    def answer(self, context: RequestContext, attributed: CallAttribution, adapter: str) -> None:
        """Start a shadow answer by `adapter` to the same request."""
        known = self._gateway.routing.table.adapters.get(adapter)
        if known is not None and known.parts:
            listed = not find_missing(self._upstreams.all, known.parts)
        else:
            listed = any(adapter in upstream.served for upstream in self._upstreams.all)
        begins = listed and len(self._running) < self._most
        self._metrics.count_shadow(begins)
        if not begins:
            return
        call = self._build_call(context, attributed, adapter)
        task = asyncio.create_task(call({}, _never_disconnect, _discard))
        self._running.add(task)
        task.add_done_callback(self._finish)

    async def stop(self) -> None:
        """Cancel running shadows; each is recorded as interrupted."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _build_call(
        self, context: RequestContext, attributed: CallAttribution, adapter: str
    ) -> Call:
        caller = replace(context.caller, purpose="probe", task=None)
        session = SessionName(shadow_session(attributed.session), attributed.by)
        redacted = context.redacted
        shadow = replace(
            context,
            request=context.request.with_model(adapter),
            redacted=RedactedRequest(redacted.request.with_model(adapter), redacted.because),
            caller=caller,
            session=session,
            retry=None,
        )
        shadow_attributed = self._gateway.sessions.attribute(
            session, caller.scope, context.conversation, session.session
        )
        upstreams = self._upstreams.for_session(attributed.session)
        return Call(self._gateway, upstreams, shadow, shadow_attributed)

    def _finish(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            extra = {"action": "gateway_bug"}
            _logger.error("a shadow's answer failed", exc_info=bug, extra=extra)


async def _never_disconnect() -> AsgiMessage:
    await asyncio.Event().wait()
    raise AssertionError("nothing sets it")


async def _discard(_: Mapping[str, Any]) -> None:
    pass
