"""Events of other sources in an embedded log, brought back from a broker's archive. They keep
source and sequence in two headers, as on Kafka, or folds could not tell repetitions. The log's own
records follow, numbered from 0 under an id of its own. Not covered: later copies; only a restore
fills a new file (events/archive/restore_sqlite.py)."""

import sqlite3
from typing import Final

from events.envelope import HEADER_SEQUENCE, HEADER_SOURCE
from events.log import Headers, Record

LAYOUT: Final = 3
"""Layout of a file with copies; older versions, which would take them for its own, refuse it."""

SCHEMA: Final = """
CREATE TABLE copied (
    stream TEXT NOT NULL, partition INTEGER NOT NULL, before INTEGER NOT NULL,
    PRIMARY KEY (stream, partition)
) WITHOUT ROWID
"""

Copied = dict[tuple[str, int], int]
"""(stream, partition) -> the offset before which all records are copies; missing: 0."""


def create(connection: sqlite3.Connection, before: Copied) -> None:
    """Record in a new file, within its transaction, that it holds copies."""
    connection.execute(SCHEMA)
    connection.executemany(
        "INSERT INTO copied VALUES (?, ?, ?)", [(*at, offset) for at, offset in before.items()]
    )
    connection.execute("UPDATE meta SET layout = ?", (LAYOUT,))


def read_copies(connection: sqlite3.Connection) -> Copied:
    """Return the offsets where copies end, which never change; empty without copies."""
    table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'copied'").fetchone()
    if table is None:
        return {}
    rows = connection.execute("SELECT stream, partition, before FROM copied")
    return {(stream, partition): before for stream, partition, before in rows}


def add_origin(record: Record) -> Headers:
    """Return the stored headers of a copy."""
    return (
        *record.headers,
        (HEADER_SOURCE, record.source.encode()),
        (HEADER_SEQUENCE, str(record.sequence).encode()),
    )


def split_origin(stored: Headers) -> tuple[str, int, Headers]:
    """Return source, sequence and headers of a copy: the inverse of `add_origin`."""
    *headers, (_, source), (_, sequence) = stored
    return source.decode(), int(sequence), tuple(headers)
