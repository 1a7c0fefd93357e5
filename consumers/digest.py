"""Compute one hash over all folded tables, and find the first difference between two foldings. The
hash covers every projection table in canonical order. It leaves out positions, broker offsets,
(source, sequence), minted event ids, and times of imports and decisions. So it is the same for
SQLite and PostgreSQL, for a live fold and a rebuild, and for Kafka and the embedded log. It is also
the same if two empty homes import the same files in the same order. A comparison is stricter: it
covers every column except the broker's offset.
"""

import hashlib
import json
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Select, func, select
from sqlalchemy.sql import ColumnElement

from consumers.tables import PROJECTED, EventTable, ProjectionTable

_ROWS_AT_ONCE = 1_000

ROW_BYTES: Final = 24
"""Bytes of a row's hash. A sum of hashes is enough, because rows are not crafted to collide."""

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode

Values = tuple[Any, ...]

Keys = Mapping[str, set[Values]]
"""Table -> primary keys."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two foldings of one log."""

    table: str
    key: dict[str, Any]
    column: str | None
    """None if one folding lacks the row. `live` and `rebuilt` then say whether each has it."""
    live: Any
    rebuilt: Any

    def __str__(self) -> str:
        text = self.between("the live tables", "the rebuild")
        return text.replace("the live tables has", "the live tables have")

    def between(self, live: str, rebuilt: str) -> str:
        """Return the difference as a sentence that names the two foldings `live` and `rebuilt`."""
        key = ", ".join(f"{name}={value}" for name, value in self.key.items())
        if self.column is None:
            return f"{self.table} ({key}): {rebuilt if self.live else live} has no such row"
        return (
            f"{self.table} ({key}): {self.column} is {self.live!r} in {live} and "
            f"{self.rebuilt!r} in {rebuilt}"
        )


def digest(connection: Connection) -> str:
    """Return the hash in hex. It reads every row once and holds only a page of rows in memory."""
    running = hashlib.sha256()
    for model in PROJECTED:
        running.update(model.table().name.encode())
        with closing(_rows(connection, _select_for_hash(model))) as rows:
            for row in rows:
                running.update(_serialize(row))
                running.update(b"\n")
    return running.hexdigest()


def exact_digest(connection: Connection) -> str:
    """Return a digest. Two databases have equal digests exactly if `first_difference` returns None.
    It is a sum over the rows, so that it can be kept up to date row by row (digest_tracker.py)."""
    total = 0
    for model in PROJECTED:
        with closing(_rows(connection, comparison(model))) as rows:
            total += sum(row_hash(model, row) for row in rows)
    return format_digest(total)


def row_hash(model: type[ProjectionTable], row: Values) -> int:
    """Return the number that a row, selected by `comparison`, adds to the exact digest."""
    content = model.table().name.encode() + b"\n" + _serialize(row)
    return int.from_bytes(hashlib.blake2b(content, digest_size=ROW_BYTES).digest())


def format_digest(total: int) -> str:
    """Return the exact digest of rows whose hashes sum up to `total`."""
    return (total % (1 << 8 * ROW_BYTES)).to_bytes(ROW_BYTES).hex()


def first_difference(live: Connection, rebuilt: Connection) -> Difference | None:
    """Return the first difference between the tables of two databases; None if equal."""
    for model in PROJECTED:
        difference = _first_difference(model, live, rebuilt)
        if difference is not None:
            return difference
    return None


def row_counts(connection: Connection) -> dict[str, int]:
    """Return the number of rows per projection table."""
    return {
        model.table().name: connection.execute(
            select(func.count()).select_from(model.table())
        ).scalar_one()
        for model in PROJECTED
    }


def count_differences(live: Connection, rebuilt: Connection) -> dict[str, int]:
    """Return the number of differing rows per table, without tables that are equal."""
    counts = {model.table().name: _count_differences(model, live, rebuilt) for model in PROJECTED}
    return {name: count for name, count in counts.items() if count}


