"""Restores the embedded log from an archive, with the same offsets, times, sources, sequences and
bytes. A home's log keeps its id and numbers. A broker's log, with events of several homes, becomes
a log of copies (events/sqlite/imported.py) with a new id, so that no home exists twice."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from events.archive.archive import Archive, RestoreResult, check_dense
from events.archive.export import copy_blobs
from events.blobs import BlobStore
from events.envelope import new_id
from events.errors import LogError
from events.log import Record
from events.sqlite import imported
from events.sqlite.file import create_with_records
from events.sqlite.log import columns_of


def restore(
    archive: Archive, path: Path, blobs: BlobStore, advance: Callable[[int], None] = lambda _: None
) -> RestoreResult:
    """Restore all blobs, then all records in one transaction, into a new file at `path`. Raises
    LogCorrupt, BlobError, and LogError for an existing file or records that an embedded log cannot
    hold. After an error there is no file."""
    check_dense(archive)
    source = archive.manifest.source
    count = copied = 0

    def fill(connection: sqlite3.Connection) -> None:
        nonlocal count, copied
        for segment in archive.manifest.segments:
            records = archive.records(segment)
            connection.executemany(
                "INSERT INTO record (stream, partition, recorded_ms, crc, key, headers, value, "
                '"offset") VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
                (
                    (*columns_of(_prepare_record(record, source, archive)), record.offset)
                    for record in records
                ),
            )
            copied += copy_blobs(records, archive.blobs, blobs)
            count += len(records)
            advance(len(records))
        _bounds(connection, archive)
        if source is None:
            imported.create(connection, archive.manifest.ends())

    create_with_records(path, new_id() if source is None else source, fill)
    return RestoreResult(count, copied)


def _prepare_record(record: Record, source: str | None, archive: Archive) -> Record:
    """Return the record as the file of log `source` stores it (None: a log of copies). Raises
    LogError if the record is of another source."""
    if source is None:
        return replace(record, headers=imported.add_origin(record))
    if (record.source, record.sequence) != (source, record.offset):
        raise LogError(
            f"{archive.folder} says that it is of log {source}, and holds {record.stream}/"
            f"{record.partition} offset {record.offset} of source {record.source} at "
            f"{record.sequence}; restore the archive from another copy"
        )
    return record


def _bounds(connection: sqlite3.Connection, archive: Archive) -> None:
    sizes = {
        (stream, partition): size
        for stream, partition, size in connection.execute(
            "SELECT stream, partition, sum(length(value)) FROM record GROUP BY stream, partition"
        )
    }
    for (stream, partition), end in archive.manifest.ends().items():
        start = archive.manifest.starts[stream][partition]
        connection.execute(
            "INSERT INTO partition VALUES (?, ?, ?, ?, ?)",
            (stream, partition, start, end, sizes.get((stream, partition), 0)),
        )
