"""The embedded log: one SQLite file in WAL mode. With Kafka it is the spool of a shipper.

Guarantees: a returned append survives `kill -9` of any process, and with durability "power" a power
cut (one fsync per group of appends); a batch is in the log whole or not at all; offsets are dense
per partition, also with concurrent processes; every record has a checksum that reads verify. Not
covered: network file systems (SQLite's locks fail on them), and use across `fork`: in the child, a
log opened before raises LogError and must be opened again.
"""

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from events.errors import AheadOfLog, LogCorrupt, LogDiverged, LogError, LogReadOnly
from events.log import Cursor, Entry, Place, Record, check_bounds, check_size, now_ms
from events.sqlite import imported, receipts
from events.sqlite.file import (
    Durability,
    bring_up,
    create,
    identity,
    pack_headers,
    readable,
    translate_error,
    unpack_headers,
    writable,
)
from events.sqlite.receipts import Receipt
from events.sqlite.writer import GroupWriter
from events.streams import STREAMS

_POLL_SECONDS: Final = 0.01
"""Seconds between checks by `wait` for other processes' commits; a check takes 7 microseconds."""

_TRIM_RECORDS: Final = 500
"""Records dropped per transaction, so that trimming delays appends only briefly."""

Row = tuple[str, int, int, int, str, bytes, bytes]
"""Columns of an entry: stream, partition, recorded_ms, crc, key, packed headers, value."""


