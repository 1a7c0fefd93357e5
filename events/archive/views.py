"""Read-only views of a log: a part of it, and an archive that a log continues. Not covered: clocks
that were set back. Records are in the order of offsets, and the cut at a time is found by
bisection, which assumes that times never decrease."""

import heapq
from collections.abc import Iterator

from events.archive.archive import Archive, Cut, ReadOnlyLog, ends
from events.errors import LogError, LogTruncated
from events.log import Cursor, EventLog, Record, check_bounds, read_all
from events.streams import STREAMS


class Span(ReadOnlyLog):
    """A log up to a cut."""

    def __init__(self, log: EventLog, end: Cut) -> None:
        self._log = log
        self._end = end

    def read(
        self, stream: str, partition: int, offset: int, limit: int = 500, max_bytes: int = 32 << 20
    ) -> list[Record]:
        end = self._end[stream, partition]
        check_bounds(stream, partition, offset, self._log.start(stream)[partition], end)
        if offset == end:
            return []
        records = self._log.read(stream, partition, offset, min(limit, end - offset), max_bytes)
        return [record for record in records if record.offset < end]

    def start(self, stream: str) -> tuple[int, ...]:
        return self._log.start(stream)

    def end(self, stream: str) -> tuple[int, ...]:
        return tuple(self._end[stream, p] for p in range(STREAMS[stream].partitions))

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        return any(self._end[at] > offset for at, offset in cursor.items())


class ArchiveWithLog(ReadOnlyLog):
    """An archive, continued by its log. Raises LogTruncated for a gap between them, LogError where
    their overlap differs."""

    def __init__(self, archive: Archive, log: EventLog) -> None:
        self._archive = archive
        self._log = log
        self._starts = {stream: log.start(stream) for stream in STREAMS}
        for stream in STREAMS:
            for partition in range(STREAMS[stream].partitions):
                self._check(stream, partition)

    def _check(self, stream: str, partition: int) -> None:
        start, end = self._starts[stream][partition], self._log.end(stream)[partition]
        kept_from, kept_to = (
            self._archive.start(stream)[partition], self._archive.end(stream)[partition],
        )  # fmt: skip
        if start == end == 0:
            return  # the log has no record here: only the archive has
        if kept_to < start:
            raise LogTruncated(
                f"{stream}/{partition} starts at offset {start}, and {self._archive.folder} ends "
                f"at {kept_to}; the events between are in neither, name a later archive"
            )
        common = min(kept_to, end) - 1
        if common < max(start, kept_from):
            return
        ours, theirs = (
            log.read(stream, partition, common, limit=1) for log in (self._log, self._archive)
        )
        if ours != theirs:
            raise LogError(
                f"{self._archive.folder} is an archive of another log: {stream}/{partition} offset "
                f"{common} is another event there; name one of this log"
            )

    def read(
        self, stream: str, partition: int, offset: int, limit: int = 500, max_bytes: int = 32 << 20
    ) -> list[Record]:
        beyond = self._log.end(stream)[partition] <= offset < self._archive.end(stream)[partition]
        if offset < self._starts[stream][partition] or beyond:
            return self._archive.read(stream, partition, offset, limit, max_bytes)
        return self._log.read(stream, partition, offset, limit, max_bytes)

    def start(self, stream: str) -> tuple[int, ...]:
        return tuple(map(min, self._archive.start(stream), self._starts[stream]))

    def end(self, stream: str) -> tuple[int, ...]:
        return tuple(map(max, self._archive.end(stream), self._log.end(stream)))

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        ended = all(
            self._archive.end(stream)[p] <= offset for (stream, p), offset in cursor.items()
        )
        return not ended or self._log.wait(cursor, timeout_seconds)


def starts(log: EventLog) -> Cut:
    """Return the first offset of each partition of a log."""
    return {(stream, p): at for stream in STREAMS for p, at in enumerate(log.start(stream))}


def cut_at(log: EventLog, recorded_ms: int) -> Cut:
    """Return for each partition the offset after the last record up to `recorded_ms`."""
    until = ends(log)
    return {
        at: _first_after(log, at, first, until[at], recorded_ms)
        for at, first in starts(log).items()
    }


def _first_after(log: EventLog, at: tuple[str, int], low: int, high: int, recorded_ms: int) -> int:
    while low < high:
        middle = (low + high) // 2
        records = log.read(*at, middle, limit=1)
        if records and records[0].offset < high and records[0].recorded_ms <= recorded_ms:
            low = records[0].offset + 1
        else:
            high = middle
    return low


def in_time(log: EventLog, start: Cut, end: Cut) -> Iterator[Record]:
    """Yield all partitions' records from `start` to before `end`, in the order of recording."""
    yield from heapq.merge(
        *(_records(log, at, first, end[at]) for at, first in start.items()),
        key=lambda record: record.recorded_ms,
    )


def find_time_span(log: EventLog, end: Cut) -> tuple[int, int]:
    """Return when the first and the last event before `end` were recorded; zeros without events."""
    first = [
        log.read(*at, offset, limit=1) for at, offset in starts(log).items() if offset < end[at]
    ]
    last = [
        log.read(*at, end[at] - 1, limit=1)
        for at, offset in starts(log).items()
        if offset < end[at]
    ]
    firsts, lasts = ([page[0].recorded_ms for page in pages if page] for pages in (first, last))
    return (min(firsts), max(lasts)) if firsts and lasts else (0, 0)


def _records(log: EventLog, at: tuple[str, int], first: int, end: int) -> Iterator[Record]:
    for page in read_all(log, *at, first, end):
        yield from page
