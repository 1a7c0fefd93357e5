"""Counts the values of a JSON text on its bytes before it is parsed: a few megabytes can hold
millions of values, each costing far more than its bytes. A cheap count also counts commas and
brackets inside of strings. If it exceeds the limit, an exact count follows.

Guarantee: the exact count equals the number of values that `json.loads` makes, duplicate keys
included. For invalid JSON it is at least what a parser makes before it fails. Time and memory are
linear, and other threads run. Pure.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class JsonSize:
    """Numbers of values, containers and keys in a JSON text."""

    values: int
    """Number of objects, lists, strings, numbers, true, false and null. Keys do not count."""
    containers: int
    keys: int
    """Keys of objects, each as often as it is written."""


MAX_JSON: Final = JsonSize(values=500_000, containers=100_000, keys=150_000)
"""Limits of a request's body. A prompt of 400,000 token ids fits, and so do 2,000 messages of 5
objects each beside 128 tools with schemas of 400."""

_PIECE_BYTES: Final = 64 << 10
"""Bytes per step, between which other threads get their turn."""
_COUNTED_BYTES: Final = 1 << 20

_SPACE: Final = b" \t\n\r"
_NO_MARKS: Final = bytes(set(range(256)) - set(b",:[{"))


def find_excess(*texts: bytes | str, most: JsonSize = MAX_JSON) -> str | None:
    """Return the limit that the JSON texts together exceed, in words; None if they exceed none."""
    if sum(map(len, texts)) < min(most.values, most.containers, most.keys):
        return None  # each counted thing takes at least a byte
    bodies = [
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts
    ]
    return None if _is_within(bodies, most) else _scan(bodies, most)


def _is_within(bodies: Iterable[bytes], most: JsonSize) -> bool:
    """Return whether all is within the limits, even if marks within strings are counted."""
    values = containers = keys = 0
    for body in bodies:
        values += 1
        for begin in range(0, len(body), _COUNTED_BYTES):
            marks = body[begin : begin + _COUNTED_BYTES].translate(None, _NO_MARKS)
            opened = marks.count(b"[") + marks.count(b"{")
            containers += opened
            values += marks.count(b",") + opened
            keys += marks.count(b":")
            if values > most.values or containers > most.containers or keys > most.keys:
                return False
    return True


def _scan(bodies: Iterable[bytes], most: JsonSize) -> str | None:
    values = containers = keys = 0
    for body in bodies:
        values += 1
        # The first byte of a piece is the last one of the piece before it.
        for piece in _read_structure(_to_utf8(body)):
            opened = piece.count(b"[", 1) + piece.count(b"{", 1)
            containers += opened
            keys += piece.count(b":", 1)
            values += piece.count(b",", 1) + opened - piece.count(b"[]") - piece.count(b"{}")
            # The list or object opened last may be empty.
            if values - piece.endswith((b"[", b"{")) > most.values:
                return f"more than {most.values:,} values"
            if containers > most.containers:
                return f"more than {most.containers:,} objects and lists"
            if keys > most.keys:
                return f"more than {most.keys:,} keys of objects"
    return None


def _to_utf8(body: bytes) -> bytes:
    encoding = json.detect_encoding(body)
    if encoding.startswith("utf-8"):
        return body
    try:
        return body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return b""  # a parser fails there first, before it makes any value


def _read_structure(body: bytes) -> Iterator[bytes]:
    """Yield the bytes outside of strings, without white space and with one quote for each string.
    Each piece begins with the last byte of the previous piece."""
    inside, last = False, b" "
    for piece in _cut(body):
        # Remove escape pairs from the left, as a parser reads them: no remaining quote is escaped.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b'"'.join(parts[inside::2]).translate(None, _SPACE)
        inside ^= len(parts) % 2 == 0
        structure = last + outside + (b'"' if inside else b"")
        yield structure
        last = structure[-1:]


def _cut(body: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(body):
        piece = body[begin : begin + _PIECE_BYTES]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if backslashes % 2:
            piece = body[begin : begin + len(piece) + 1]
        yield piece
        begin += len(piece)