class SqliteLog:
    """The log in the file `path`, which is created unless `read_only`. Raises LogReadOnly,
    LogCorrupt for a damaged file or no database, LogFull, LogUnavailable; LogError if the folder is
    missing, the database is no log, or its layout is newer."""

    def __init__(
        self, path: Path, *, durability: Durability = "power", read_only: bool = False
    ) -> None:
        self.path = path
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._writer: GroupWriter | None = None
        if not read_only:
            create(path)
        elif not path.exists():
            raise LogError(f"{path} does not exist; name the file of a log")
        self._file = _file_at(path)
        with self._snapshot() as connection:
            self.source = identity(connection, path)
            """The log's id, which is never used again."""
            self._copied = imported.read_copies(connection)
        if not read_only:
            self._writer = self._open_writer(durability)

    def _open_writer(self, durability: Durability) -> GroupWriter:
        try:
            with closing(writable(self.path, durability)) as connection:
                bring_up(connection)
            return GroupWriter(self.path, durability, self._notify)
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error

    @property
    def only_source(self) -> str | None:
        """Return the log's id; None if the log also holds copies of other sources."""
        return None if self._copied else self.source

    def copy_end(self, stream: str, partition: int) -> int:
        """Return the partition's first offset after copies of other sources; 0 without."""
        return self._copied.get((stream, partition), 0)

    @property
    def pending(self) -> int:
        """Return the number of appends that were accepted and are not finished."""
        return self._writer.pending if self._writer else 0

    @property
    def commits(self) -> int:
        """Return the number of this process's transactions; one may hold several appends."""
        return self._writer.commits if self._writer else 0

    def append(self, entries: Sequence[Entry]) -> list[Place]:
        return self.begin_append(entries).result()

    def begin_append(
        self, entries: Sequence[Entry], receipt: Receipt | None = None
    ) -> Future[list[Place]]:
        """Start an append without waiting. The future is done when the entries are durable, and has
        the errors of `append`. The receipt is stored if and only if the entries are."""
        writer = self._write()
        # Checked before the batch shares a transaction, so a bad entry only fails its own batch.
        rows = [columns_of(entry) for entry in entries]
        if not rows:
            nothing: Future[list[Place]] = Future()
            nothing.set_result([])
            return nothing
        size = sum(len(row[-1]) for row in rows) + (len(receipt.value) if receipt else 0)
        return writer.begin(lambda c: _insert(c, rows, receipt), size)

    def receipt(self, key: str) -> bytes | None:
        """Return the value of the receipt under `key`; None without one from the last day."""
        self._write()  # raises for a read-only log, which may have a layout without receipts
        with self._snapshot() as connection:
            return receipts.get(connection, key, now_ms())

    def read(
        self, stream: str, partition: int, offset: int, limit: int = 500, max_bytes: int = 32 << 20
    ) -> list[Record]:
        with self._snapshot() as connection:
            check_bounds(stream, partition, offset, *_bounds(connection, stream, partition))
            rows = connection.execute(
                'SELECT "offset", recorded_ms, crc, key, headers, value FROM record '
                'WHERE stream = ? AND partition = ? AND "offset" >= ? ORDER BY "offset" LIMIT ?',
                (stream, partition, offset, limit),
            )
            with closing(rows):
                return self._within(stream, partition, rows, max_bytes)

    def _within(
        self, stream: str, partition: int, rows: sqlite3.Cursor, max_bytes: int
    ) -> list[Record]:
        """Return the first records whose values fit into `max_bytes`, but at least one."""
        records: list[Record] = []
        total = 0
        copied = self.copy_end(stream, partition)
        for offset, recorded_ms, crc, key, headers, value in rows:
            total += len(value)
            if records and total > max_bytes:
                break
            if _crc(key, headers, value) != crc:
                raise LogCorrupt(
                    f"{stream}/{partition} offset {offset} in {self.path} does not match its "
                    "checksum; restore the file from a copy"
                )
            source, sequence, unpacked = self.source, offset - copied, unpack_headers(headers)
            if offset < copied:
                source, sequence, unpacked = imported.split_origin(unpacked)
            records.append(
                Record(
                    stream, partition, offset, source, sequence, key, unpacked, value, recorded_ms
                )
            )
        return records

    def start(self, stream: str) -> tuple[int, ...]:
        return self._per_partition("start", stream)

    def end(self, stream: str) -> tuple[int, ...]:
        return self._per_partition("next", stream)

    def read_ship_offsets(self, stream: str) -> tuple[int, ...]:
        """Return per partition the offset after the last shipped record, else the log's start."""
        return self._per_partition("shipped", stream)

    def _per_partition(self, column: str, stream: str) -> tuple[int, ...]:
        with self._snapshot() as connection:
            rows = connection.execute(
                f"SELECT partition, {column} FROM (SELECT p.*, ifnull(next_offset, 0) AS shipped "
                "FROM partition AS p LEFT JOIN shipped USING (stream, partition)) "
                "WHERE stream = ?",
                (stream,),
            )
            values = dict(rows.fetchall())
        return tuple(values.get(p, 0) for p in range(STREAMS[stream].partitions))

    def store_ship_offset(self, stream: str, partition: int, next_offset: int) -> None:
        """Store that all below `next_offset` is shipped; never moves back. Raises AheadOfLog."""

        def move(connection: sqlite3.Connection) -> None:
            _, end = _bounds(connection, stream, partition)
            if next_offset > end:
                raise AheadOfLog(
                    f"{stream}/{partition} ends at offset {end}, so {next_offset} cannot have been "
                    "shipped; this is another log or it was wiped"
                )
            connection.execute(
                "INSERT INTO shipped VALUES (?, ?, ?) ON CONFLICT DO UPDATE "
                "SET next_offset = max(next_offset, excluded.next_offset)",
                (stream, partition, next_offset),
            )

        self._write().submit(move)

    def reset_ship_offsets(self) -> None:
        """Forget which records were shipped, so that shipping restarts. The caller must hold the
        shipper's lock, because a running shipper would mark records again."""

        def move(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO shipped SELECT stream, partition, start FROM partition"
            )

        self._write().submit(move)

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        seen = None
        with self._connection() as connection:
            while True:
                # It changes with every commit of another connection, in any process.
                version = connection.execute("PRAGMA data_version").fetchone()
                if version != seen and _has_records_after(connection, cursor):
                    return True
                seen = version
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                with self._changed:
                    self._changed.wait(min(remaining, _POLL_SECONDS))

    def trim(self, stream: str, partition: int, before: int) -> None:
        writer = self._write()
        while writer.submit(lambda c: _trim(c, stream, partition, before)):
            pass

    def stats(self) -> dict[str, dict[str, int]]:
        """Return per stream the number of readable `events`, and the `bytes` of their values."""
        with self._snapshot() as connection:
            rows = connection.execute(
                "SELECT stream, sum(next - start), sum(bytes) FROM partition GROUP BY stream"
            )
            counts = {stream: {"events": events, "bytes": held} for stream, events, held in rows}
        return {name: counts.get(name, {"events": 0, "bytes": 0}) for name in STREAMS}

    def check(self) -> list[str]:
        """Return the file's defects as sentences; empty if sound. Reads the whole file."""
        try:
            with self._snapshot() as connection:
                return [*_damage(connection), *_gaps(connection), *_checksum_errors(connection)]
        except LogCorrupt as error:
            return [str(error)]

    def close(self) -> None:
        """Finish accepted appends. A second call, or a call after a fork, does nothing."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._notify()
        self._close_idle()
        # The writer is last: only a writing connection removes the -wal file when it closes.
        if self._writer is not None:
            self._writer.close()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _write(self) -> GroupWriter:
        self._check_usable()
        if self._writer is None:
            raise LogReadOnly(f"{self.path} was opened to read only; open it to append as well")
        return self._writer

    def _check_usable(self) -> None:
        if self._closed:
            raise LogError(f"{self.path} was closed; open it again")
        if os.getpid() != self._process:
            raise LogError(f"{self.path} was opened before a fork; open it again in the child")
        # Appends to a removed file would be lost.
        if _file_at(self.path) != self._file:
            raise LogDiverged(
                f"{self.path} was replaced or removed while this process had it open; stop every "
                "process of the home before its log is restored, and start this one again"
            )

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield a reading connection for this thread only; keep it for later use."""
        self._check_usable()
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = readable(self.path)
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._idle.append(connection)
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error
        if self._closed:
            self._close_idle()

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, so that all reads see the same state."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            yield connection


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def columns_of(entry: Entry | Record) -> Row:
    """Return the stored columns of an entry. Raises TooLarge or ValueError for a bad entry."""
    check_size(entry)
    count = STREAMS[entry.stream].partitions
    if not 0 <= entry.partition < count:
        raise ValueError(f"{entry.stream} has {count} partitions, none is {entry.partition}")
    if abs(entry.recorded_ms) >= 2**63:
        raise ValueError(f"recorded_ms {entry.recorded_ms} is no time in Unix milliseconds")
    headers = pack_headers(entry.headers)
    crc = _crc(entry.key, headers, entry.value)
    return (
        entry.stream, entry.partition, entry.recorded_ms, crc, entry.key, headers, entry.value,
    )  # fmt: skip


