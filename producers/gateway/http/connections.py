"""Connections to engines: HTTP/1.1 with keep-alive, parsed by llhttp (httptools). A general HTTP
client would take more CPU time per call than the rest of the gateway.

Guarantee: a body is returned unchanged, byte by byte. If a caller leaves a reply early, the
connection is closed, so the engine can stop. A slow reader slows the engine down. If the engine
closed a kept connection before any byte of an answer, the request is sent once more on a new one. A
connection with bytes after an answer is not used again. Memory is bounded by the limits of body,
head and unread part. Not covered: proxies, redirects, compression.
"""

import asyncio
import re
import select
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self, cast
from urllib.parse import urlsplit

import httptools

_KEPT_SECONDS: Final = 4.0
"""Seconds a connection may stay idle. uvicorn, which serves vLLM, closes after 5."""
_MOST_KEPT: Final = 256
"""Idle connections kept per engine; busy ones have no limit, since no metric shows waiting."""
_MAX_HEAD_BYTES: Final = 64 << 10
_HIGH_WATER_BYTES: Final = 256 << 10
"""Unread bytes of a body above which the connection stops reading from the engine."""

MAX_ANSWER_BYTES: Final = 64 << 20
"""Largest body, in bytes, that is read as a whole."""

_FIELD: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]*")


class ExchangeFailure(Exception):
    """An engine could not be reached, or the connection broke; the text says how."""


class BadAnswer(ExchangeFailure):
    """An engine's answer is not valid HTTP; the text says why."""


class AnswerTooLong(BadAnswer):
    """A body exceeds the limit, which the text names."""


@dataclass(frozen=True, slots=True)
class _Origin:
    host: str
    port: int
    authority: str
    tls: bool

    @staticmethod
    def of(url: str) -> "_Origin":
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http URL; write http://HOST:PORT/v1")
        tls = parts.scheme == "https"
        authority = parts.netloc.rpartition("@")[2]
        return _Origin(parts.hostname, parts.port or (443 if tls else 80), authority, tls)


