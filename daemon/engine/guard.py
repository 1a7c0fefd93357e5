"""Check requests to the embedded engine (request -> refusal, or the application).

The engine has no keys, and browsers send pages' requests to their own machine too, under any name
that an attacker's DNS points there. So it checks Host where it listens to its own machine alone,
and Origin and Sec-Fetch-Site everywhere, like a gateway without keys
(producers/gateway/http/request_guard.py). Commands must be `application/json`, which no page sends
to another site without asking. Guarantee: it decides by headers alone. Not covered: other programs
of this machine, and clients beyond it.
"""

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.engine.responses import encode_json
from daemon.engine.wire import ApiError
from producers.gateway.http.request_guard import find_refusal, is_here

_JSON: Final = "application/json"

_REMEDY: Final = "have whatever stands before the engine ask for it so and send no Origin"

Header = tuple[bytes, bytes]


class Guard:
    """Application that refuses requests sent by web pages of other sites."""

    def __init__(self, app: ASGIApp, local: bool) -> None:
        """`local`: the engine listens only on its own machine and accepts only its names."""
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        refusal = refuse(scope["headers"], self._local) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        # The next bytes on this connection are the body of the refused request.
        headers = {"connection": "close"}
        body = encode_json(refusal.body)
        answer = Response(body, refusal.status, headers, media_type=_JSON)
        await answer(scope, receive, send)


def refuse(headers: Iterable[Header], local: bool) -> ApiError | None:
    """Return why a request with these headers is refused, or None."""
    headers = list(headers)
    refused = find_refusal(headers, keyless=local, remedy=_REMEDY)
    if refused is not None:
        kind = "PermissionDeniedError" if refused.status == 403 else "BadRequestError"
        return ApiError(refused.status, kind, str(refused))
    named = dict(headers)
    origin = named.get(b"origin")
    # Beyond its machine it may have any name, and only web pages send an Origin.
    if origin is not None and not is_here(origin.decode("latin-1")):
        return forbidden(f"a page of {origin[:80].decode('latin-1')!r} asks; {_REMEDY}")
    # For an image or a link, a browser sends a request without an Origin.
    if named.get(b"sec-fetch-site") == b"cross-site":
        return forbidden(f"a browser asks for a page of another site; {_REMEDY}")
    return None


def check_command(request: Request) -> None:
    """Raise ApiError for a command that a page could send to another site without permission."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != _JSON:
        raise forbidden(
            f"the content-type of a command is {kind[:80]!r}; send it as {_JSON} "
            f"(curl: -H 'content-type: {_JSON}')"
        )


def forbidden(message: str) -> ApiError:
    """Return the refusal of a request that is understood but not allowed."""
    return ApiError(403, "PermissionDeniedError", message)
