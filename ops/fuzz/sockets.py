"""Send bytes to a gateway or an engine and judge the answers. These count as errors: a status of
500 or more, also in a stream, because the engine works; an error body without a reason in the API's
format; bytes that are not HTTP; and no answer, because the gateway must not wait for ever.
"""

import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import h11

_WAIT_SECONDS: Final = 120
_CLIENTS: Final = 8
_FAILED: Final = re.compile(rb'"code": ?5\d\d\b')
_PLAIN: Final = re.compile(rb"^\w+ [^ ]*/(livez|readyz|metrics)")


@dataclass(slots=True)
class Replies:
    statuses: Counter[int] = field(default_factory=Counter)
    """Status -> number of answers; 0 stands for a connection closed without an answer."""
    wrong: list[str] = field(default_factory=list)


def send_all(
    port: int, requests: Iterable[bytes], check_after: Callable[[], str | None] = lambda: None
) -> Replies:
    """Send each request on its own connection; `check_after` may return an error after each."""

    def send_one(raw: bytes) -> tuple[bytes, int, list[str]]:
        status, why = send(port, raw)
        return raw, status, [reason for reason in (why, check_after()) if reason is not None]

    replies = Replies()
    with ThreadPoolExecutor(_CLIENTS) as pool:
        for raw, status, wrong in pool.map(send_one, requests):
            replies.statuses[status] += 1
            replies.wrong += [f"{why}: {raw[:2000]!r}" for why in wrong]
    return replies


def send(port: int, raw: bytes) -> tuple[int, str | None]:
    """Send `raw` and return the status of the first answer, and its error, if any."""
    with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_SECONDS) as connection:
        # The reason of an early refusal may still be readable.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(raw)
        try:
            status, body = _answer(connection, raw.startswith(b"HEAD "))
        except h11.RemoteProtocolError as error:
            return 0, f"the answer is no HTTP ({error})"
        except TimeoutError:
            return 0, f"no answer and no end in {_WAIT_SECONDS} seconds"
    return status, _wrong(status, body, raw)


def _answer(connection: socket.socket, head: bool) -> tuple[int, bytes]:
    reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    method = "HEAD" if head else "POST"
    reader.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    reader.send(h11.EndOfMessage())
    status, body = 0, b""
    while True:
        event = reader.next_event()
        if event is h11.NEED_DATA:
            try:
                received = connection.recv(65536)
            except ConnectionResetError:
                return status, body
            if not received and not status:
                return status, body
            reader.receive_data(received)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return status, body


def _wrong(status: int, body: bytes, raw: bytes) -> str | None:
    if status >= 500:
        return f"status {status}, {body[:500]!r}"
    if status < 400 and (late := _FAILED.search(body)):
        return f"status {status}, and then {body[max(0, late.start() - 400) : late.end()]!r}"
    if status < 400 or raw.startswith(b"HEAD ") or _PLAIN.search(raw):
        return None
    try:
        reason = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"status {status} without a reason, {body[:500]!r}"
    return None if reason else f"status {status} with an empty reason"
