"""Server-sent events as they come over the wire: bytes in, whole events out.

Guarantee: every byte comes out once and in order, however the network cut them. Pure.
"""

import re
from typing import Final

from events.errors import KintsugiError

MAX_EVENT_BYTES: Final = 32 << 20
"""Largest event, in bytes: a bound against an upstream that never ends one."""

MAX_EVENT_LINES: Final = 10_000
"""Lines of one event. Engines write one or two."""

DONE: Final = b"[DONE]"
"""The data of the event that ends a stream of OpenAI's."""

_END: Final = re.compile(rb"\n\r?\n|\r\r")
"""A line's end and an empty line, which may end otherwise than the line before."""


class EventTooLong(KintsugiError):
    """An upstream sent more than one event may hold."""


class Splitter:
    """Cuts a stream into events."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now, each with the blank line that ends it.

        Raises EventTooLong.
        """
        begin = max(0, len(self._rest) - 3)
        self._rest += data
        events: list[bytes] = []
        at = 0
        while (match := _END.search(self._rest, max(at, begin))) is not None:
            events.append(bytes(self._rest[at : match.end()]))
            _check_lines(events[-1])
            at = match.end()
        del self._rest[:at]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong(
                f"the upstream sent an event of more than {MAX_EVENT_BYTES:,} bytes; it is no "
                "OpenAI-compatible stream"
            )
        return events

    def rest(self) -> bytes:
        """What came after the last whole event."""
        return bytes(self._rest)


def _check_lines(event: bytes) -> None:
    if len(event) <= MAX_EVENT_LINES:
        return
    if event.count(b"\n") + event.count(b"\r") > MAX_EVENT_LINES:
        raise EventTooLong(
            f"the upstream sent an event of more than {MAX_EVENT_LINES:,} lines; it is no "
            "OpenAI-compatible stream"
        )


def data(event: bytes) -> bytes | None:
    """What an event says; None for a comment or another field."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line.removeprefix(b"data:").removeprefix(b" ") for line in lines)


def event(payload: bytes, name: str | None = None) -> bytes:
    """An event that says `payload`; Anthropic's have names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + payload + b"\n\n"
