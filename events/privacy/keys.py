"""The key store: one key per person. It is a database apart from the log: a SQLite file in the
home, or a database by URL. No log can restore a key.

Guarantee: a key is durable before `of` returns it; concurrent processes get the same key for a
person; a destroyed key is overwritten in the file. A key stays cached for `FRESH_SECONDS`. Not
covered: copies of the file, and overwritten blocks that a disk keeps.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    insert,
    select,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    ProgrammingError,
)

from events import private
from events.errors import LogUnavailable
from events.privacy.database_url import hide_secrets, parse_database_url, render_database_url
from events.privacy.sealing import Key, new_secret
from events.sqlite.file import readable

FRESH_SECONDS: Final = 5.0
"""Seconds for which a cached key is used. Data sealed with a destroyed key is lost."""

_REMEMBERED: Final = 10_000
_BUSY_SECONDS: Final = 5

_METADATA: Final = MetaData()
_KEYS: Final = Table(
    "person_keys",
    _METADATA,
    Column("keyid", String(64), primary_key=True),
    Column("person", String(256), nullable=False, unique=True),
    Column("secret", LargeBinary(64), nullable=False),
)


class KeysUnavailable(LogUnavailable):
    """The key store cannot be read or written now."""


class KeyStore:
    """Keys by person and by id. Blocking; raises KeysUnavailable."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_person: dict[str, tuple[Key, float]] = {}
        self._by_id: dict[str, tuple[Key, float]] = {}
        self._engine = _open_engine(url)
        self._where = render_database_url(self._engine.url)
        self._has_table = False

    def close(self) -> None:
        """Release the connections."""
        self._engine.dispose()

    def find_in_memory(self, person: str) -> Key | None:
        """Return the key of a person from memory; never blocks."""
        return _fresh(self._by_person.get(person), self._clock())

    def of(self, person: str) -> Key:
        """Return a person's key. Make it if it does not exist; it is durable on return."""
        key = self.find_in_memory(person)
        if key is not None:
            return key
        return self._remember(self.find_in_store(person) or self._create(person))

    def find(self, keyid: str) -> Key | None:
        """Return the key with this id, or None."""
        key = _fresh(self._by_id.get(keyid), self._clock())
        if key is not None:
            return key
        stored = self._row(_KEYS.c.keyid == keyid)
        return None if stored is None else self._remember(stored)

    def find_in_store(self, person: str) -> Key | None:
        """Return the stored key of a person, or None."""
        return self._row(_KEYS.c.person == person)

    def ids(self) -> frozenset[str]:
        """Return the ids of all stored keys."""
        with self._transaction() as connection:
            return frozenset(connection.execute(select(_KEYS.c.keyid)).scalars())

    def destroy(self, keyid: str) -> bool:
        """Destroy a key and forget its person. Return whether the key existed."""
        with self._transaction() as connection:
            done = connection.execute(delete(_KEYS).where(_KEYS.c.keyid == keyid))
        self._by_id.pop(keyid, None)
        self._by_person = {n: entry for n, entry in self._by_person.items() if entry[0].id != keyid}
        return bool(done.rowcount)

    def _create(self, person: str) -> Key:
        key = Key(str(uuid4()), person, new_secret())
        row = {"keyid": key.id, "person": person, "secret": key.secret}
        try:
            with self._transaction() as connection:
                connection.execute(insert(_KEYS).values(row))
        except IntegrityError:
            # Another process stored a key first; use that key.
            return self.find_in_store(person) or self._create(person)
        return key

    def _row(self, condition: Any) -> Key | None:
        with self._transaction() as connection:
            row = connection.execute(select(_KEYS).where(condition)).first()
        return None if row is None else Key(row.keyid, row.person, bytes(row.secret))

    def _remember(self, key: Key) -> Key:
        until = self._clock() + FRESH_SECONDS
        for cache, name in ((self._by_person, key.person), (self._by_id, key.id)):
            if len(cache) >= _REMEMBERED:
                cache.clear()
            cache[name] = (key, until)
        return key

    def _make_table(self) -> None:
        try:
            _METADATA.create_all(self._engine)
        except (IntegrityError, ProgrammingError):
            # PostgreSQL raises this if another process made the table at the same time.
            _METADATA.create_all(self._engine)
        self._has_table = True

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Run a transaction. Driver errors become KeysUnavailable with one sentence."""
        try:
            if not self._has_table:
                # Made at first use, so a gateway can start while the store is down.
                self._make_table()
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise
        except (DBAPIError, OSError) as error:
            why = error.orig if isinstance(error, DBAPIError) else error
            message = hide_secrets(" ".join(str(why).split()), self._engine.url)
            raise KeysUnavailable(
                f"the key store {self._where} cannot be used: {message}; make it reachable and "
                "writable, or set privacy.keys_url"
            ) from error


def _fresh(remembered: tuple[Key, float] | None, now: float) -> Key | None:
    return remembered[0] if remembered is not None and now < remembered[1] else None


def _open_engine(url: str) -> Engine:
    try:
        parsed = parse_database_url(url)
    except ValueError as error:
        raise _unusable_url(str(error)) from error
    try:
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed)
        return create_engine(
            # psycopg 3 is our driver; SQLAlchemy's default for postgresql:// is psycopg2.
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={"connect_timeout": _BUSY_SECONDS},
        )
    except (ArgumentError, NoSuchModuleError, ValueError, OSError) as error:
        raise _unusable_url(hide_secrets(str(error), parsed)) from error


def _unusable_url(why: str) -> KeysUnavailable:
    return KeysUnavailable(
        f"setting privacy.keys_url cannot be used: {why}; write sqlite:///PATH or "
        "postgresql://USER@HOST/NAME"
    )


def _refuse_foreign(path: Path) -> None:
    """Raise KeysUnavailable where a file holds another program's tables. The file is only read."""
    if not path.is_file():
        return
    try:
        with closing(readable(path)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    except sqlite3.Error:
        return  # the later opening of the store meets the same error and explains it
    if names and _KEYS.name not in names:
        raise KeysUnavailable(
            f"the key store {path} holds tables of another program; move it away, or set "
            "privacy.keys_url to another file"
        )


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    _refuse_foreign(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # SQLite itself would make the file readable for other users.
    private.create_file(path)
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def configure(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        # No WAL: it could hold a destroyed key until it is overwritten.
        cursor.execute("PRAGMA journal_mode=DELETE")
        cursor.execute("PRAGMA secure_delete=ON")
        cursor.execute("PRAGMA synchronous=EXTRA")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
