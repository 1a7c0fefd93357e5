"""The state of an environment: tables of JSON records that are cheap to reset, hash and compare.

    Database(tables)        the pristine state; its tables are never changed afterwards
    fresh = pristine.fork() a state of its own, in constant time
    fresh.edit("orders", k) a private copy of one record, to be changed in place

Tools read tables as plain dicts and change a record only through `edit`, `put` and `remove`. So a
reset copies nothing, and a comparison looks only at touched records. The digest is tau2-bench's
database hash: sha256 over `json.dumps(tables, sort_keys=True)`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Record = Any
"""A JSON value, mostly an object."""

Tables = dict[str, dict[str, Record]]


# One encoder for all calls: json.dumps with options would build one at every call.
_ENCODER: Final = json.JSONEncoder(sort_keys=True, default=str)


class _Absent(str):
    """A text that can be told apart, by identity, from an equal text in a record."""

    __slots__ = ()


ABSENT: Final = _Absent("<absent>")
"""The mark, in a difference, of a value that does not exist."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two states."""

    path: tuple[str, ...]
    """Table, record id, then keys of objects and positions in lists."""
    expected: Any
    """The expected value; `ABSENT` if the expected state has none."""
    actual: Any


class Database:
    """Tables of records. A record is copied when it is changed."""

    __slots__ = ("_dumps", "_pristine", "_tables", "_touched")

    def __init__(self, tables: Mapping[str, Mapping[str, Record]]) -> None:
        """Take over the tables: the caller must not change them afterwards."""
        self._pristine: Tables = {name: dict(records) for name, records in tables.items()}
        self._tables: Tables = dict(self._pristine)
        self._touched: dict[str, set[str]] = {}
        self._dumps: dict[str, dict[str, str]] = {}
        """JSON of pristine records, made once and shared by all forks."""

    def fork(self) -> "Database":
        """Return a new independent state that begins as the pristine one, without changes."""
        database = Database.__new__(Database)
        database._pristine = self._pristine
        database._tables = dict(self._pristine)
        database._touched = {}
        database._dumps = self._dumps
        return database

    def copy(self) -> "Database":
        """Return an independent copy of this state with its changes."""
        database = self.fork()
        for name, keys in self._touched.items():
            table = self._tables[name]
            for key in keys:
                if key in table:
                    database.put(name, key, copy_json(table[key]))
                elif key in database[name]:
                    database.remove(name, key)
        return database

    def as_pristine(self) -> "Database":
        """Return this state as a new pristine one, so that forks of it begin with its changes."""
        return Database(self._tables) if self._touched else self

    def __getitem__(self, table: str) -> dict[str, Record]:
        """Return a table for reading."""
        return self._tables[table]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._tables)

    def edit(self, table: str, key: str) -> Record:
        """Return a private copy of a record that may be changed in place. Raise KeyError."""
        records = self._tables[table]
        if key in self._touched.get(table, ()):
            return records[key]
        record = copy_json(records[key])
        self._own(table)[key] = record
        self._touched[table].add(key)
        return record

    def put(self, table: str, key: str, record: Record) -> None:
        """Insert or replace a record."""
        self._own(table)[key] = record
        self._touched[table].add(key)

    def remove(self, table: str, key: str) -> None:
        """Delete a record. Raise KeyError."""
        del self._own(table)[key]
        self._touched[table].add(key)

    def _own(self, table: str) -> dict[str, Record]:
        if table not in self._touched:
            self._tables[table] = dict(self._tables[table])
            self._touched[table] = set()
        return self._tables[table]

    def digest(self) -> str:
        """Return the SHA-256 of the whole state in hexadecimal."""
        hashed = hashlib.sha256(b"{")
        for place, name in enumerate(sorted(self._tables)):
            start = f"{', ' if place else ''}{json.dumps(name)}: {{"
            hashed.update((start + ", ".join(self._members(name)) + "}").encode())
        hashed.update(b"}")
        return hashed.hexdigest()

    def _members(self, name: str) -> Iterator[str]:
        touched = self._touched.get(name, ())
        dumps = self._dumps.setdefault(name, {})
        if not dumps:
            pristine = self._pristine[name]
            dumps |= {key: _member(key, pristine[key]) for key in sorted(pristine)}
        if not touched:
            yield from dumps.values()
            return
        table = self._tables[name]
        for key in sorted(table):
            yield _member(key, table[key]) if key in touched else dumps[key]

    def same(self, other: "Database") -> bool:
        """Return whether the digests are equal, without hashing forks of one state."""
        if self._pristine is not other._pristine:
            return self.digest() == other.digest()
        if not self._touched and not other._touched:
            return True
        return next(self.find_mismatches(other), None) is None

    def difference(self, actual: "Database") -> tuple[Difference, ...]:
        """Return each value in which `actual` differs from this, the expected state, by path."""
        differences: list[Difference] = []
        for name, key in sorted(self.find_mismatches(actual)):
            expected, is_now = self[name].get(key, ABSENT), actual[name].get(key, ABSENT)
            differences.extend(_differences((name, key), expected, is_now))
        return tuple(differences)

    def find_mismatches(self, other: "Database") -> Iterator[tuple[str, str]]:
        """Yield table and key of each record that differs between the two states."""
        for name in {*self._tables, *other._tables}:
            mine, others = self._tables.get(name, {}), other._tables.get(name, {})
            keys: set[str]
            if self._pristine is other._pristine:
                keys = self._touched.get(name, set()) | other._touched.get(name, set())
            else:
                keys = {*mine, *others}
            for key in keys:
                if _differ(mine.get(key, ABSENT), others.get(key, ABSENT)):
                    yield name, key


def _member(key: str, record: Record) -> str:
    return f"{json.dumps(key)}: {_dump(record)}"


def _differ(record: Record, other: Record) -> bool:
    if record is other:
        return False
    return record is ABSENT or other is ABSENT or _dump(record) != _dump(other)


def _dump(record: Record) -> str:
    return _ENCODER.encode(record)


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value. Tuples become lists, as JSON writes them."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy_json(item) for item in value]
    return value


def _differences(path: tuple[str, ...], expected: Any, actual: Any) -> Iterator[Difference]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}):
            yield from _differences(
                (*path, str(key)), expected.get(key, ABSENT), actual.get(key, ABSENT)
            )
    elif isinstance(expected, list) and isinstance(actual, list):
        for place in range(max(len(expected), len(actual))):
            yield from _differences(
                (*path, str(place)),
                expected[place] if place < len(expected) else ABSENT,
                actual[place] if place < len(actual) else ABSENT,
            )
    elif _differ(expected, actual):
        yield Difference(path, expected, actual)
