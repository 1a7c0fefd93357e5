"""The projection database: SQLite embedded, PostgreSQL in production.

A connection that will write uses `write_transaction`, because SQLite must take its write lock at
the start: a lock taken later can fail in the middle. Reads never wait for writers. SQLite runs with
synchronous=NORMAL: a power cut may lose the newest commits. It loses rows and positions together,
so the fold continues from the older position.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
)

from events import private
from events.errors import KintsugiError, WrongUsage
from events.privacy.database_url import hide_secrets, parse_database_url, render_database_url
from events.sqlite.file import readable

T = TypeVar("T")

BUSY_SECONDS: Final = 5
"""Seconds that SQLite waits for another process's write lock."""

_POSTGRES_OPTIONS: Final = "-c idle_in_transaction_session_timeout=15s -c lock_timeout=10s"
"""Time limits, so that a runner paused in a transaction loses it and another can take over."""

_FOLDED: Final = "positions"
"""A table that every folded database has."""

_REVISION: Final = "alembic_version"

_NAMES: Final = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"

_TRANSIENT_STATES: Final = frozenset({"08", "25", "40", "53", "55", "57", "58"})
"""SQLSTATE classes: connection, transaction state, rollback, resources, locks, operator, system."""

_LASTING_STATES: Final = frozenset({"21", "22", "23", "54"})
"""SQLSTATE classes of errors that a retry with the same rows would meet again: a row twice in one
statement, an impossible value, a constraint, a limit of the program (an index row that is too
large)."""


class DatabaseError(KintsugiError):
    """The projection database cannot be used."""


class DatabaseUnavailable(DatabaseError):
    """Transient: down, restarting, locked for too long, or out of space."""


class DatabaseMismatch(DatabaseError):
    """The tables do not fit this version of the code."""


class NoTables(WrongUsage):
    """The file or database holds no tables of kintsugi."""


def open_tables(name: str) -> Engine:
    """Return an engine for the tables in a file or at a URL. Raise NoTables. It creates no file and
    opens no other program's file for writing."""
    url = name if "://" in name else sqlite_url(Path(name))
    engine = open_database(url)
    try:
        if engine.url.get_backend_name() == "sqlite":
            tables = tables_in(Path(engine.url.database or ""))
        else:
            tables = set(inspect(engine).get_table_names())
    except DBAPIError as error:
        raise explain(error, engine) from error
    if _FOLDED not in tables:
        engine.dispose()
        shown = render_database_url(engine.url) if "://" in name else repr(name)
        raise NoTables(
            f"{shown} holds no tables of kintsugi; name a kintsugi.db, or what kintsugi replay made"
        )
    return engine


def refuse_foreign(engine: Engine) -> None:
    """Raise DatabaseMismatch if the SQLite file of an engine holds another program's tables. The
    file is opened for reading only. A missing or empty file, or one of another format, passes."""
    path = Path(engine.url.database or "")
    if engine.dialect.name != "sqlite" or not path.is_file():
        return
    try:
        with closing(readable(path)) as connection:
            names = sorted(name for (name,) in connection.execute(_NAMES))
    except sqlite3.Error:
        return  # the code that opens the tables meets the same error and explains it
    if names and not {_FOLDED, _REVISION} <= set(names):
        raise DatabaseMismatch(
            f"database {path} holds tables of another program ({', '.join(names)[:80]}); move it "
            "away, or set database_url to another file"
        )


