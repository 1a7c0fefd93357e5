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
"""Whether acknowledged data survives a power cut too, or only the death of a process."""

LAYOUT: Final = 2
"""Layout of a file. Layout 1 becomes 2 when opened to append. Only a restore makes layout 3."""

BUSY_SECONDS: Final = 5.0
"""Seconds that an append waits for appends of other processes before it fails."""

WAL_BYTES = 64 << 20
"""Size in bytes at which the write-ahead log is emptied. Appends wait for that, because on a slow
disk it would grow without limit. The database needs as much free space again."""

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
# With key `place`, every insert is at the right edge of the tree. With key (stream, partition,
# offset), appends of 20 KB values had half the rate.

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
    """Create an empty log at `path`, durable on return. Do nothing if the file exists."""
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
    """Create the log `source` in a new file at `path`; `fill` writes in the same transaction. It is
    durable on return; after an error there is no file. Raises LogError if the file exists."""
    if path.exists():
        raise LogError(f"{path} is there already; restore into an empty home")
    if not _build(path, source, fill):
        raise LogError(f"{path} was made by another process meanwhile; restore into an empty home")


def _build(path: Path, source: str, fill: Callable[[sqlite3.Connection], None]) -> bool:
    """Build the file. Return False if another process created a file at `path` first."""
    temporary = path.with_name(f".{path.name}.{new_id()}")
    try:
        # Create it privately first: SQLite gives its -wal and -shm files the same mode.
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
    """Return a connection that can only read."""
    # A read-only file system has no writers, and SQLite could not make its shared memory.
    frozen = os.statvfs(path.parent).f_flag & os.ST_RDONLY and not _wal(path).exists()
    return _connect(path, "mode=ro&immutable=1" if frozen else "mode=ro", BUSY_SECONDS)


def _connect(path: Path, mode: str, busy_seconds: float) -> sqlite3.Connection:
    # Several threads may use a connection, but only one at a time.
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
    """Return the log's id. Raises LogError if the file is no log, or has a newer layout."""
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
    """Upgrade the file to this layout: add missing tables and partitions. Needs write access."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(RECEIPTS)
    connection.execute("UPDATE meta SET layout = ? WHERE layout < ?", (LAYOUT, LAYOUT))
    connection.executemany(
        "INSERT OR IGNORE INTO partition (stream, partition) VALUES (?, ?)",
        [(stream.name, p) for stream in STREAMS.values() for p in range(stream.partitions)],
    )
    connection.execute("COMMIT")


def translate_error(error: sqlite3.Error, path: Path) -> LogError:
    """Return kintsugi's error, with the remedy, for an error of SQLite."""
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
    # On a full disk, SQLite reports an I/O error if its shared-memory file cannot grow (32 KiB).
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize < 1 << 16
