"""The embedded log back from an archive, bit for bit: the same id, offsets, times and bytes.

    restore(archive, path)    put the log at `path`, where nothing may be

The embedded log holds what it recorded itself and nothing else, so an archive of a broker's log,
with events of several sources, cannot become one.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from events.archive import Archive
from events.blobs import BlobStore
from events.envelope import minted_id
from events.errors import LogError
from events.exporting import copy_blobs
from events.log import Record
from events.sqlite import columns_of
from events.sqlite_file import restored


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore brought back."""

    events: int
    blobs: int


def restore(
    archive: Archive, path: Path, blobs: BlobStore, advance: Callable[[int], None] = lambda _: None
) -> Restored:
    """Every record of the archive, in one transaction, after the blobs that they name. Raises
    LogCorrupt for a damaged segment, BlobError for a damaged blob, LogError for records that no
    embedded log can hold; then there is no log."""
    source = _source(archive)
    count = copied = 0

    def fill(connection: sqlite3.Connection) -> None:
        nonlocal count, copied
        for segment in archive.manifest.segments:
            records = archive.records(segment)
            _check(records, source, archive)
            connection.executemany(
                "INSERT INTO record (stream, partition, recorded_ms, crc, key, headers, value, "
                '"offset") VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
                ((*columns_of(record), record.offset) for record in records),
            )
            copied += copy_blobs(records, archive.blobs, blobs)
            count += len(records)
            advance(len(records))
        _bounds(connection, archive)

    restored(path, source, fill)
    return Restored(count, copied)


def _source(archive: Archive) -> str:
    """The id that the log had; a new one for an archive that holds nothing and names nobody."""
    if archive.manifest.source is not None:
        return archive.manifest.source
    if not archive.manifest.segments:
        return minted_id()
    return archive.records(archive.manifest.segments[0])[0].source


def _check(records: list[Record], source: str, archive: Archive) -> None:
    for record in records:
        if record.source != source or record.sequence != record.offset:
            raise LogError(
                f"{archive.folder} holds {record.stream}/{record.partition} offset "
                f"{record.offset} of source {record.source} at {record.sequence}: it is of a "
                "broker, and an embedded log holds one source's own offsets; import an export of "
                "that source's home"
            )


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
