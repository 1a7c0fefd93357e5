"""Encodes a large JSON document piece by piece. One call of an encoder blocks all other threads.
Here other threads can run between items and fields, and within a long text. Guarantee: the text is
that of `encode(document)`, for documents whose keys are texts. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

_FEW: Final = 64
"""In a list or object with at most this many items, each item is encoded separately."""
_AT_ONCE: Final = 1_000
_CHARACTERS: Final = 1 << 20
"""Characters of a text that are encoded at once."""
_DEPTH: Final = 8


def encode_in_pieces(document: Any, encode: Callable[[Any], str], sort_keys: bool = False) -> str:
    """Return a document's JSON; `encode` writes a value without spaces, in the same key order."""
    return "".join(_write(document, encode, sort_keys, _DEPTH))


def _write(value: Any, encode: Callable[[Any], str], sort_keys: bool, depth: int) -> Iterator[str]:
    if isinstance(value, str) and len(value) > _CHARACTERS:
        yield '"'
        for at in range(0, len(value), _CHARACTERS):
            yield encode(value[at : at + _CHARACTERS])[1:-1]
        yield '"'
        return
    if not depth or not value or not isinstance(value, list | dict):
        yield encode(value)
        return
    if isinstance(value, list):
        begin, end, parts = "[", "]", _write_list(value, encode, sort_keys, depth)
    else:
        begin, end, parts = "{", "}", _write_object(value, encode, sort_keys, depth)
    yield begin
    for number, part in enumerate(parts):
        if number:
            yield ","
        yield from part
    yield end


def _write_list(
    items: Sequence[Any], encode: Callable[[Any], str], sort_keys: bool, depth: int
) -> Iterator[Iterator[str]]:
    if len(items) <= _FEW:
        for item in items:
            yield _write(item, encode, sort_keys, depth - 1)
        return
    for at in range(0, len(items), _AT_ONCE):
        yield iter([encode(items[at : at + _AT_ONCE])[1:-1]])


def _write_object(
    fields: Mapping[str, Any], encode: Callable[[Any], str], sort_keys: bool, depth: int
) -> Iterator[Iterator[str]]:
    items = iter(
        sorted(fields.items(), key=lambda field: field[0]) if sort_keys else fields.items()
    )
    if len(fields) <= _FEW:
        for name, item in items:
            yield _write_field(name, item, encode, sort_keys, depth)
        return
    while some := dict(islice(items, _AT_ONCE)):
        yield iter([encode(some)[1:-1]])


def _write_field(
    name: str, item: Any, encode: Callable[[Any], str], sort_keys: bool, depth: int
) -> Iterator[str]:
    yield f"{encode(name)}:"
    yield from _write(item, encode, sort_keys, depth - 1)
