"""Events of other sources that an embedded log holds: those of a broker's archive, brought back.

An embedded log numbers what it records itself, so that a record needs no more than its offset. The
records of several homes each keep the source and the sequence that they had, or a fold could not
tell them from repetitions. Both stand where Kafka has them, in two headers of
the record, and `read_copies` says per partition up to where. What the log records itself follows,
under an id of its own, numbered from 0 behind the last copy.

Not covered: copies that come later. Only a new file is filled like this
(events/archive/restore_sqlite.py).
"""

import sqlite3
from typing import Final

from events.envelope import HEADER_SEQUENCE, HEADER_SOURCE
from events.log import Headers, Record

LAYOUT: Final = 3
"""Layout of a file with copies: a version that does not know them would take them for the log's own
events."""

SCHEMA: Final = """
CREATE TABLE copied (
    stream TEXT NOT NULL, partition INTEGER NOT NULL, before INTEGER NOT NULL,
    PRIMARY KEY (stream, partition)
) WITHOUT ROWID
"""

Copied = dict[tuple[str, int], int]
"""(stream, partition) -> the offset before which all records are copies; 0 where it is missing."""


def create(connection: sqlite3.Connection, before: Copied) -> None:
    """Record in a new file, within its transaction, that it holds copies."""
    connection.execute(SCHEMA)
    connection.executemany(
        "INSERT INTO copied VALUES (?, ?, ?)", [(*at, offset) for at, offset in before.items()]
    )
    connection.execute("UPDATE meta SET layout = ?", (LAYOUT,))


def read_copies(connection: sqlite3.Connection) -> Copied:
    """Return the offsets at which a file's copies end, which never change; empty where all events
    are the log's own."""
    table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'copied'").fetchone()
    if table is None:
        return {}
    rows = connection.execute("SELECT stream, partition, before FROM copied")
    return {(stream, partition): before for stream, partition, before in rows}


def add_origin(record: Record) -> Headers:
    """The headers of a copy as they are stored."""
    return (
        *record.headers,
        (HEADER_SOURCE, record.source.encode()),
        (HEADER_SEQUENCE, str(record.sequence).encode()),
    )


def split_origin(stored: Headers) -> tuple[str, int, Headers]:
    """Source, sequence and headers of a copy: the inverse of `add_origin`."""
    *headers, (_, source), (_, sequence) = stored
    return source.decode(), int(sequence), tuple(headers)
