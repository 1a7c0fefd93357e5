"""A batch: the rows that one transaction will write, merged in memory first.

A fold stages the rows of one event. `keep` adds them to the batch; `drop` forgets them if the event
cannot be folded. `flush` writes one multi-row upsert per table, by the table's merge rule. A reader
in the same transaction calls `flush` first. A row gets its stored form (storage.py) when it is
staged, so that rows with the same key in the database have the same key here.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection

from consumers.storage import ROWS, Row, storable
from consumers.tables import Merge, ProjectionTable
from events.canonical import exact_json
from events.errors import BadRecord

__all__ = ["Batch", "Row", "Staging", "shape", "upsert"]


class Staging:
    """The staged rows of one event, before they are kept or dropped."""

    def __init__(self) -> None:
        self.rows: list[tuple[type[ProjectionTable], Row]] = []
        self.characters = 0
        """Number of characters in all texts of the staged rows."""

    def stage(self, table: type[ProjectionTable], row: Mapping[str, Any]) -> None:
        """Add a row for `table`. Raise BadRecord if the event has too many rows or the table cannot
        hold this one."""
        if len(self.rows) >= ROWS:
            raise BadRecord(f"one event makes more than {ROWS:,} rows")
        stored, characters = storable(table, row)
        self.rows.append((table, stored))
        self.characters += characters

    def drop(self) -> None:
        """Forget the rows of the event being folded."""
        self.rows.clear()
        self.characters = 0


class Batch(Staging):
    """The merged rows that wait to be written, by table and primary key."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self._kept: dict[type[ProjectionTable], dict[tuple[Any, ...], Row]] = {}

    def keep(self) -> None:
        """Add the staged rows of the folded event to the batch."""
        self.add(self.rows)
        self.drop()

    def add(self, rows: Sequence[tuple[type[ProjectionTable], Row]]) -> None:
        """Merge the staged `rows` of an event into the batch, by each table's merge rule."""
        for table, row in rows:
            kept = self._kept.setdefault(table, {})
            key = tuple([row[column] for column in shape(table).keys])
            older = kept.get(key)
            kept[key] = row if older is None else _merge(table.MERGE, older, row)

    def flush(self) -> None:
        """Write all kept rows to the database and empty the batch."""
        for table, rows in self._kept.items():
            upsert(self.connection, table, list(rows.values()))
        self._kept.clear()

    def discard(self) -> None:
        """Forget all rows. Call it after the transaction with the flushed rows was rolled back."""
        self.drop()
        self._kept.clear()


def _merge(merge: Merge, older: Row, newer: Row) -> Row:
    if merge is Merge.FIRST:
        return older
    if merge is Merge.LAST:
        return newer
    if merge is Merge.LEAST:
        return newer if newer["order_key"] < older["order_key"] else older
    return {**newer, **{name: value for name, value in older.items() if value is not None}}


class Shape:
    """The columns, the primary key, the merge rule and the upsert statement of one table."""

    def __init__(self, model: type[ProjectionTable]) -> None:
        table = model.table()
        self.name = table.name
        self.columns = [column.name for column in table.columns]
        self.keys = [column.name for column in table.primary_key.columns]
        self.merge = model.MERGE

    def statement(self, dialect: str) -> str:
        """Return `INSERT ... ON CONFLICT` with the table's merge rule."""
        columns = ", ".join(f'"{name}"' for name in self.columns)
        keys = ", ".join(f'"{name}"' for name in self.keys)
        if dialect == "postgresql":
            # All rows are one parameter. This was measured faster than arrays, COPY into a
            # temporary table, or the driver's executemany.
            source = f'SELECT {columns} FROM json_populate_recordset(NULL::"{self.name}", %s::json)'
        else:
            source = f"VALUES ({', '.join('?' * len(self.columns))})"
        target = f'INSERT INTO "{self.name}" AS old ({columns}) {source}'
        return f"{target} ON CONFLICT ({keys}) {self._on_conflict()}"

    def _on_conflict(self) -> str:
        others = [f'"{name}"' for name in self.columns if name not in self.keys]
        if self.merge is Merge.FIRST:
            return "DO NOTHING"
        if self.merge is Merge.FILL:
            filled = ", ".join(f"{name} = COALESCE(old.{name}, excluded.{name})" for name in others)
            return f"DO UPDATE SET {filled}"
        replaced = ", ".join(f"{name} = excluded.{name}" for name in others)
        if self.merge is Merge.LEAST:
            return f"DO UPDATE SET {replaced} WHERE excluded.order_key < old.order_key"
        return f"DO UPDATE SET {replaced}"


@cache
def shape(model: type[ProjectionTable]) -> Shape:
    """Return the columns, the primary key and the merge rule of a table."""
    return Shape(model)


@cache
def _statement(model: type[ProjectionTable], dialect: str) -> str:
    return shape(model).statement(dialect)


def upsert(
    connection: Connection, model: type[ProjectionTable], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write rows that `storable` made, by the table's merge rule. Missing columns become null."""
    columns = shape(model).columns
    dialect = connection.dialect.name
    statement = _statement(model, dialect)
    if dialect == "postgresql":
        connection.exec_driver_sql(statement, (exact_json([dict(row) for row in rows]),))
    else:
        tuples = [tuple([row.get(name) for name in columns]) for row in rows]
        connection.exec_driver_sql(statement, tuples)
