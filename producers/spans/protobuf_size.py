"""Counts the nested messages of a protobuf body on its bytes, before it is parsed. An empty message
has two bytes, but takes a hundred times as much when parsed; other fields do not. Pure."""

from functools import cache
from typing import TYPE_CHECKING, Final

from events.errors import KintsugiError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

MAX_MESSAGES: Final = 200_000
MAX_FIELDS: Final = 1_000_000

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
"""Protobuf wire types."""


class TooMuch(KintsugiError):
    """A body exceeds a limit, as sent or when decompressed."""


def check_size(body: bytes, descriptor: "Descriptor") -> None:
    """Raise TooMuch if a body of this message type has more than `MAX_MESSAGES` messages."""
    if len(body) <= 2 * MAX_MESSAGES:
        return
    try:
        _walk(body, descriptor)
    except IndexError:
        return  # the body is cut off; the parser will report it


def _walk(body: bytes, descriptor: "Descriptor") -> None:
    messages, fields = 1, 0
    waiting = [(descriptor, 0, len(body))]
    while waiting:
        descriptor, at, end = waiting.pop()
        nested = _message_fields(descriptor)
        while at < end:
            key, at = _read_varint(body, at)
            fields += 1
            length, at = _read_length(body, at, key & 7)
            if key & 7 == _LENGTH and (kind := nested.get(key >> 3)) is not None:
                messages += 1
                waiting.append((kind, at, min(at + length, end)))
            if messages > MAX_MESSAGES or fields > MAX_FIELDS:
                raise TooMuch(
                    f"the body holds more than {MAX_MESSAGES:,} messages or {MAX_FIELDS:,} fields; "
                    "send smaller batches"
                )
            at += length


def _read_length(body: bytes, at: int, kind: int) -> tuple[int, int]:
    """Return the length of a field's value in bytes, and its start; for a group the length is 0."""
    if kind == _LENGTH:
        return _read_varint(body, at)
    if kind == _VARINT:
        return 0, _read_varint(body, at)[1]
    return {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind, 0), at


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while body[at] >= 0x80:
        value |= (body[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | body[at] << shift, at + 1


@cache
def _message_fields(descriptor: "Descriptor") -> "dict[int, Descriptor]":
    """Return field number -> message type, for the fields that hold messages."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None
    }
