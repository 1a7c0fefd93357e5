"""Reads JSON records from files, even damaged ones. Records are lines (JSON Lines), items of one
array, or consecutive values (such as one pretty-printed object). Each becomes a `RawRecord`, or a
`Damage` with position and reason, and reading continues after it. After damage in an array, the
next complete object that looks like a record is searched. The number of lost records is unknown, so
later positions name the character.

Guarantee: a file's content never makes these functions raise. Not covered: damage that leaves valid
JSON; encodings other than UTF-8 (with or without a byte order mark). Lines are read one by one; an
array is held as text, and one record decoded at a time.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from events.streams import MAX_DECODED_BYTES

Shape = Literal["lines", "array", "values"]
IsRecord = Callable[[Any], bool]

MAX_RECORD_CHARACTERS: Final = MAX_DECODED_BYTES // 4
"""Longest record in characters (at most four bytes each) whose content can be read back."""

_MAX_ATTEMPTS: Final = 1_000
"""Most failed attempts after one damage; each costs a scan of the text."""
_MOST_SCANS: Final = 32
"""Most scans of the whole text behind one damage, by failures that read far."""

_BLANK: Final = " \t\r\n"
_NOT_BLANK: Final = re.compile(r"[^ \t\r\n]")
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")
_OBJECT_IN_ARRAY: Final = re.compile(r"[\[,][ \t\r\n]*(?=\{)")
_BRACKET_OR_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""Matches a string, closed or not, or a bracket outside of strings."""
_DEPTH: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A readable record."""

    position: str
    value: Any
    end: int
    """Offset after the record in the file: in bytes for lines, else in characters."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A place without a readable record."""

    position: str
    reason: str
    end: int
    whole: bool = False
    """Whether the unusable value ends at `end`, so that the next record begins after it."""


def read_text(path: Path) -> str:
    """Return the file's text; a byte that is not UTF-8 becomes a lone surrogate."""
    return path.read_bytes().decode("utf-8-sig", "surrogateescape")


def shape_of(path: Path) -> Shape:
    """Return how the file holds its records, judged by its beginning."""
    with path.open("rb") as file:
        first = b""
        for line in file:
            first = line.lstrip(b"\xef\xbb\xbf").strip()
            if first:
                break
        if first.startswith(b"["):
            return "array"
        rest = next((True for line in file if line.strip()), False)
    if not rest or isinstance(_decode_line(1, first, 0), RawRecord):
        return "lines"
    # Not JSON by itself: the first line of a pretty-printed value, or a damaged line.
    return "values" if first in (b"{", b"[") else "lines"


def records(path: Path, shape: Shape, is_record: IsRecord) -> Iterator[RawRecord | Damage]:
    """Yield all records and damage of the file."""
    if shape == "lines":
        return lines(path)
    text = read_text(path)
    start = skip_blank(text, 0)
    return items(text, start, "", is_record) if shape == "array" else values(text, start)


def lines(path: Path) -> Iterator[RawRecord | Damage]:
    """Yield one record per line; blank lines are skipped."""
    end = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            end += len(raw)
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if line.strip():
                yield _decode_line(number, line, end)


def values(text: str, start: int) -> Iterator[RawRecord | Damage]:
    """Yield consecutive values, up to the first one without a known end."""
    at, number = skip_blank(text, start), 0
    while at < len(text):
        number += 1
        item = decode_at(text, at, f"record {number}")
        yield item
        if isinstance(item, Damage) and not item.whole:
            return
        at = skip_blank(text, item.end)


def items(
    text: str, start: int, name: str, is_record: IsRecord, stop: int | None = None
) -> Iterator[RawRecord | Damage]:
    """Yield the items of the array at `start`, with positions `name[index]`. Pass the array's end
    as `stop` if known, because after damage it cannot be recognised."""
    stop = len(text) if stop is None else stop
    at, index, certain = skip_blank(text, start + 1), 0, True
    while at < stop and text[at] != "]":
        position = f"{name}[{index}]" if certain else f"{name}[character {at:,}]"
        item = decode_at(text, at, position)
        if isinstance(item, RawRecord) or item.whole:
            yield item
            behind = _behind(text, item.end, stop)
            if behind is not None:
                at, index = behind, index + 1
                continue
            position = f"{name}[{index + 1}]" if certain else f"{name}[character {item.end:,}]"
            item = Damage(position, _describe_break(text, item.end, stop), item.end)
        next_at = _next_record(text, item.end, stop, is_record)
        lost = "; no whole record follows" if next_at is None else ""
        yield Damage(item.position, item.reason + lost, item.end)
        if next_at is None:
            return
        at, index, certain = next_at, index + 1, False
    if at >= stop and index == 0:
        yield Damage(f"{name}[0]", _describe_break(text, at, stop), at)
    behind = skip_blank(text, at + 1)
    if not name and at < stop and behind < len(text):
        reason = f"is no part of the array, which ends before {text[behind : behind + 40]!r}"
        yield Damage(f"character {behind:,}", reason, len(text))


