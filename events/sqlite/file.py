"""The embedded log's file: layout, opening, errors. A new file is built under a temporary name and
linked into place whole; of several processes that create one log, the first wins."""

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

from events import private
from events.envelope import new_id
from events.errors import LogCorrupt, LogError, LogFull, LogReadOnly, LogUnavailable
from events.log import Headers
from events.sqlite.imported import LAYOUT as WITH_COPIES
from events.sqlite.receipts import SCHEMA as RECEIPTS
from events.streams import STREAMS

Durability = Literal["power", "process"]
"""Event that acknowledged data survives: a power cut, or only the death of a process."""

LAYOUT: Final = 2
"""Layout of a file. Opening layout 1 to append adds receipts. A restore alone makes layout 3."""

BUSY_SECONDS: Final = 5.0
"""Seconds that an append waits for the appends of other processes before it fails."""

WAL_BYTES = 64 << 20
"""Bytes at which the write-ahead log restarts; appends wait while its rest moves, or it would
outgrow a slow disk. Moving it takes as much space again in the database."""

_SYNCHRONOUS: Final = {"power": "FULL", "process": "NORMAL"}

_SCHEMA: Final = """
CREATE TABLE meta (log TEXT NOT NULL, layout INTEGER NOT NULL);
CREATE TABLE partition (
    stream TEXT NOT NULL, partition INTEGER NOT NULL,
    start INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stream, partition)
) WITHOUT ROWID;
CREATE TABLE record (
    place INTEGER PRIMARY KEY,
    stream TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    recorded_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    key TEXT NOT NULL, headers BLOB NOT NULL, value BLOB NOT NULL,
    UNIQUE (stream, partition, "offset")
);
CREATE TABLE shipped (
    stream TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (stream, partition)
) WITHOUT ROWID;
"""
# `place` makes every insert an append at the right edge of the tree; with (stream, partition,
# offset) as the table's own key 20 KB values were appended at half the rate.

_HEADER: Final = struct.Struct("<HI")


def pack_headers(headers: Headers) -> bytes:
    """Pack per header: u16 length of the name, u32 of the value, little-endian, name, value."""
    packed = bytearray()
    for name, value in headers:
        encoded = name.encode()
        packed += _HEADER.pack(len(encoded), len(value)) + encoded + value
    return bytes(packed)


def unpack_headers(packed: bytes) -> Headers:
    """Return the headers of `pack_headers`' bytes."""
    headers: list[tuple[str, bytes]] = []
    at = 0
    while at < len(packed):
        name_length, value_length = _HEADER.unpack_from(packed, at)
        middle = at + _HEADER.size + name_length
        name = packed[at + _HEADER.size : middle].decode()
        at = middle + value_length
        headers.append((name, packed[middle:at]))
    return tuple(headers)


def create(path: Path) -> None:
    """Put an empty log at `path` unless something is there; durable on return."""
    if path.exists():
        for file in (path, _wal(path), path.with_name(f"{path.name}-shm")):
            private.tighten(file)
        return
    if not path.parent.is_dir():
        raise LogError(
            f"{path} cannot be created: its folder does not exist; create it or mount its disk"
        )
    _build(path, new_id(), lambda _: None)


def create_with_records(
    path: Path, source: str, fill: Callable[[sqlite3.Connection], None]
) -> None:
    """Make the log `source` at `path`, where nothing may be, with the writes of `fill` in one
    transaction. It is durable and whole on return; after an error nothing is there."""
    if path.exists():
        raise LogError(f"{path} is there already; restore into an empty home")
    if not _build(path, source, fill):
        raise LogError(f"{path} was made by another process meanwhile; restore into an empty home")


