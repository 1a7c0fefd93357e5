"""Copies of other sources' events in an embedded log, restored from a broker's archive. Two headers
keep their source and sequence, as on Kafka, so folds recognise duplicates. The log's own records
follow, numbered from 0 under its own id. Not covered: adding copies later. Only a restore into a
new file makes them (events/archive/restore_sqlite.py)."""

import sqlite3
from typing import Final

from events.envelope import HEADER_SEQUENCE, HEADER_SOURCE
from events.log import Headers, Record

LAYOUT: Final = 3
"""Layout of a file with copies. Older versions refuse it; they would misread the copies."""

SCHEMA: Final = """
CREATE TABLE copied (
    stream TEXT NOT NULL, partition INTEGER NOT NULL, before INTEGER NOT NULL,
    PRIMARY KEY (stream, partition)
) WITHOUT ROWID
"""

Copied = dict[tuple[str, int], int]
"""(stream, partition) -> first offset after the copies; 0 if there is no entry."""


def create(connection: sqlite3.Connection, before: Copied) -> None:
    """Store in a new file, within its transaction, where its copies end."""
    connection.execute(SCHEMA)
    connection.executemany(
        "INSERT INTO copied VALUES (?, ?, ?)", [(*at, offset) for at, offset in before.items()]
    )
    connection.execute("UPDATE meta SET layout = ?", (LAYOUT,))


def read_copies(connection: sqlite3.Connection) -> Copied:
    """Return the offsets where the copies end; empty without copies. They never change."""
    table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'copied'").fetchone()
    if table is None:
        return {}
    rows = connection.execute("SELECT stream, partition, before FROM copied")
    return {(stream, partition): before for stream, partition, before in rows}


def add_origin(record: Record) -> Headers:
    """Return a copy's stored headers: the record's headers plus source and sequence."""
    return (
        *record.headers,
        (HEADER_SOURCE, record.source.encode()),
        (HEADER_SEQUENCE, str(record.sequence).encode()),
    )


def split_origin(stored: Headers) -> tuple[str, int, Headers]:
    """Return source, sequence and headers of a copy: the inverse of `add_origin`."""
    *headers, (_, source), (_, sequence) = stored
    return source.decode(), int(sequence), tuple(headers)
