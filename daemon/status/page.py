"""The status page: the seven stops of the loop, live, for a browser (GET /status of the gateway).

The server renders the page without scripts, from data that is at most two seconds old. Guarantee:
the gateway's calls never wait for it. A thread with its own `App` reads the data once for all
waiting requests. A request waits for `PATIENCE_SECONDS` at most and then gets the last page with a
remark. Without a last page, it waits for `FIRST_SECONDS` and then raises Unread. Every text is
escaped, whatever its source.
"""

import asyncio
import base64
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from daemon.status.stages import Mood, stops
from events.envelope import parse_timestamp, timestamp, utc_now
from events.errors import KintsugiError
from producers.gateway.privacy.keys import ClientKeys

if TYPE_CHECKING:
    from consumers.reads.rollouts import PatternLine
    from daemon.config.settings import Settings
    from daemon.core.app import App

PATIENCE_SECONDS: Final = 3.0
FIRST_SECONDS: Final = 20.0
"""Longest wait for the first reading, which also imports its modules."""
KEPT_SECONDS: Final = 2.0
REFRESH_SECONDS: Final = 5
_MOST: Final = 10
"""Most rows of a table."""

_TEMPLATE: Final = "page.html.jinja"

_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers of the page, with which a browser shows only its text and style."""


class Unread(KintsugiError):
    """The status page has no data yet, and reading them fails."""


@dataclass(frozen=True, slots=True)
class Read:
    """Content of the page at one moment."""

    document: dict[str, Any]
    patterns: "Sequence[PatternLine]"
    at: datetime


def read(app: "App") -> Read:
    """Read the content of the page. Raise KintsugiError if the database is away."""
    from consumers.reads.rollouts import pattern_lines
    from daemon.status.snapshot import situation

    document = situation(app)
    with app.reading() as connection:
        patterns = pattern_lines(connection)
    return Read(document, patterns[:_MOST], utc_now())


def render(content: Read, trouble: str | None = None) -> str:
    """Return the page as HTML; `trouble` says why it is not current."""
    all_stops = stops(content.document, content.at)
    return _template().render(
        document=content.document,
        stops=all_stops,
        attention=any(stop.mood is Mood.ATTENTION for stop in all_stops),
        patterns=content.patterns,
        read_at=timestamp(content.at),
        trouble=trouble,
        most=_MOST,
        refresh_seconds=REFRESH_SECONDS,
    )


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["moment"] = _moment
    return environment.get_template(_TEMPLATE)


def status_page(settings: "Settings", keyring: ClientKeys) -> Route:
    """Return the route GET /status. If client keys are configured, a request needs one with the
    scope `status`, as a bearer token or as a browser's password."""
    page = StatusPage(settings)

    async def answer(request: Request) -> Response:
        client = keyring.client(_bearer(request.headers.get("authorization")))
        if client is None:
            asked = {"www-authenticate": 'Basic realm="kintsugi status", charset="UTF-8"'}
            return PlainTextResponse("a key with the scope status is needed here\n", 401, asked)
        if "status" not in client.scopes:
            return PlainTextResponse(f"the key {client.name} has no scope status\n", 403)
        try:
            return HTMLResponse(await page.text(), headers=_HEADERS)
        except Unread as error:
            return PlainTextResponse(f"{error}\n", 503, {"retry-after": "2"})

    return Route("/status", answer)


def _bearer(authorization: str | None) -> str | None:
    """Return the header with its key as a bearer token; browsers send it as a Basic password."""
    kind, _, credentials = (authorization or "").partition(" ")
    if kind.lower() != "basic":
        return authorization
    try:
        named = base64.b64decode(credentials, validate=True).decode()
    except ValueError:
        return None
    return f"Bearer {named.partition(':')[2]}"


def _moment(time: str | None) -> str:
    return "" if time is None else f"{parse_timestamp(time):%Y-%m-%d %H:%M:%S} UTC"


class StatusPage:
    """The status page of a home, for one event loop."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._last: Read | None = None
        self._reading: Future[Read] | None = None
        self._at = 0.0

    async def text(self) -> str:
        """Return the page as HTML. Raise Unread."""
        if self._last is not None and time.monotonic() - self._at < KEPT_SECONDS:
            return render(self._last)
        # A reading that still waits for a broker is shared by all requests.
        if self._reading is None or self._reading.done():
            self._reading = self._begin()
        patience = FIRST_SECONDS if self._last is None else PATIENCE_SECONDS
        try:
            reading = asyncio.shield(asyncio.wrap_future(self._reading))
            self._last = await asyncio.wait_for(reading, patience)
        except TimeoutError:
            return self._old(f"log or database did not answer within {patience:g} s")
        except KintsugiError as error:
            return self._old(str(error))
        self._at = time.monotonic()
        return render(self._last)

    def _old(self, trouble: str) -> str:
        if self._last is None:
            raise Unread(f"{trouble}; see kintsugi doctor")
        return render(self._last, trouble)

    def _begin(self) -> "Future[Read]":
        # No thread pool: the interpreter would wait for its threads at exit, and so for a broker.
        reading: Future[Read] = Future()
        thread = threading.Thread(target=self._read, args=(reading,), daemon=True)
        thread.start()
        return reading

    def _read(self, reading: "Future[Read]") -> None:
        from daemon.core.app import App

        try:
            with App(self._settings) as app:
                content = read(app)
        except BaseException as error:
            reading.set_exception(error)
        else:
            reading.set_result(content)