class _Connection(asyncio.Protocol):
    """One connection to an engine, with one request and answer at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.rested_since = 0.0
        self._expecting = False
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._failure: ExchangeFailure | None = None
        self._head_bytes = 0
        """Bytes of the head, or after the body, since the last byte of a body."""
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._paused = False
        self._whole = False
        self._keeps = False
        self.heard = False
        self.status = 0
        self.headers: dict[str, str] = {}

    def send(self, request: bytes) -> None:
        self._reset()
        self._expecting = True
        if self._transport is None:
            self._failure = ExchangeFailure("the connection was closed")
        else:
            self._transport.write(request)

    async def head(self) -> None:
        """Wait for the answer's status and headers. Raises ExchangeFailure."""
        while not self.status:
            await self._more()

    async def piece(self) -> bytes:
        """Wait for more of the body and return it; b"" at its end. Raises ExchangeFailure."""
        while not self._pieces:
            if self._whole:
                return b""
            await self._more()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def rests(self) -> bool:
        """End the exchange. Return whether the connection can be used for another one."""
        if self._transport is None or not (self._whole and self._keeps):
            return False
        if self._paused or self._transport.get_write_buffer_size():
            return False
        self._expecting = False
        self.rested_since = time.monotonic()
        return True

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing can be read. While idle, any byte or the end is a fault."""
        if self._transport is None:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, why: str) -> None:
        self._failure = self._failure or BadAnswer(why)
        self.close()
        self._wake()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by isinstance: uvloop's transports are not subclasses.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._ends_at_close and error is None:
            self._whole = True
        if not self._whole:
            why = str(error or "the connection was closed")
            self._failure = self._failure or ExchangeFailure(why)
        self._wake()

    @property
    def _ends_at_close(self) -> bool:
        named = "content-length" in self.headers or "transfer-encoding" in self.headers
        return bool(self.status) and not named

    def data_received(self, data: bytes) -> None:
        if not self._expecting or self._whole:
            # Data without a request.
            self.close()
            return
        self.heard = True
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"it answers no HTTP: {error}")
            return
        if not self._whole and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail(f"its headers are longer than {_MAX_HEAD_BYTES:,} bytes")

    # llhttp's side

    def on_message_begin(self) -> None:
        if self._whole:
            self.close()  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer after the body; ignored
        self.headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._whole:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers.clear()  # an interim answer (1xx): the real answer follows
            return
        if not 200 <= status < 600:
            self._fail(f"it answers with status {status:03}, which HTTP does not have")
            return
        encoding = self.headers.get("content-encoding", "")
        if encoding.lower() not in ("", "identity"):
            self._fail(f"it compresses answers ({encoding[:40]}) although it was asked not to")
            return
        self.status = status
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self._whole:
            return
        self._head_bytes = 0
        self._pieces.append(body)
        self._held += len(body)
        if self._held > _HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self.status and not self._whole:
            self._whole = True
            self._keeps = self._parser.should_keep_alive()
            self._wake()


class Reply:
    """An answer whose body is still arriving."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.status_code = connection.status
        self.headers: Mapping[str, str] = connection.headers
        """Header names in lower case -> values."""

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises ExchangeFailure."""
        while data := await self._connection.piece():
            yield data

    async def aread(self, most: int = MAX_ANSWER_BYTES) -> bytes:
        """Return the whole body, of at most `most` bytes. Raises ExchangeFailure, AnswerTooLong."""
        pieces: list[bytes] = []
        size = 0
        while data := await self._connection.piece():
            size += len(data)
            if size > most:
                raise AnswerTooLong(f"its answer is longer than {most:,} bytes")
            pieces.append(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class HttpClient:
    """Sends requests to engines, and keeps idle connections for reuse."""

    def __init__(self) -> None:
        self._origins: dict[str, _Origin] = {}
        self._kept: dict[_Origin, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        base: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        connect_seconds: float,
    ) -> AsyncIterator[Reply]:
        """Yield the answer to a request; the URL is `base` + `path`. Raises ExchangeFailure."""
        origin = self._origins.get(base)
        if origin is None:
            origin = self._origins[base] = _Origin.of(base)
        target = urlsplit(base).path + path
        request = _request(method, target, origin.authority, headers, content)
        connection = await self._exchange(origin, request, connect_seconds)
        try:
            yield Reply(connection)
        finally:
            self._release(origin, connection)

    async def aclose(self) -> None:
        """Close the idle connections."""
        for kept in self._kept.values():
            for connection in kept:
                connection.close()
        self._kept.clear()

    async def _exchange(
        self, origin: _Origin, request: bytes, connect_seconds: float
    ) -> _Connection:
        kept = self._take(origin)
        if kept is not None:
            try:
                return await _ask(kept, request)
            except ExchangeFailure:
                # The engine may have closed the kept connection just then: use a new one.
                if kept.heard:
                    raise
        return await _ask(await self._connect(origin, connect_seconds), request)

    def _take(self, origin: _Origin) -> _Connection | None:
        kept = self._kept.get(origin, [])
        while kept:
            connection = kept.pop()
            fresh = time.monotonic() - connection.rested_since < _KEPT_SECONDS
            if fresh and connection.is_open and connection.is_quiet:
                return connection
            connection.close()
        return None

    def _release(self, origin: _Origin, connection: _Connection) -> None:
        kept = self._kept.setdefault(origin, [])
        if len(kept) < _MOST_KEPT and connection.rests():
            kept.append(connection)
        else:
            connection.close()

    async def _connect(self, origin: _Origin, seconds: float) -> _Connection:
        if origin.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, origin.host, origin.port, ssl=self._tls if origin.tls else None
                )
        except TimeoutError as error:
            raise ExchangeFailure(f"it cannot be reached in {seconds:g} seconds") from error
        except (OSError, UnicodeError) as error:
            raise ExchangeFailure(f"it cannot be reached: {error}") from error
        return connection


async def _ask(connection: _Connection, request: bytes) -> _Connection:
    """Send a request and wait for the answer's head. Raises ExchangeFailure."""
    try:
        connection.send(request)
        await connection.head()
    except BaseException:
        connection.close()
        raise
    return connection


def _request(
    method: str, target: str, authority: str, headers: Mapping[str, str], content: bytes | None
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {authority}", "accept: */*"]
    for name, value in headers.items():
        if _FIELD.fullmatch(value) is None:
            raise ValueError(f"the value of header {name} is no printable ASCII")
        lines.append(f"{name}: {value}")
    if content is not None:
        lines.append(f"content-length: {len(content)}")
    return "\r\n".join((*lines, "", "")).encode() + (content or b"")