def _build(path: Path, source: str, fill: Callable[[sqlite3.Connection], None]) -> bool:
    """Build the file; return whether it is the one at `path`, where no process was first."""
    temporary = path.with_name(f".{path.name}.{new_id()}")
    try:
        # Before SQLite does, which gives the files beside it the same mode.
        private.create_file(temporary)
        with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN")
            for statement in (*_SCHEMA.split(";"), RECEIPTS):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES (?, ?)", (source, LAYOUT))
            fill(connection)
            connection.execute("COMMIT")
        return _link(temporary, path)
    except sqlite3.Error as error:
        raise translate_error(error, path) from error
    except OSError as error:
        raise LogReadOnly(
            f"{path} cannot be created: {error.strerror}; choose another folder"
        ) from error
    finally:
        for remains in path.parent.glob(f"{temporary.name}*"):
            remains.unlink()


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False  # another process created the log in the meantime
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def writable(
    path: Path, durability: Durability, busy_seconds: float = BUSY_SECONDS
) -> sqlite3.Connection:
    """Return a connection that may append."""
    connection = _connect(path, "mode=rw", busy_seconds)
    for setting in (
        f"synchronous={_SYNCHRONOUS[durability]}",
        "fullfsync=ON",  # macOS: an ordinary fsync leaves the bytes in the drive's cache
        "checkpoint_fullfsync=ON",
        "wal_autocheckpoint=0",  # writer.py does it without holding up an append
    ):
        connection.execute(f"PRAGMA {setting}")
    return connection


def readable(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads."""
    # On a read-only file system no process can write, and SQLite cannot make the shared memory that
    # it would need to see a writer.
    frozen = os.statvfs(path.parent).f_flag & os.ST_RDONLY and not _wal(path).exists()
    return _connect(path, "mode=ro&immutable=1" if frozen else "mode=ro", BUSY_SECONDS)


def _connect(path: Path, mode: str, busy_seconds: float) -> sqlite3.Connection:
    # A connection is never used by two threads at once; it may be by one after another.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def identity(connection: sqlite3.Connection, path: Path) -> str:
    """Return the log's id. Raises LogError for a file without a log, or of a later layout."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    columns = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('meta')")}
    row = None
    if {"meta", "partition", "record"} <= tables and {"log", "layout"} <= columns:
        row = connection.execute("SELECT log, layout FROM meta").fetchone()
    if row is None or not isinstance(row[1], int):
        raise LogError(f"{path} is no log of kintsugi; move it away or name another file")
    log, layout = row
    if layout > WITH_COPIES:
        raise LogError(
            f"{path} has layout {layout}, this kintsugi reads up to {WITH_COPIES}; upgrade this "
            "process"
        )
    return str(log)


def bring_up(connection: sqlite3.Connection) -> None:
    """Add an earlier layout's missing tables and partitions. Fails if read-only."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(RECEIPTS)
    connection.execute("UPDATE meta SET layout = ? WHERE layout < ?", (LAYOUT, LAYOUT))
    connection.executemany(
        "INSERT OR IGNORE INTO partition (stream, partition) VALUES (?, ?)",
        [(stream.name, p) for stream in STREAMS.values() for p in range(stream.partitions)],
    )
    connection.execute("COMMIT")


def translate_error(error: sqlite3.Error, path: Path) -> LogError:
    """Return our error for one of SQLite, with the remedy."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _space_is_short(path)):
        return LogFull(
            f"{path} cannot grow, its disk is full; free space in {path.parent}, more than "
            f"{WAL_BYTES >> 20} MB"
        )
    if code == sqlite3.SQLITE_READONLY:
        return LogReadOnly(
            f"{path} may not be written to; make file and folder writable or open it to read only"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return LogReadOnly(
            f"{path} cannot be opened; check that it exists and that its folder is writable, or "
            "copy it with its -wal file to one that is"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LogUnavailable(
            f"{path} was locked by another process for {BUSY_SECONDS:g} s; try again, or find who "
            "holds it with `fuser`"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LogCorrupt(f"{path} is damaged or no database ({error}); restore it from a copy")
    if code == sqlite3.SQLITE_IOERR:
        return LogUnavailable(f"{path} met an I/O error ({error}); check its disk and its quota")
    return LogError(f"{path} failed ({error}); this is a bug, please report it")


def _space_is_short(path: Path) -> bool:
    # The shared-memory file grows by 32 KiB at once and SQLite calls its ENOSPC an I/O error.
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize < 1 << 16