def tables_in(path: Path) -> set[str]:
    """Return the names of a SQLite file's tables. Raise NoTables if `path` is no such file."""
    if not path.is_file():
        raise NoTables(f"{str(path)!r} is no file; name one that is there")
    try:
        with closing(readable(path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise NoTables(f"{path} is no database ({error}); name one that is there") from error


def open_database(url: str, schema: str | None = None) -> Engine:
    """Return an engine for `url` without a connection. Raise DatabaseError. `schema` replaces
    PostgreSQL's default schema."""
    try:
        parsed = parse_database_url(url)
    except ValueError as error:
        raise DatabaseError(f"database URL cannot be used: {error}") from error
    try:
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(url)
        if parsed.get_backend_name() != "postgresql":
            raise DatabaseError(
                f"database {parsed.get_backend_name()!r} is not supported; use sqlite:///PATH or "
                "postgresql://USER@HOST/NAME"
            )
        options = _POSTGRES_OPTIONS + (f" -c search_path={schema}" if schema else "")
        # psycopg 3 is the driver we ship; a bare postgresql:// would look for psycopg2.
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={"connect_timeout": 5, "options": options},
        )
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        why = hide_secrets(str(error), parsed)
        raise DatabaseError(f"database URL cannot be used: {why}") from error


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file, whose path may contain any characters."""
    # Characters that begin a URL's query, fragment or escape.
    return "sqlite:///" + re.sub("[%?#]", lambda match: f"%{ord(match[0]):02X}", str(path))


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "do_connect")
    def keep_private(_dialect: Any, _record: Any, arguments: Any, _options: Any) -> None:
        # Create the file before SQLite does: SQLite gives the files beside it the same mode.
        name = str(arguments[0]) if arguments else ":memory:"
        path = Path(name)
        if name and not name.startswith((":", "file:")) and path.parent.is_dir():
            for file in (f"{name}-wal", f"{name}-shm"):
                private.tighten(Path(file))
            with suppress(OSError):  # SQLite reports the error
                private.create_file(path)

    @event.listens_for(engine, "connect")
    def configure(dbapi_connection: Any, _record: Any) -> None:
        # SQLAlchemy's own BEGIN below decides; the driver must not open transactions by itself.
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("kintsugi_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction that will write."""
    with (
        engine.connect().execution_options(kintsugi_writes=True) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def read_transaction(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that only reads: one consistent view for all its queries."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            # By default, each statement sees all commits up to its own start.
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


def clock(connection: Connection) -> float:
    """Return the database's clock, in seconds since 1970."""
    question = (
        "SELECT extract(epoch FROM clock_timestamp())"
        if connection.dialect.name == "postgresql"
        else "SELECT (julianday('now') - 2440587.5) * 86400.0"
    )
    return float(connection.execute(text(question)).scalar_one())


def read_revision(engine: Engine) -> str | None:
    """Return the revision of a database's tables, if it has any. Raise DatabaseUnavailable."""
    try:
        with read_transaction(engine) as connection:
            value = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except DBAPIError as error:
        why = explain(error, engine)
        if isinstance(why, DatabaseMismatch):
            return None
        raise why from error
    return None if value is None else str(value)


def is_transient(error: BaseException) -> bool:
    """Return whether a retry can help: down, locked, deadlock, serialization failure, disk full."""
    if not isinstance(error, DBAPIError) or _lacks_table(error) or is_permanent(error):
        return False
    # Drivers file some of them under other classes: PostgreSQL's end of a transaction that idled
    # too long (a paused process) is an "internal error".
    state = getattr(error.orig, "sqlstate", None) or ""
    return isinstance(error, OperationalError | InterfaceError) or state[:2] in _TRANSIENT_STATES


def is_permanent(error: BaseException) -> bool:
    """Return whether the written values cause the error, so that every retry will meet it again."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return True  # raised by a driver that could not bind a value
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    if state is not None:
        return state[:2] in _LASTING_STATES
    return isinstance(error, DataError | IntegrityError)


def _lacks_table(error: BaseException) -> bool:
    # SQLite reports a missing table as an operational error, PostgreSQL as a programming error.
    text = str(error)
    return "no such table" in text or "no such column" in text


def explain(error: DBAPIError, engine: Engine) -> DatabaseError:
    """Return a DatabaseError that explains a driver's error in one sentence."""
    where = render_database_url(engine.url)
    cause = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    cause = hide_secrets(cause, engine.url)
    if isinstance(error, ProgrammingError) or _lacks_table(error):
        return DatabaseMismatch(
            f"database {where} lacks what this version needs ({cause}); run kintsugi db upgrade"
        )
    return DatabaseUnavailable(
        f"database {where} cannot be used now ({cause}); check that it runs, is writable and has "
        "free space"
    )


def retry_transient(
    work: Callable[[], T], engine: Engine, patience_seconds: float, sleep: Callable[[float], None]
) -> T:
    """Return the result of `work`, retried with backoff while the database is transiently unusable.
    Raise DatabaseUnavailable if it still is after `patience_seconds`, DatabaseMismatch at once."""
    deadline = time.monotonic() + patience_seconds
    pause = 0.05
    while True:
        try:
            return work()
        except DBAPIError as error:
            if not is_transient(error) or time.monotonic() + pause > deadline:
                raise explain(error, engine) from error
            sleep(pause)
            pause = min(2 * pause, 2.0)
