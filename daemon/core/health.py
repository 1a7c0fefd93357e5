"""The state of a fold compared with its log: how far it is behind, and what halts it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from consumers.position import (
    FoldPosition,
    check_log,
    gaps,
    position,
    read_fold_positions,
    read_fold_version,
)
from consumers.tables import FOLD_VERSION
from events.codec import decode
from events.errors import (
    AheadOfLog,
    BadRecord,
    KintsugiError,
    LogDiverged,
    LogError,
    LogTruncated,
    LogUnavailable,
    SchemaAhead,
)
from events.learning import PatternsDiagnosed
from events.log import EventLog
from events.position import Position, entries
from events.sqlite.log import SqliteLog
from events.streams import LEARNING, ROLLOUTS, STREAMS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App


def streams(app: "App") -> dict[str, dict[str, int]]:
    """Return stream -> readable events and bytes (of values in a spool, of files in Kafka)."""
    log = app.readable_log
    if isinstance(log, SqliteLog):
        return log.stats()
    from daemon.core.broker import count_stream_bytes

    held = count_stream_bytes(app.kafka)
    return {name: {"events": _span(log, name), "bytes": held[name]} for name in STREAMS}


def events_in(log: EventLog) -> int:
    """Return the number of offsets that the log spans; in Kafka some may have no event."""
    return sum(_span(log, stream) for stream in STREAMS)


def _span(log: EventLog, stream: str) -> int:
    return sum(log.end(stream)) - sum(log.start(stream))


@dataclass(frozen=True, slots=True)
class FoldState:
    """The position of the tables and their folds' version. Both are read before the log, because
    the log may answer late and PostgreSQL ends transactions that idle meanwhile."""

    version: int | None
    """Version of the folds; None before the first event."""
    standings: dict[tuple[str, int], FoldPosition]
    gaps: list[str]
    """Sentences about missing events without which a source cannot be folded further."""
    position: Position
    """Source -> sequence of the last event that was folded."""

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        """(stream, partition) -> offset of the next event to fold."""
        return {at: stands.next_offset for at, stands in self.standings.items()}


def read_fold_state(connection: "Connection") -> FoldState:
    """Return the position of the tables."""
    return FoldState(
        read_fold_version(connection),
        read_fold_positions(connection),
        gaps(connection),
        position(connection),
    )


def lag(log: EventLog, reached: FoldState) -> dict[str, int]:
    """Return stream -> number of offsets between the fold and the log's end."""
    return {
        stream: sum(
            max(0, end - max(start, reached.offsets.get((stream, partition), 0)))
            for partition, (start, end) in enumerate(
                zip(log.start(stream), log.end(stream), strict=True)
            )
        )
        for stream in STREAMS
    }


def describe_gaps(log: EventLog, reached: FoldState) -> list[str]:
    """Describe events that the fold needs and the log lacks. Raises LogUnavailable."""
    return [*reached.gaps, *_unheld(log, reached)]


def _unheld(log: EventLog, reached: FoldState) -> Iterator[str]:
    offset = reached.offsets.get((LEARNING.name, 0), 0)
    try:
        if lag(log, reached)[ROLLOUTS.name] or offset >= log.end(LEARNING.name)[0]:
            return
        records = log.read(LEARNING.name, 0, offset, limit=1)
        data = decode(records[0], content=False).data if records else None
    except (BadRecord, SchemaAhead, AheadOfLog, LogTruncated):
        return  # such an event halts the fold or becomes a dead letter
    if not isinstance(data, PatternsDiagnosed):
        return
    for stream, partition, source, sequence in entries(data.position):
        held = reached.position.get(stream, {}).get(str(partition), {}).get(source, -1)
        if stream == ROLLOUTS.name and held < sequence:
            yield (
                f"a round at {LEARNING.name}/0@{offset} names {stream}/{partition} up to sequence "
                f"{sequence} of source {source}, of which the log holds up to {held}; ship that "
                "source's spool"
            )


def find_oldest_backlog_ms(log: EventLog, reached: FoldState) -> dict[str, int]:
    """Return stream -> time (Unix ms) of its first event to fold; reads a record per partition."""
    oldest: dict[str, int] = {}
    for stream in STREAMS:
        ends = log.end(stream)
        for partition, start in enumerate(log.start(stream)):
            offset = max(start, reached.offsets.get((stream, partition), 0))
            if offset < ends[partition]:
                for record in log.read(stream, partition, offset, limit=1):
                    oldest[stream] = min(record.recorded_ms, oldest.get(stream, record.recorded_ms))
    return oldest


HaltReason = Literal["fold_version", "schema_ahead", "truncated", "ahead_of_log", "diverged", "log"]

_REASONS: Final[Mapping[type[KintsugiError], HaltReason]] = {
    SchemaAhead: "schema_ahead",
    LogTruncated: "truncated",
    AheadOfLog: "ahead_of_log",
    LogDiverged: "diverged",
}
"""Class of an error that halts a fold -> reason; other errors have the reason `log`."""


@dataclass(frozen=True, slots=True)
class Halt:
    """A reason that stops a fold."""

    reason: HaltReason
    text: str
    place: str = "all streams"
    """Partition and offset of the next event."""


def halts(log: EventLog, reached: FoldState) -> list[str]:
    """Return a sentence for each result of `find_halts`."""
    return [halt.text for halt in find_halts(log, reached)]


def find_halts(log: EventLog, reached: FoldState) -> list[Halt]:
    """Return the reasons that would halt a fold now. Raises LogUnavailable (no reason)."""
    result: list[Halt] = []
    if reached.version not in (None, FOLD_VERSION):
        text = (
            f"the tables were folded by version {reached.version} of the folds, this is version "
            f"{FOLD_VERSION}; run kintsugi rebuild"
        )
        result.append(Halt("fold_version", text))
    for stream in STREAMS:
        ends = log.end(stream)
        for partition, start in enumerate(log.start(stream)):
            stands = reached.standings.get((stream, partition), FoldPosition())
            # Reading at an unfolded empty partition would tell nothing.
            reads = stands.next_offset != ends[partition] or start > stands.next_offset
            result += _halt_at(log, stream, partition, stands, reads)
    return result


def _halt_at(
    log: EventLog, stream: str, partition: int, stands: FoldPosition, reads: bool
) -> list[Halt]:
    try:
        check_log(log, stream, partition, stands)
        for record in log.read(stream, partition, stands.next_offset, limit=1) if reads else ():
            decode(record, content=False)
    except BadRecord:
        return []  # becomes a dead letter, and the fold continues
    except LogUnavailable:
        raise
    except (SchemaAhead, LogError) as error:
        place = f"{stream}/{partition} offset {stands.next_offset}"
        return [Halt(_REASONS.get(type(error), "log"), str(error), place)]
    return []
