"""Counts a spool's records, and those that are not in Kafka yet. It only reads: a few rows, and a
record per partition with a backlog. Not covered: whether a shipper runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from events.sqlite.log import SqliteLog
from events.streams import STREAMS


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """State of one stream of a spool."""

    events: int
    bytes: int
    shipped: tuple[int, ...]
    """Per partition, the offset after the last record that the broker acknowledged."""
    unshipped: int
    oldest_unshipped_ms: int | None
    """Recording time of the first unshipped record in Unix milliseconds; None without one."""


def read_backlog(spool: SqliteLog) -> Mapping[str, StreamBacklog]:
    """Return the backlog of each stream. Raises LogError."""
    stats = spool.stats()
    return {name: _read_stream(spool, name, stats[name]) for name in STREAMS}


def _read_stream(spool: SqliteLog, stream: str, stats: Mapping[str, int]) -> StreamBacklog:
    # In this order, concurrent appends count as unshipped, and no count is negative.
    shipped, ends = spool.read_ship_offsets(stream), spool.end(stream)
    starts = spool.start(stream)
    oldest = [
        record.recorded_ms
        for partition, (start, done, end) in enumerate(zip(starts, shipped, ends, strict=True))
        if done < end
        for record in spool.read(stream, partition, max(start, done), limit=1)
    ]
    return StreamBacklog(
        events=stats["events"],
        bytes=stats["bytes"],
        shipped=shipped,
        unshipped=sum(end - done for done, end in zip(shipped, ends, strict=True)),
        oldest_unshipped_ms=min(oldest, default=None),
    )
