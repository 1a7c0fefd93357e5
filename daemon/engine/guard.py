"""Refuse requests to the embedded engine that a web page of another site may have sent.

The engine has no keys. A web page can make a browser send requests to the browser's own machine,
under any name that an attacker's DNS points there. So the guard checks Host if only this machine
reaches the engine, and always Origin and Sec-Fetch-Site, like a gateway without keys
(producers/gateway/http/request_guard.py). Commands must be `application/json`, which browsers send
to another site only with its permission. Guarantee: headers alone decide. Not covered: other
programs on this machine, and clients on other machines.
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
        """Answer a request with a refusal, or pass it to the application."""
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
    """Return the error that refuses a request with these headers, or None if it may pass."""
    headers = list(headers)
    refused = find_refusal(headers, keyless=local, remedy=_REMEDY)
    if refused is not None:
        kind = "PermissionDeniedError" if refused.status == 403 else "BadRequestError"
        return ApiError(refused.status, kind, str(refused))
    named = dict(headers)
    origin = named.get(b"origin")
    # An engine that other machines reach may have any name, but only web pages send an Origin.
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
