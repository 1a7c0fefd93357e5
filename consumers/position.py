"""How far the log has been folded: offsets to read on from, and sequences to tell repetitions.

The offset of a partition belongs to the log that is read (the broker's, or the embedded log's). The
last sequence of each source belongs to the log that recorded first, and is the same wherever the
event was copied to: it makes the position that events carry (events/position.py).
"""

from typing import Final

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from consumers.batch import upsert
from consumers.tables import Offset, Source
from events.log import Record
from events.position import Position, entries
from events.streams import STREAMS

OFFSETS: Final = Offset.table()
SOURCES: Final = Source.table()


class Unread:
    """Which records of one partition are the next ones of their source."""

    def __init__(self, last: dict[str, int]) -> None:
        self._last = last
        self.changed: dict[str, int] = {}
        self.duplicates = 0
        self.gaps = 0

    def accepts(self, record: Record) -> bool:
        """Whether to fold it; what was folded before, or comes too early, is counted and passed."""
        expected = self._last.get(record.source, -1) + 1
        if record.sequence != expected:
            self.duplicates += record.sequence < expected
            self.gaps += record.sequence > expected
            return False
        self._last[record.source] = self.changed[record.source] = record.sequence
        return True

    def refuse(self, record: Record) -> None:
        """Take back an acceptance: the record could not be folded and will come again."""
        self._last[record.source] = self.changed[record.source] = record.sequence - 1


def next_offset(connection: Connection, stream: str, partition: int, lock: bool = False) -> int:
    """Where to read on; 0 for a partition that was never folded.

    With `lock` no other transaction moves it until this one ends (SQLite's write lock does the same
    by itself).
    """
    query = select(OFFSETS.c.next_offset).where(*_at(stream, partition))
    stored = connection.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    return 0 if stored is None else int(stored)


def advance(connection: Connection, stream: str, partition: int, old: int, new: int) -> bool:
    """Move the offset from `old` to `new`; False when somebody else has moved it."""
    # RETURNING rather than the driver's row count, which not every statement reports.
    moved = connection.execute(
        update(OFFSETS)
        .where(*_at(stream, partition), OFFSETS.c.next_offset == old)
        .values(next_offset=new)
        .returning(OFFSETS.c.next_offset)
    ).first()
    if moved is None and old == 0:
        # The very first move: of two runners that try, one inserts and the other is fenced.
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        moved = connection.execute(
            dialect.insert(OFFSETS)
            .values(stream=stream, partition=partition, next_offset=new)
            .on_conflict_do_nothing()
            .returning(OFFSETS.c.next_offset)
        ).first()
    return moved is not None


def _at(stream: str, partition: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return OFFSETS.c.stream == stream, OFFSETS.c.partition == partition


def last_sequences(connection: Connection, stream: str, partition: int) -> dict[str, int]:
    """The last sequence folded of each source of a partition."""
    rows = connection.execute(
        select(SOURCES.c.source, SOURCES.c.sequence).where(
            SOURCES.c.stream == stream, SOURCES.c.partition == partition
        )
    )
    return {row.source: row.sequence for row in rows}


def store_sequences(
    connection: Connection, stream: str, partition: int, changed: dict[str, int]
) -> None:
    """Write the last sequences that moved."""
    rows = [
        {"stream": stream, "partition": partition, "source": source, "sequence": sequence}
        for source, sequence in sorted(changed.items())
    ]
    if rows:
        upsert(connection, Source, rows)


def position(connection: Connection) -> Position:
    """How far everything has been folded."""
    found: Position = {name: {} for name in STREAMS}
    rows = connection.execute(
        select(SOURCES).order_by(SOURCES.c.stream, SOURCES.c.partition, SOURCES.c.source)
    )
    for row in rows:
        found[row.stream].setdefault(str(row.partition), {})[row.source] = row.sequence
    return {name: partitions for name, partitions in found.items() if partitions}


def covered(connection: Connection, wanted: Position, stream: str) -> bool:
    """Whether everything of `stream` that `wanted` names has been folded."""
    held = position(connection)
    return all(
        held.get(name, {}).get(str(partition), {}).get(source, -1) >= sequence
        for name, partition, source, sequence in entries(wanted)
        if name == stream
    )


def offsets(connection: Connection) -> dict[tuple[str, int], int]:
    """The next offset of every partition that was folded."""
    return {
        (row.stream, row.partition): row.next_offset for row in connection.execute(select(OFFSETS))
    }
