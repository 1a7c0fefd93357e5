"""How far the log has been folded: offsets to read on from, and sequences to tell repetitions.

The offset of a partition belongs to the log that is read (the broker's, or the embedded log's). The
last sequence of each source belongs to the log that recorded first, and is the same wherever the
event was copied to: it makes the position that events carry (events/position.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Reached:
    """How far one source has been folded in one partition."""

    sequence: int = -1
    """The last sequence folded."""
    beyond: int | None = None
    """The highest sequence that came too early; None where nothing is missing."""


class Unread:
    """Which records of one partition are the next ones of their source."""

    def __init__(self, reached: Mapping[str, Reached]) -> None:
        self._reached = dict(reached)
        self._touched: set[str] = set()
        self.duplicates = 0
        self.gaps = 0

    @property
    def reached(self) -> dict[str, Reached]:
        """Where every source stands now."""
        return self._reached

    @property
    def changed(self) -> dict[str, Reached]:
        """Where the sources stand now that moved, or came too early."""
        return {source: self._reached[source] for source in self._touched}

    def accepts(self, record: Record) -> bool:
        """Whether to fold it; what was folded before, or comes too early, is counted and passed."""
        reached = self._reached.get(record.source, Reached())
        if record.sequence <= reached.sequence:
            self.duplicates += 1
            return False
        if record.sequence == reached.sequence + 1:
            caught_up = reached.beyond is None or record.sequence >= reached.beyond
            self._move(record.source, record.sequence, None if caught_up else reached.beyond)
            return True
        self.gaps += 1
        beyond = max(record.sequence, reached.beyond or 0)
        self._move(record.source, reached.sequence, beyond)
        return False

    def refuse(self, record: Record) -> None:
        """Take back an acceptance: the record could not be folded and will come again."""
        self._move(record.source, record.sequence - 1, self._reached[record.source].beyond)

    def _move(self, source: str, sequence: int, beyond: int | None) -> None:
        self._reached[source] = Reached(sequence, beyond)
        self._touched.add(source)


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


def reached_sources(connection: Connection, stream: str, partition: int) -> dict[str, Reached]:
    """Where each source of a partition stands."""
    rows = connection.execute(
        select(SOURCES).where(SOURCES.c.stream == stream, SOURCES.c.partition == partition)
    )
    return {row.source: Reached(row.sequence, row.beyond) for row in rows}


def store_reached(
    connection: Connection, stream: str, partition: int, changed: dict[str, Reached]
) -> None:
    """Write where the sources stand that changed."""
    rows = [
        {
            "stream": stream,
            "partition": partition,
            "source": source,
            "sequence": reached.sequence,
            "beyond": reached.beyond,
        }
        for source, reached in sorted(changed.items())
    ]
    if rows:
        upsert(connection, Source, rows)


def position(connection: Connection) -> Position:
    """How far everything has been folded."""
    found: Position = {name: {} for name in STREAMS}
    rows = connection.execute(
        select(SOURCES)
        .where(SOURCES.c.sequence >= 0)
        .order_by(SOURCES.c.stream, SOURCES.c.partition, SOURCES.c.source)
    )
    for row in rows:
        found[row.stream].setdefault(str(row.partition), {})[row.source] = row.sequence
    return {name: partitions for name, partitions in found.items() if partitions}


def gaps(connection: Connection) -> list[str]:
    """Sources of which something came before what must be folded first, as sentences.

    While a shipper goes back this passes by itself. Where it stays, the log lacks events that a
    source recorded: nothing behind them is folded until they arrive.
    """
    rows = connection.execute(
        select(SOURCES)
        .where(SOURCES.c.beyond.is_not(None))
        .order_by(SOURCES.c.stream, SOURCES.c.partition, SOURCES.c.source)
    )
    return [
        f"{row.stream}/{row.partition} lacks sequence {row.sequence + 1} of source {row.source}, "
        f"of which {row.beyond} has come; ship that source's spool (kintsugi spool drain, with "
        "--again where the log has lost what it had acknowledged)"
        for row in rows
    ]


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
