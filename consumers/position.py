"""How far the log has been folded: offsets from which to read on, sequences to detect repetitions.

The offset of a partition belongs to the log that is read: the broker's or the embedded one. The
last sequence of each source belongs to the log that recorded first and is the same in every copy;
the position that events carry (events/position.py) is made from it.

`check_log` asks whether a log still holds the record folded last. Otherwise, a log that was
restored from an earlier copy and has grown beyond the offset would look like the folded one, and
its new events before that offset would be missed. If retention has trimmed that record, the offset
alone tells. Tables of an earlier version lack that record; it is taken from the first log that they
are used with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from consumers.batch import upsert
from consumers.tables import PROJECTION, Offset, Projection, Source
from events.errors import LogDiverged, LogTruncated
from events.log import EventLog, Record, record_sha256
from events.position import Position, entries
from events.streams import STREAMS

OFFSETS: Final = Offset.table()
SOURCES: Final = Source.table()


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far the events of one source are folded in one partition."""

    sequence: int = -1
    """The last sequence folded."""
    beyond: int | None = None
    """The highest sequence that came before its predecessor; None if no sequence is missing."""
    sha256: str | None = None
    """The `record_sha256` of the record folded last; None if it is not known."""


@dataclass(frozen=True, slots=True)
class FoldPosition:
    """How far a partition was folded."""

    next_offset: int = 0
    last_offset: int | None = None
    """The offset of the record folded last; None if it is not known."""
    last_sha256: str | None = None

    def after(self, record: Record) -> "FoldPosition":
        """Return the position after folding `record`."""
        return FoldPosition(record.offset + 1, record.offset, record_sha256(record))


class Unread:
    """Decides which records of a partition to fold: those with their source's next sequence."""

    def __init__(self, reached: Mapping[str, SourcePosition]) -> None:
        self._reached = dict(reached)
        self._last: dict[str, Record] = {}
        """Source -> its last accepted record. The digest is computed only when needed."""
        self._before: tuple[SourcePosition, Record | None] = SourcePosition(), None
        """Source's position and last record before the last acceptance, for `refuse`."""
        self._touched: set[str] = set()
        self.duplicates = 0
        self.gaps = 0
        self.others: list[Record] = []
        """Records that differ from their source's last accepted record of the same sequence."""

    @property
    def positions(self) -> dict[str, SourcePosition]:
        """Return the positions of all sources."""
        return {**self._reached, **self.position_changes}

    @property
    def position_changes(self) -> dict[str, SourcePosition]:
        """Return the positions of sources with a record that was accepted or came too early."""
        return {
            source: replace(self._reached[source], sha256=self._sha256(source))
            for source in self._touched
        }

    def accepts(self, record: Record, raw: Record | None = None) -> bool:
        """Return whether to fold a record; count repetitions and records that come too early. `raw`
        is the record as in the log, if `record` was changed for the tables. Digests are of `raw`,
        so that they can be compared with a spool's."""
        raw = record if raw is None else raw
        reached = self._reached.get(record.source, SourcePosition())
        if record.sequence <= reached.sequence:
            self.duplicates += 1
            if record.sequence == reached.sequence and self._is_another(record.source, raw):
                self.others.append(record)
            return False
        if record.sequence == reached.sequence + 1:
            caught_up = reached.beyond is None or record.sequence >= reached.beyond
            self._move(record, raw, replace(reached, beyond=None) if caught_up else reached)
            return True
        self.gaps += 1
        beyond = max(record.sequence, reached.beyond or 0)
        self._reached[record.source] = replace(reached, beyond=beyond)
        self._touched.add(record.source)
        return False

    def refuse(self, record: Record) -> None:
        """Undo the last acceptance. The record could not be folded and will come again."""
        self._reached[record.source], last = self._before
        if last is None:
            del self._last[record.source]
        else:
            self._last[record.source] = last

    def _move(self, record: Record, raw: Record, reached: SourcePosition) -> None:
        source = record.source
        self._before = self._reached.get(source, SourcePosition()), self._last.get(source)
        self._reached[record.source] = replace(reached, sequence=record.sequence)
        self._last[record.source] = raw
        self._touched.add(record.source)

    def _is_another(self, source: str, raw: Record) -> bool:
        known = self._sha256(source)
        return known is not None and record_sha256(raw) != known

    def _sha256(self, source: str) -> str | None:
        last = self._last.get(source)
        return self._reached[source].sha256 if last is None else record_sha256(last)


def read_fold_version(connection: Connection) -> int | None:
    """Return the version of the folds that filled the tables; None before the first event."""
    columns = Projection.table().c
    query = select(columns.fold_version).where(columns.name == PROJECTION)
    return connection.execute(query).scalar()


def read_fold_position(connection: Connection, stream: str, partition: int) -> FoldPosition:
    """Return how far a partition was folded."""
    return read_fold_positions(connection).get((stream, partition), FoldPosition())


def read_fold_positions(connection: Connection) -> dict[tuple[str, int], FoldPosition]:
    """Return how far each partition was folded; partitions without folded records are left out."""
    return {
        (row.stream, row.partition): FoldPosition(row.next_offset, row.last_offset, row.last_sha256)
        for row in connection.execute(select(OFFSETS))
    }


