"""Splits a byte stream into whole server-sent events. Guarantee: every byte comes out once and in
order, however the network cuts the stream. Pure."""

import re
from typing import Final

from events.errors import KintsugiError

MAX_EVENT_BYTES: Final = 32 << 20
"""Largest event in bytes. It bounds memory if an engine never ends an event."""

MAX_EVENT_LINES: Final = 10_000
"""Most lines of an event; engines write one or two."""

DONE: Final = b"[DONE]"

_END: Final = re.compile(rb"\n\r?\n|\r\r")
"""A line end and an empty line; the two line ends may differ."""


class EventTooLong(KintsugiError):
    """An engine sent an event that exceeds the limits."""


class Splitter:
    """Cuts a stream into events."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add `data`; return the events now complete, with blank lines. Raises EventTooLong."""
        events: list[bytes] = []
        at = 0
        if self._rest:
            before = len(self._rest)
            self._rest += data
            match = _END.search(self._rest, max(0, before - 3))
            at = len(data) if match is None else match.end() - before
            if match is not None:
                del self._rest[match.end() :]
                events.append(bytes(self._rest))
                self._rest.clear()
        while (match := _END.search(data, at)) is not None:
            events.append(data[at : match.end()])
            at = match.end()
        self._rest += data[at:]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong(
                f"the upstream sent an event of more than {MAX_EVENT_BYTES:,} bytes; it is no "
                "OpenAI-compatible stream"
            )
        return events

    def rest(self) -> bytes:
        """Return the bytes after the last whole event."""
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
    """Return an event's data; None if it has no data field. Raises EventTooLong."""
    one_line = event.find(b"\n") == len(event) - 2 and event.endswith(b"\n\n")
    if one_line and event.startswith(b"data: ") and b"\r" not in event:
        return event[6:-2]
    _check_lines(event)
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line.removeprefix(b"data:").removeprefix(b" ") for line in lines)


def event(payload: bytes, name: str | None = None) -> bytes:
    """Return an event with data `payload` and, for Anthropic's protocol, a name."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + payload + b"\n\n"