def members(text: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield (key, start of its value) for the object at `start`, up to the first damage."""
    at = skip_blank(text, start + 1)
    while at < len(text) and text[at] == '"':
        key = decode_at(text, at, "")
        if isinstance(key, Damage):
            return
        colon = skip_blank(text, key.end)
        if text[colon : colon + 1] != ":":
            return
        begin = skip_blank(text, colon + 1)
        yield key.value, begin
        value = decode_at(text, begin, "")
        comma = skip_blank(text, value.end)
        whole = isinstance(value, RawRecord) or value.whole
        if not whole or text[comma : comma + 1] != ",":
            return
        at = skip_blank(text, comma + 1)


def decode_at(text: str, at: int, position: str) -> RawRecord | Damage:
    """Return the JSON value that starts at character `at`, or its damage."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        end = max(error.pos, at)
        # For an unterminated string, the parser reports the string's start.
        at_end = skip_blank(text, end + 1) == len(text) or error.msg.startswith("Unterminated")
        how = "is cut off or malformed" if at_end else "is malformed"
        return Damage(position, f"{how} at character {error.pos:,}: {error.msg}", end)
    except RecursionError:
        return _unread(text, at, position, "is nested too deeply to be read; flatten it")
    except ValueError as error:  # an integer of more digits than Python parses
        return _unread(text, at, position, f"cannot be read: {error}")
    if end - at > MAX_RECORD_CHARACTERS:
        reason = f"takes {end - at:,} characters, at most {MAX_RECORD_CHARACTERS:,} can be stored"
        return Damage(position, reason, end, whole=True)
    foreign = None if text.isascii() else _NOT_UTF8.search(text, at, end)
    if foreign is not None:
        byte = ord(foreign.group()) - 0xDC00
        reason = f"is not UTF-8: byte 0x{byte:02x} at character {foreign.start():,}; convert it"
        return Damage(position, reason, end, whole=True)
    return RawRecord(position, value, end)


def _unread(text: str, at: int, position: str, reason: str) -> Damage:
    """Return a Damage that ends at the value's closing bracket."""
    depth = 0
    for token in _BRACKET_OR_STRING.finditer(text, at):
        depth += _DEPTH.get(token.group()[0], 0)
        if depth <= 0:
            return Damage(position, reason, token.end(), whole=True)
    return Damage(position, reason, len(text))


def skip_blank(text: str, at: int) -> int:
    """Return the index of the next character other than white space, else the text's end."""
    match = _NOT_BLANK.search(text, at)
    return match.start() if match else len(text)


def _decode_line(number: int, raw: bytes, end: int) -> RawRecord | Damage:
    position = f"line {number}"
    try:
        text = raw.decode().strip(_BLANK)
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        reason = f"is not UTF-8: byte 0x{byte:02x} at byte {error.start + 1:,}; convert the file"
        return Damage(position, reason, end)
    item = decode_at(text, 0, position)
    if isinstance(item, Damage):
        return Damage(position, item.reason, end)
    if item.end < len(text):
        reason = f"holds more than one JSON value: {text[item.end :][:40]!r} follows the first"
        return Damage(position, reason, end)
    return RawRecord(position, item.value, end)


def _behind(text: str, end: int, stop: int) -> int | None:
    """Return the index of the array's next item or closing bracket; None if neither follows."""
    at = skip_blank(text, end)
    if at < stop and text[at] == ",":
        at = skip_blank(text, at + 1)
        return at if at < stop else None
    return at if at < stop and text[at] == "]" else None


def _next_record(text: str, start: int, stop: int, is_record: IsRecord) -> int | None:
    attempts, left = 0, _MOST_SCANS * (stop - start)
    place = _OBJECT_IN_ARRAY.search(text, start, stop)
    while place is not None and attempts < _MAX_ATTEMPTS and left > 0:
        item = decode_at(text, place.end(), "")
        if isinstance(item, RawRecord) and is_record(item.value):
            return place.end()
        if isinstance(item, Damage):
            attempts, left = attempts + 1, left - (item.end - place.end())
        # A complete value that is no record is part of one, so skip it.
        resume = item.end if isinstance(item, RawRecord) else place.end()
        place = _OBJECT_IN_ARRAY.search(text, resume, stop)
    return None


def _describe_break(text: str, at: int, stop: int) -> str:
    following = text[skip_blank(text, at) : stop][:40].lstrip(",").strip()
    if following:
        return f"is malformed: {following!r} stands where a comma or a closing bracket must"
    return "is missing: the file ends before the array is closed"