def diff_keys(left: Path, right: Path) -> Keys:
    """Return the keys of the rows that differ between two SQLite files or that one file lacks."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for name, path in (("one", left), ("other", right)):
            connection.execute(f"ATTACH ? AS {name}", (str(path),))
        return {model.table().name: set(_diff_rows(connection, model)) for model in PROJECTED}


def _diff_rows(connection: sqlite3.Connection, model: type[ProjectionTable]) -> Iterator[Values]:
    table = model.table()
    keys = [f'"{column.name}"' for column in table.primary_key.columns]
    names = [f'"{column.name}"' for column in comparison(model).selected_columns]
    unlike = " OR ".join(f"a.{name} IS NOT b.{name}" for name in names)
    for left, right in (("one", "other"), ("other", "one")):
        yield from connection.execute(
            f"SELECT {', '.join(f'a.{key}' for key in keys)} FROM {left}.{table.name} AS a "
            f"LEFT JOIN {right}.{table.name} AS b "
            f"ON {' AND '.join(f'a.{key} = b.{key}' for key in keys)} WHERE {unlike}"
        )


def _count_differences(model: type[ProjectionTable], live: Connection, rebuilt: Connection) -> int:
    width = len(model.table().primary_key.columns)
    query = comparison(model)
    changed = 0
    with closing(_rows(live, query)) as left, closing(_rows(rebuilt, query)) as right:
        a, b = next(left, None), next(right, None)
        while a is not None or b is not None:
            if a is not None and b is not None and a[:width] == b[:width]:
                changed += a != b
                a, b = next(left, None), next(right, None)
                continue
            changed += 1
            if b is None or (a is not None and a[:width] < b[:width]):
                a = next(left, None)
            else:
                b = next(right, None)
    return changed


def _first_difference(
    model: type[ProjectionTable], live: Connection, rebuilt: Connection
) -> Difference | None:
    query = comparison(model)
    with closing(_rows(live, query)) as left, closing(_rows(rebuilt, query)) as right:
        for a, b in zip_longest(left, right):
            if a != b:
                return _difference(model, query, a, b)
    return None


def _difference(
    model: type[ProjectionTable], query: Select[Any], a: Values | None, b: Values | None
) -> Difference:
    names = [column.name for column in query.selected_columns]
    width = len(model.table().primary_key.columns)
    if a is None or b is None or a[:width] != b[:width]:
        # Both databases order text by bytes, Python by code points: the same order in UTF-8.
        live_lacks = a is None or (b is not None and b[:width] < a[:width])
        row = b if live_lacks else a
        assert row is not None, "zip_longest yields at least one row"
        key = dict(zip(names, row[:width], strict=False))
        return Difference(model.table().name, key, None, not live_lacks, live_lacks)
    place = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    key = dict(zip(names, a[:width], strict=False))
    return Difference(model.table().name, key, names[place], a[place], b[place])


def comparison(model: type[ProjectionTable]) -> Select[Any]:
    """Return a query of every column but the broker's offset, ordered by the primary key.

    The event of a row comes last, so a first difference names a fact of the row if one differs.
    Snapshots keep digests of rows in this order.
    """
    table = model.table()
    keys = list(table.primary_key.columns)
    others = [
        column
        for column in table.columns
        if not column.primary_key and column.info.get("compared", True)
    ]
    if issubclass(model, EventTable):
        others.sort(key=lambda column: column.name in ("event_source", "sequence"))
    return select(*keys, *others).order_by(*keys)


def _select_for_hash(model: type[ProjectionTable]) -> Select[Any]:
    columns = [column for column in model.table().columns if column.info.get("hashed", True)]
    return select(*columns).order_by(*_hash_order(model))


def _hash_order(model: type[ProjectionTable]) -> list[ColumnElement[Any]]:
    """Return the primary key, or every hashed column if a part of the key is not hashed."""
    table = model.table()
    keys = list(table.primary_key.columns)
    if all(column.info.get("hashed", True) for column in keys):
        return list(keys)
    # Explicit, because the databases sort nulls differently.
    hashed = (column for column in table.columns if column.info.get("hashed", True))
    return [column.asc().nulls_first() for column in hashed]


def _serialize(row: Values) -> bytes:
    return _encode(row).encode()


def _rows(connection: Connection, query: Select[Any]) -> Generator[Values, None, None]:
    # Server-side cursors on PostgreSQL, so that a million rows are never in memory at once.
    paged = {"yield_per": _ROWS_AT_ONCE}
    with connection.execute(query, execution_options=paged) as result:
        for row in result:
            yield tuple(row)
