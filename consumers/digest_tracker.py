"""The exact digest of tables that are being filled, kept up to date row by row.

    tracked = DigestTracker(engine)    before anything is written
    tracked.digest(connection)         reads only the rows changed since

Temporary triggers of each connection report the written rows; the file itself gets no triggers. The
tracker takes about 150 bytes of memory per row. It works for SQLite only, for tables that a single
process fills: writes of other processes go unnoticed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Engine, event, literal_column, select
from sqlalchemy.sql import ColumnElement

from consumers.digest import Keys, comparison, format_digest, row_hash
from consumers.tables import PROJECTED, ProjectionTable

_ROWS_AT_ONCE: Final = 500

_ROWID: Final[ColumnElement[int]] = literal_column("rowid")


class WriteTracker:
    """Records which rows of an engine's tables are written, by their row ids."""

    def __init__(self, engine: Engine) -> None:
        self._changed = _none()
        engine.dispose()  # a connection that was open before has no triggers
        event.listen(engine, "connect", self._watch)

    def take(self) -> dict[str, set[int]]:
        """Return table -> ids of rows written since the last call; rolled-back writes count."""
        taken, self._changed = self._changed, _none()
        return taken

    def _watch(self, dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.create_function("kintsugi_note", 2, self._note)
        cursor = dbapi_connection.cursor()
        for model in PROJECTED:
            name = model.table().name
            for what, rows in (("INSERT", "new"), ("DELETE", "old"), ("UPDATE", "new")):
                cursor.execute(
                    f"CREATE TEMP TRIGGER kintsugi_{what}_{name} AFTER {what} ON main.{name} "
                    f"BEGIN SELECT kintsugi_note('{name}', {rows}.rowid); END"
                )
        cursor.close()

    def _note(self, name: str, rowid: int) -> None:
        self._changed[name].add(rowid)


def match_keys(connection: Connection, rowids: Mapping[str, set[int]], keys: Keys) -> bool:
    """Return whether one of these rows (table -> row ids) has one of these primary keys."""
    for model in PROJECTED:
        name = model.table().name
        if keys[name] and not keys[name].isdisjoint(_read_keys(connection, model, rowids[name])):
            return True
    return False


def _read_keys(
    connection: Connection, model: type[ProjectionTable], rowids: Iterable[int]
) -> Iterator[tuple[Any, ...]]:
    query = select(*model.table().primary_key.columns)
    for some in _portions(rowids):
        for row in connection.execute(query.where(_ROWID.in_(some))):
            yield tuple(row)


def _none() -> dict[str, set[int]]:
    return {model.table().name: set() for model in PROJECTED}


class DigestTracker:
    """Keeps the exact digest of an engine's tables up to date."""

    def __init__(self, engine: Engine) -> None:
        self._written = WriteTracker(engine)
        self._hashes: dict[str, dict[int, int]] = {name: {} for name in _none()}
        self._total = 0
        with engine.connect() as connection:
            for model in PROJECTED:
                rowids = connection.scalars(select(_ROWID).select_from(model.table()))
                self._take_over(connection, model, set(rowids))

    def digest(self, connection: Connection) -> str:
        """Return the same digest as `exact_digest`. `connection` must see all writes so far."""
        changed = self._written.take()
        for model in PROJECTED:
            self._take_over(connection, model, changed[model.table().name])
        return format_digest(self._total)

    def _take_over(
        self, connection: Connection, model: type[ProjectionTable], changed: set[int]
    ) -> None:
        hashes = self._hashes[model.table().name]
        self._total -= sum(hashes.pop(rowid, 0) for rowid in changed)
        for rowid, value in _hash_rows(connection, model, changed):
            hashes[rowid] = value
            self._total += value


def _hash_rows(
    connection: Connection, model: type[ProjectionTable], changed: set[int]
) -> Iterator[tuple[int, int]]:
    query = comparison(model).add_columns(_ROWID)
    for some in _portions(changed):
        for row in connection.execute(query.where(_ROWID.in_(some))):
            values = tuple(row)
            yield values[-1], row_hash(model, values[:-1])


def _portions(rowids: Iterable[int]) -> Iterator[Sequence[int]]:
    ordered = sorted(rowids)
    for start in range(0, len(ordered), _ROWS_AT_ONCE):
        yield ordered[start : start + _ROWS_AT_ONCE]