def check_log(log: EventLog, stream: str, partition: int, stands: FoldPosition) -> None:
    """Check, by reading one record, that a log still holds the record that was folded last. Raise
    LogDiverged if it holds another one there, AheadOfLog if it ends before, and errors as
    EventLog.read."""
    last, known = stands.last_offset, stands.last_sha256
    if last is None or known is None:
        return
    records = _read_last(log, stream, partition, last)
    if records is None or (records and _is(records[0], last, known)):
        return
    if not records:
        log.read(stream, partition, stands.next_offset, limit=1)  # AheadOfLog
    raise LogDiverged(
        f"{stream}/{partition} holds another event at offset {last} than the one that was folded "
        "there; this is another log, or it was restored from before and has grown since: connect "
        "to the right one, or accept this one with kintsugi rebuild --yes"
    )


def _read_last(log: EventLog, stream: str, partition: int, last: int) -> list[Record] | None:
    """Return the record at an offset or after it, [] at the log's end; None if it was trimmed."""
    try:
        return log.read(stream, partition, last, limit=1)
    except LogTruncated:
        return None  # reading on tells whether anything that was not folded went with it


def _is(record: Record, offset: int, sha256: str) -> bool:
    return record.offset == offset and record_sha256(record) == sha256


def recover_last_record(
    log: EventLog, stream: str, partition: int, stands: FoldPosition
) -> FoldPosition | None:
    """Return the position with the last folded record, read from the log, if an earlier version did
    not store that record. Return None if it is stored already or not in the log. Raise errors as
    EventLog.read."""
    if stands.next_offset == 0 or stands.last_sha256 is not None:
        return None
    last = stands.next_offset - 1
    records = _read_last(log, stream, partition, last)
    return stands.after(records[0]) if records and records[0].offset == last else None


def store_last_record(
    connection: Connection, stream: str, partition: int, stands: FoldPosition
) -> None:
    """Store the result of `recover_last_record`, unless the partition was moved meanwhile."""
    connection.execute(
        update(OFFSETS)
        .where(
            *_at(stream, partition),
            OFFSETS.c.next_offset == stands.next_offset,
            OFFSETS.c.last_sha256.is_(None),
        )
        .values(last_offset=stands.last_offset, last_sha256=stands.last_sha256)
    )


def next_offset(connection: Connection, stream: str, partition: int, lock: bool = False) -> int:
    """Return the offset from which to read on; 0 for a partition that was never folded. With
    `lock`, no other transaction can move the offset until this one ends."""
    query = select(OFFSETS.c.next_offset).where(*_at(stream, partition))
    stored = connection.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    return 0 if stored is None else int(stored)


def advance(
    connection: Connection, stream: str, partition: int, old: int, new: FoldPosition
) -> bool:
    """Move the offset from `old` to `new`'s. Return False if another process has moved it."""
    values = {
        "next_offset": new.next_offset,
        "last_offset": new.last_offset,
        "last_sha256": new.last_sha256,
    }
    # RETURNING rather than the driver's row count, which not every statement reports.
    moved = connection.execute(
        update(OFFSETS)
        .where(*_at(stream, partition), OFFSETS.c.next_offset == old)
        .values(**values)
        .returning(OFFSETS.c.next_offset)
    ).first()
    if moved is None and old == 0:
        # The first move: if two runners try it, one inserts the row and the other fails.
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        moved = connection.execute(
            dialect.insert(OFFSETS)
            .values(stream=stream, partition=partition, **values)
            .on_conflict_do_nothing()
            .returning(OFFSETS.c.next_offset)
        ).first()
    return moved is not None


def _at(stream: str, partition: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return OFFSETS.c.stream == stream, OFFSETS.c.partition == partition


def read_source_positions(
    connection: Connection, stream: str, partition: int
) -> dict[str, SourcePosition]:
    """Return the position of each source of a partition."""
    rows = connection.execute(
        select(SOURCES).where(SOURCES.c.stream == stream, SOURCES.c.partition == partition)
    )
    return {
        row.source: SourcePosition(
            row.sequence,
            row.beyond,
            row.last_sha256 if row.last_sequence == row.sequence else None,
        )
        for row in rows
    }


def store_source_positions(
    connection: Connection, stream: str, partition: int, changed: dict[str, SourcePosition]
) -> None:
    """Store the changed positions of sources."""
    rows = [
        {
            "stream": stream,
            "partition": partition,
            "source": source,
            "sequence": reached.sequence,
            "beyond": reached.beyond,
            "last_sequence": None if reached.sha256 is None else reached.sequence,
            "last_sha256": reached.sha256,
        }
        for source, reached in sorted(changed.items())
    ]
    if rows:
        upsert(connection, Source, rows)


def position(connection: Connection) -> Position:
    """Return the position up to which everything has been folded."""
    by_stream: Position = {name: {} for name in STREAMS}
    rows = connection.execute(
        select(SOURCES)
        .where(SOURCES.c.sequence >= 0)
        .order_by(SOURCES.c.stream, SOURCES.c.partition, SOURCES.c.source)
    )
    for row in rows:
        by_stream[row.stream].setdefault(str(row.partition), {})[row.source] = row.sequence
    return {name: partitions for name, partitions in by_stream.items() if partitions}


def gaps(connection: Connection) -> list[str]:
    """Return a sentence for each source with a record that came too early. The gap closes by itself
    while a shipper sends again. If it stays, the log lacks events that the source recorded, and
    their fold waits."""
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


def covers(connection: Connection, wanted: Position, stream: str) -> bool:
    """Return whether all events of `stream` up to `wanted` have been folded."""
    held = position(connection)
    return all(
        held.get(name, {}).get(str(partition), {}).get(source, -1) >= sequence
        for name, partition, source, sequence in entries(wanted)
        if name == stream
    )


def offsets(connection: Connection) -> dict[tuple[str, int], int]:
    """Return (stream, partition) -> next offset to fold, for every partition that was folded."""
    return {at: stands.next_offset for at, stands in read_fold_positions(connection).items()}
