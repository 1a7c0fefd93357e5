"""The log's interface: append a batch durably, read from an offset, wait for more. All
implementations pass one test suite (tests/contract). A broker may leave holes between offsets, so
callers must not rely on offset + 1.

Guarantees: an append that returned survives a crash of any process, and on the embedded log a power
cut; there a batch is also appended whole or not at all. Reads never skip a record silently. Not
covered: deleting single records, and order across partitions.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from events.errors import AheadOfLog, LogTruncated, TooLarge
from events.streams import MAX_VALUE_BYTES

Headers = tuple[tuple[str, bytes], ...]

SOURCE_CHARACTERS: Final = 256
"""Longest source name in characters, since it is in table keys. Our names have at most 36."""

READ_RECORDS: Final = 500
"""Records per page in `read_all`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event to append to a log."""

    stream: str
    partition: int
    key: str
    headers: Headers
    value: bytes
    recorded_ms: int
    """Time of recording in Unix milliseconds; shipping a spool does not change it."""


@dataclass(frozen=True, slots=True)
class Record:
    """An event of a log."""

    stream: str
    partition: int
    offset: int
    """Position in this partition of this log; a copy in another log may have another offset."""
    source: str
    """Id of the log that recorded the event first."""
    sequence: int
    """Its offset in that log: dense per (source, partition), so a fold accepts only the next."""
    key: str
    headers: Headers
    value: bytes
    recorded_ms: int


@dataclass(frozen=True, slots=True)
class Place:
    """Stream, partition and offset of an appended entry."""

    stream: str
    partition: int
    offset: int


Cursor = Mapping[tuple[str, int], int]
"""(stream, partition) -> next offset to read."""


class EventLog(Protocol):
    """An append-only log of partitioned streams."""

    def append(self, entries: Sequence[Entry]) -> list[Place]:
        """Append in order; return when all is durable. Raises TooLarge (nothing was appended),
        LogFull, LogReadOnly or LogUnavailable (nothing of the batch was acknowledged)."""
        ...

    def read(
        self, stream: str, partition: int, offset: int, limit: int = 500, max_bytes: int = 32 << 20
    ) -> list[Record]:
        """Return records from `offset` on, at most `limit` and about `max_bytes` of values; empty
        only at the end. Raises LogTruncated, AheadOfLog, LogCorrupt, LogUnavailable."""
        ...

    def start(self, stream: str) -> tuple[int, ...]:
        """Return the first readable offset per partition."""
        ...

    def end(self, stream: str) -> tuple[int, ...]:
        """Return the offset of the next record per partition."""
        ...

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        """Wait for a record at or beyond `cursor` in a partition; return whether one came."""
        ...

    def trim(self, stream: str, partition: int, before: int) -> None:
        """Drop records below offset `before`; the start moves there."""
        ...

    def close(self) -> None:
        """Finish accepted appends; release files, threads and sockets."""
        ...


def is_origin(source: str, sequence: int) -> bool:
    """Return whether source and sequence are valid: a short source, a sequence of 63 bits."""
    return 0 < len(source) <= SOURCE_CHARACTERS and "\x00" not in source and 0 <= sequence < 2**63


def now_ms() -> int:
    """Return the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def check_size(entry: Entry | Record) -> None:
    """Raise TooLarge for a value that no record may hold."""
    if len(entry.value) > MAX_VALUE_BYTES:
        raise TooLarge(
            f"value of {len(entry.value):,} bytes for {entry.stream}/{entry.partition}, a record "
            f"holds at most {MAX_VALUE_BYTES:,}; put its body into a blob"
        )


def record_sha256(record: Record) -> str:
    """Return the hex digest of source, sequence, key, headers and value: the same in each log."""
    hasher = hashlib.sha256()
    parts = [record.source.encode(), str(record.sequence).encode(), record.key.encode()]
    for name, content in record.headers:
        parts += [name.encode(), content]
    for part in (*parts, record.value):
        # Include the length, or two different records could give the same bytes.
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.hexdigest()


def check_bounds(stream: str, partition: int, offset: int, start: int, end: int) -> None:
    """Raise LogTruncated if `offset` is before the start, AheadOfLog if it is beyond the end."""
    if offset < start:
        raise LogTruncated(
            f"{stream}/{partition} starts at offset {start}, offset {offset} was asked for; the "
            "events between were trimmed: restore them from an export"
        )
    if offset > end:
        raise AheadOfLog(
            f"{stream}/{partition} ends at offset {end}, offset {offset} was asked for; this is "
            "another log or it was wiped: connect to the right one or restore it"
        )


def read_all(
    log: EventLog, stream: str, partition: int, offset: int, end: int, limit: int = READ_RECORDS
) -> Iterator[list[Record]]:
    """Yield the records from `offset` to before `end`, page by page."""
    while offset < end:
        page = [r for r in log.read(stream, partition, offset, limit) if r.offset < end]
        if not page:
            return  # a broker's end counts records that it does not hand out
        yield page
        offset = page[-1].offset + 1


def read_stream(log: EventLog, stream: str) -> Iterator[Record]:
    """Yield the records of a stream, partition by partition, up to its present end."""
    bounds = zip(log.start(stream), log.end(stream), strict=True)
    for partition, (start, end) in enumerate(bounds):
        for page in read_all(log, stream, partition, start, end):
            yield from page


def within_bytes(records: Sequence[Record], max_bytes: int) -> list[Record]:
    """Return the leading records whose values fit, but at least one."""
    kept: list[Record] = []
    total = 0
    for record in records:
        total += len(record.value)
        if kept and total > max_bytes:
            break
        kept.append(record)
    return kept
