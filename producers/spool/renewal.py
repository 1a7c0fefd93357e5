"""Gives a spool that was restored from a backup a new id, in a new file. Under the old id, its next
events would get sequences that the broker has already, and folds would drop them. Unshipped records
are copied to the new log with their event ids. A record that was shipped after the backup is then
in the log twice under one id, and folds drop the second. The old file stays beside it, named after
its source.

Guarantees: `path` always holds a whole log; after a kill, the renewal can be run again. Not
covered: receipts, so a call that is retried after it goes to the engine again.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from events.errors import LogUnavailable
from events.files import sync_folder
from events.log import Entry, Record, read_all
from events.sqlite.file import translate_error, writable
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from producers.spool.owner import FILE, open_idle_spool


@dataclass(frozen=True, slots=True)
class RenewalResult:
    """The result of a renewal."""

    before: str
    """Id of the spool before the renewal."""
    source: str
    events: int
    """Number of copied unshipped events."""
    kept: Path
    """Path of the old file, unchanged."""


def renew(home: Path) -> RenewalResult:
    """Give a home's spool a new id. Raises SpoolInUse if a process has it open, or LogError."""
    path = home / FILE
    temporary = path.with_name(f".{FILE}.renewed")
    _remove(temporary)
    with open_idle_spool(path) as spool:
        kept = path.with_name(f"{path.stem}.{spool.source}.db")
        with closing(SqliteLog(temporary)) as fresh:
            count = sum(_copy(spool, fresh, stream) for stream in STREAMS)
            result = RenewalResult(spool.source, fresh.source, count, kept)
        _settle(path)
        if not kept.exists():
            os.link(path, kept)
        # From here on, the write-ahead log's name belongs to the new file.
        spool.close()
        _check_wal_empty(path)
        temporary.replace(path)
        sync_folder(path.parent)
    return result


def _copy(spool: SqliteLog, fresh: SqliteLog, stream: str) -> int:
    """Copy a stream's unshipped records to `fresh`; return their number."""
    count = 0
    bounds = zip(
        spool.start(stream), spool.read_ship_offsets(stream), spool.end(stream), strict=True
    )
    for partition, (start, shipped, end) in enumerate(bounds):
        for page in read_all(spool, stream, partition, max(start, shipped), end):
            fresh.append([_entry(record) for record in page])
            count += len(page)
    return count


def _entry(record: Record) -> Entry:
    return Entry(
        record.stream, record.partition, record.key, record.headers, record.value,
        record.recorded_ms,
    )  # fmt: skip


def _settle(path: Path) -> None:
    try:
        with closing(writable(path, "power")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise translate_error(error, path) from error


def _check_wal_empty(path: Path) -> None:
    beside = path.with_name(f"{path.name}-wal")
    if beside.exists() and beside.stat().st_size:
        raise LogUnavailable(
            f"{path} is open in another process, which reads it; stop that one and try again"
        )
    _remove(path, itself=False)


def _remove(path: Path, itself: bool = True) -> None:
    for suffix in ("", "-wal", "-shm") if itself else ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
