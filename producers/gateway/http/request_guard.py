"""Refuses requests by their headers, before any route sees them.

    framing       a request with two lengths, of which a proxy in front may choose the other one
    encoding      a compressed body: a few bytes may become gigabytes; only spans may be gzip, and
                  are inflated to a limit
    length        a head that is too long
    this machine  without keys, a client that does not address this machine, and a page of another
                  site: a browser also sends its requests to loopback, under any name that an
                  attacker's DNS points there; Host, Origin or Sec-Fetch-Site reveal it

Not covered: if no keys are configured, all users and programs of this machine may send requests.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from producers.gateway.http.wire import Refused, encode_json

MAX_HEAD_BYTES: Final = 64 << 10
"""Largest request line and headers together, in bytes."""

TOO_LONG: Final = (
    f"the request's line and headers are more than {MAX_HEAD_BYTES:,} bytes; send less"
)

TRACES: Final = "/v1/traces"

_PLAIN: Final = ("", "identity")
_OF_TRACES: Final = (*_PLAIN, "gzip")

_FIELD_BYTES: Final = 4
"""Bytes of the separators around a header: `: ` and the line end."""

_REMEDY: Final = "mint a key with kintsugi key NAME and set gateway.keys"

Header = tuple[bytes, bytes]


class RequestGuard:
    """ASGI middleware that refuses requests by their headers."""

    def __init__(self, app: ASGIApp, keyless: bool, rejected: Callable[[int], None]) -> None:
        self._app = app
        self._keyless = keyless
        self._rejected = rejected
        self.live: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._find_refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._answer(scope, receive, send)
            return
        self._rejected(refused.status)
        # Close the connection: later bytes on it are the refused request's body or of its sender.
        headers = {"connection": "close"}
        body = encode_json(refused.body())
        answer = Response(body, refused.status, headers, media_type="application/json")
        await answer(scope, receive, send)

    def _find_refusal(self, scope: Scope) -> Refused | None:
        # The HTTP parser's own limit only applies to heads that arrive in several pieces.
        size = sum(len(name) + len(value) + _FIELD_BYTES for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > MAX_HEAD_BYTES:
            return Refused(431, TOO_LONG)
        codings = _OF_TRACES if scope["path"].endswith(TRACES) else _PLAIN
        return find_refusal(scope["headers"], self._keyless, codings)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None, "an application runs in a task"
        if scope["type"] == "http":
            self.live.add(task)
        try:
            await self._app(scope, receive, send)
        finally:
            self.live.discard(task)

    async def wait_until_idle(self, patience_seconds: float) -> None:
        """Wait until no request is being answered."""
        if self.live:
            await asyncio.wait(self.live, timeout=patience_seconds)


def find_refusal(
    headers: Iterable[Header],
    keyless: bool,
    codings: Collection[str] = _PLAIN,
    remedy: str = _REMEDY,
) -> Refused | None:
    """Return the refusal for these headers, or None. `remedy`: advice about a foreign address."""
    fields = {name: value.decode("latin-1") for name, value in headers if name in _LOOKED_AT}
    if b"content-length" in fields and b"transfer-encoding" in fields:
        return Refused(400, "the request has Content-Length and Transfer-Encoding; send one")
    coding = fields.get(b"content-encoding", "identity")
    if coding.strip().lower() not in codings:
        return Refused(415, f"the body is encoded as {coding[:40]!r}; send it as it is")
    return _foreign(fields, remedy) if keyless else None


_LOOKED_AT: Final = frozenset(
    (
        b"content-length",
        b"transfer-encoding",
        b"content-encoding",
        b"host",
        b"origin",
        b"sec-fetch-site",
    )
)


def _foreign(fields: dict[bytes, str], remedy: str) -> Refused | None:
    host, origin = fields.get(b"host"), fields.get(b"origin")
    if host is not None and not is_here(f"//{host}"):
        return Refused(
            403,
            f"Host is {host[:80]!r}, and without keys only this machine is answered; ask for "
            f"127.0.0.1 or localhost, or {remedy}",
        )
    if origin is not None and not is_here(origin):
        return Refused(
            403,
            f"a page of {origin[:80]!r} asks, and without keys no page of another site is "
            f"answered; {remedy}",
        )
    # Browsers send no Origin for images or links, which a page fetches without reading them.
    if fields.get(b"sec-fetch-site") == "cross-site":
        return Refused(
            403,
            "a browser asks for a page of another site, and without keys none is answered; "
            f"{remedy}",
        )
    return None


def is_here(url: str) -> bool:
    """Return whether a URL names this machine in a way that DNS cannot change."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return False
    if not name:
        return False
    if name.rstrip(".") == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
