"""Bring rows and records into the form that both databases can hold.

A fold's rows pass `storable` before anything is written. So a value that one database cannot hold
is refused for both, before the transaction and with the column's name. Keys are compared in their
stored form.

    text       without NUL, which PostgreSQL has not: U+FFFD stands in its place
    keys       the texts of one index row together within PostgreSQL's 2,704 bytes
    nothing    only where a column may be empty
    numbers    integers of 64 bits; floats that are numbers, and no negative zero: SQLite has none

Guarantee: pure, so a replay refuses what the fold refused.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import isfinite
from typing import Any, Final

from consumers.tables import STRING, ProjectionTable
from events.errors import BadRecord
from events.log import Record, is_origin
from events.streams import LEARNING

Row = dict[str, Any]

KEY_BYTES: Final = 2_600
"""Most bytes of UTF-8 for the texts of one index row. PostgreSQL's B-tree holds rows of at most
2,704 bytes; header, lengths, alignment and numbers take up to 100 of them."""

TEXT_CHARACTERS: Final = 4_000_000
"""Most characters of a text. The longest text of folds is evidence (diagnosis/labels.py), a third
of this."""

ROWS: Final = 250_000
"""Most rows that one event may make."""

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_NUL: Final = "\x00"
_MARK: Final = "\ufffd"
_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_QUOTED: Final = 60
"""Most characters of a refused text that the reason quotes."""


def storable(model: type[ProjectionTable], row: Mapping[str, Any]) -> tuple[Row, int]:
    """Return the row in its stored form, and the number of characters in its texts. Raise BadRecord
    if PostgreSQL or SQLite cannot hold it."""
    stored = dict(row)
    required = _not_null_columns(model)
    characters = 0
    for name, value in row.items():
        if value is None:
            if name in required:
                raise BadRecord(f"{_place(model, name)} is not said, and no row is without it")
            continue
        kind = type(value)
        if kind is str:
            characters += len(value)
            if _NUL in value:
                stored[name] = value.replace(_NUL, _MARK)
            if not value.isascii() or len(value) > TEXT_CHARACTERS:
                _check_text(model, name, value)
        elif kind is int:
            if not _LEAST <= value <= _MOST:
                raise BadRecord(f"{_place(model, name)} is a number of more than 64 bits")
        elif kind is float:
            if not isfinite(value):
                raise BadRecord(f"{_place(model, name)} is {value}, which is no number")
            if value == 0.0:
                stored[name] = 0.0  # and not -0.0
    if characters > _SHORT:
        _check_keys(model, stored)
    return stored, characters


_SHORT: Final = KEY_BYTES // 4
"""A row with at most so many characters fits any index."""


def _check_text(model: type[ProjectionTable], name: str, value: str) -> None:
    if len(value) > TEXT_CHARACTERS:
        raise BadRecord(
            f"{_place(model, name)} has {len(value):,} characters, a table holds at most "
            f"{TEXT_CHARACTERS:,}: {value[:_QUOTED]!r}..."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRecord(f"{_place(model, name)} holds half a character: {error}") from error


def _check_keys(model: type[ProjectionTable], row: Row) -> None:
    for names in _index_columns(model):
        texts = [value for name in names if (value := row.get(name)) is not None]
        if 4 * sum(map(len, texts)) <= KEY_BYTES:
            continue
        size = sum(len(text.encode()) for text in texts)
        if size > KEY_BYTES:
            longest = max(texts, key=len)
            raise BadRecord(
                f"{_place(model, ', '.join(names))}: {size:,} bytes of text, an index holds at "
                f"most {KEY_BYTES:,}: {longest[:_QUOTED]!r}..."
            )


@cache
def _index_columns(model: type[ProjectionTable]) -> tuple[tuple[str, ...], ...]:
    table = model.table()
    columns = [index.columns for index in table.indexes]
    column_sets = {
        tuple(column.name for column in some if column.type is STRING)
        for some in (table.primary_key.columns, *columns)
    } | set(model.MADE_INTO_KEYS)
    return tuple(
        sorted(
            names
            for names in column_sets
            if names and not any(set(names) < set(others) for others in column_sets)
        )
    )


@cache
def _not_null_columns(model: type[ProjectionTable]) -> frozenset[str]:
    return frozenset(column.name for column in model.table().columns if not column.nullable)


def _place(model: type[ProjectionTable], name: str) -> str:
    return f"{model.table().name}.{name}"


def sanitize_record(record: Record) -> Record:
    """Return the record in a form that the tables can hold: origin, headers, and for `learning`
    also data. If our processes cannot produce its source or sequence, another program wrote it, and
    it gets a source of its own. NUL is replaced here, because events of `learning` are looked up by
    text.
    """
    if not is_origin(record.source, record.sequence):
        record = replace(record, source=f"foreign:{record.offset}", sequence=0)
    if b"\x00" in b"".join([raw for _, raw in record.headers]):
        mark = _MARK.encode()
        headers = tuple((name, raw.replace(b"\x00", mark)) for name, raw in record.headers)
        record = replace(record, headers=headers)
    if record.stream == LEARNING.name and rb"\u0000" in record.value:
        record = replace(record, value=_ESCAPED_NUL.sub(rb"\1\\ufffd", record.value))
    return record