def _crc(key: str, headers: bytes, value: bytes) -> int:
    return crc32(value, crc32(headers, crc32(key.encode())))


def _insert(
    connection: sqlite3.Connection, rows: list[Row], receipt: Receipt | None
) -> list[Place]:
    """Insert rows within a write transaction, which excludes other processes; set the offsets."""
    following: dict[tuple[str, int], int] = {}
    sizes: Counter[tuple[str, int]] = Counter()
    counts = Counter((row[0], row[1]) for row in rows)
    for row in rows:
        sizes[row[0], row[1]] += len(row[-1])
    for at, count in counts.items():
        (end,) = connection.execute(
            "UPDATE partition SET next = next + ?, bytes = bytes + ? "
            "WHERE stream = ? AND partition = ? RETURNING next",
            (count, sizes[at], *at),
        ).fetchone()
        following[at] = end - count
    places: list[Place] = []
    for row in rows:
        at = (row[0], row[1])
        places.append(Place(*at, following[at]))
        following[at] += 1
    connection.executemany(
        "INSERT INTO record (stream, partition, recorded_ms, crc, key, headers, value, "
        '"offset") VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
        [(*row, place.offset) for row, place in zip(rows, places, strict=True)],
    )
    if receipt is not None:
        receipts.put(connection, receipt, now_ms())
    return places


def _bounds(connection: sqlite3.Connection, stream: str, partition: int) -> tuple[int, int]:
    row = connection.execute(
        "SELECT start, next FROM partition WHERE stream = ? AND partition = ?",
        (stream, partition),
    ).fetchone()
    if row is None:
        raise LogError(f"the log has no partition {stream}/{partition}; see events/streams.py")
    return int(row[0]), int(row[1])


def _has_records_after(connection: sqlite3.Connection, cursor: Cursor) -> bool:
    ends = connection.execute("SELECT stream, partition, next FROM partition").fetchall()
    return any(end > cursor.get((stream, p), end) for stream, p, end in ends)


def _trim(connection: sqlite3.Connection, stream: str, partition: int, before: int) -> bool:
    """Delete up to `_TRIM_RECORDS` records; return whether more remain to delete."""
    start, end = _bounds(connection, stream, partition)
    target = min(before, end)
    reached = min(target, start + _TRIM_RECORDS)
    if reached <= start:
        return False
    (dropped,) = connection.execute(
        'SELECT sum(length(value)) FROM record WHERE stream = ? AND partition = ? AND "offset" < ?',
        (stream, partition, reached),
    ).fetchone()
    connection.execute(
        'DELETE FROM record WHERE stream = ? AND partition = ? AND "offset" < ?',
        (stream, partition, reached),
    )
    connection.execute(
        "UPDATE partition SET start = ?, bytes = bytes - ? WHERE stream = ? AND partition = ?",
        (reached, dropped, stream, partition),
    )
    return reached < target


def _damage(connection: sqlite3.Connection) -> Iterator[str]:
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"SQLite finds the file damaged: {line}."


def _gaps(connection: sqlite3.Connection) -> Iterator[str]:
    counted = connection.execute(
        'SELECT stream, partition, count(*), min("offset"), max("offset"), sum(length(value)) '
        "FROM record GROUP BY stream, partition"
    ).fetchall()
    by_partition: dict[tuple[str, int], tuple[Any, ...]] = {
        (row[0], row[1]): row[2:] for row in counted
    }
    for stream, p, start, end, held in connection.execute("SELECT * FROM partition").fetchall():
        expected = (end - start, start, end - 1, held) if end > start else None
        actual = by_partition.pop((stream, p), None)
        if actual != expected:
            yield (
                f"{stream}/{p} should hold offsets {start} to {end} (exclusive) and {held} bytes; "
                f"its records say (count, first, last, bytes) {actual}."
            )
    for stream, p in by_partition:
        yield f"{stream}/{p} has records and is not in the list of partitions."


def _checksum_errors(connection: sqlite3.Connection) -> Iterator[str]:
    rows = connection.execute(
        'SELECT stream, partition, "offset", crc, key, headers, value FROM record ORDER BY place'
    )
    for stream, partition, offset, crc, *stored in rows:
        if _crc(*stored) != crc:
            yield f"{stream}/{partition} offset {offset} does not match its checksum."
