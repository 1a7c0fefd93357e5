"""Reads partitions of a broker from a position: one consumer, no group, nothing skipped.

Every partition that was read stays assigned. A poll may return records of other partitions; they
are kept until read. A partition with about `BUFFER_BYTES` of kept records is paused. A read without
kept records first asks for the partition's end, so a position beyond it raises at once. After an
exception of `poll` the consumer is closed, because its next `poll` would spin. The exception names
no batch, so suspect partitions are then read alone. A partition that fails twice at an offset
raises LogCorrupt.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import kafka.errors as theirs
from kafka import KafkaConsumer, TopicPartition

from events.envelope import HEADER_SEQUENCE, HEADER_SOURCE
from events.errors import KintsugiError, LogCorrupt, LogError, LogUnavailable
from events.kafka.client import Connection, Watchdog, close_quietly, translate_error
from events.kafka.topics import check_topic_exists
from events.log import Cursor, Record, check_bounds, is_origin, within_bytes
from events.streams import STREAMS

BUFFER_BYTES: Final = 4 << 20
POLL_MS: Final = 200

At = tuple[str, int]

_OUT_OF_RANGE: Final = (theirs.OffsetOutOfRangeError, theirs.NoOffsetForPartitionError)
_NOT_THE_BYTES: Final = (
    theirs.AuthorizationError,
    theirs.UnsupportedVersionError,
    theirs.LogTruncationError,
)

log = logging.getLogger(__name__)


@dataclass
class _Track:
    next: int
    """Next offset of a sequential read."""
    kept: deque[Record] = field(default_factory=deque)
    kept_bytes: int = 0

    def keep(self, records: list[Record]) -> None:
        self.kept.extend(records)
        self.kept_bytes += sum(len(record.value) for record in records)

    def fetch_offset(self) -> int:
        """Return the offset that the consumer must fetch next."""
        return self.kept[-1].offset + 1 if self.kept else self.next

    def serve(self, limit: int, max_bytes: int) -> list[Record]:
        records = within_bytes([self.kept[i] for i in range(min(limit, len(self.kept)))], max_bytes)
        for record in records:
            self.kept.popleft()
            self.kept_bytes -= len(record.value)
        if records:
            self.next = records[-1].offset + 1
        return records


class Reader:
    """Reads a broker's partitions. Safe to call from several threads, which take turns."""

    def __init__(self, connection: Connection, watchdog: Watchdog) -> None:
        self._connection = connection
        self._watchdog = watchdog
        self._lock = threading.RLock()
        self._consumer: Any = None
        self._tracks: dict[At, _Track] = {}
        self._suspects: set[At] = set()

    def read(self, at: At, offset: int, limit: int, max_bytes: int) -> list[Record]:
        """Read as EventLog.read does; `at` is (stream, partition)."""
        with self._lock:
            track = self._aim(at, offset)
            if not track.kept:
                self._fill(at, track)
            return track.serve(limit, max_bytes)

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        """Wait as EventLog.wait does. Return True also if a read would raise an error."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._lock:
                tracks = [self._aim(at, offset) for at, offset in cursor.items()]
                if any(track.kept for track in tracks) or self._suspects & set(cursor):
                    return True
                if not self._poll_all(deadline):
                    return True
            if time.monotonic() >= deadline:
                return any(track.kept for track in tracks)

    def bounds(self, stream: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the first readable and the next offset of every partition."""
        partitions = [
            self._partition(stream, number) for number in range(STREAMS[stream].partitions)
        ]
        with self._lock:
            starts, ends = self._offsets(partitions)
        return tuple(starts[item] for item in partitions), tuple(ends[item] for item in partitions)

    def forget(self, at: At) -> None:
        """Drop the kept records of a partition whose start moved."""
        with self._lock:
            self._tracks.pop(at, None)
            self._discard()

    def close(self) -> None:
        """Close the consumer."""
        with self._lock:
            self._discard()

    def _aim(self, at: At, offset: int) -> _Track:
        track = self._tracks.get(at)
        if track is not None and track.next == offset:
            return track
        track = self._tracks[at] = _Track(offset)
        if self._consumer is not None:
            self._assign(self._consumer)
            if at not in self._suspects:
                self._consumer.seek(self._partition(*at), offset)
        return track

    def _fill(self, at: At, track: _Track) -> None:
        _, end = self._bounds(at, track.next)
        if track.next == end:
            self._trust(at, track)
            return
        deadline = time.monotonic() + self._connection.timeout_seconds
        while not track.kept:
            if at in self._suspects:
                self._read_alone(at, track, end, deadline)
                self._trust(at, track)
                return
            if not self._poll_all(deadline):
                continue  # the error made this partition or another one a suspect
            if not track.kept and self._consumer_offset(self._get_consumer(), at) >= end:
                return
            self._check_deadline(at, track, deadline)

    def _trust(self, at: At, track: _Track) -> None:
        if at in self._suspects:
            self._suspects.discard(at)
            if self._consumer is not None:
                self._assign(self._consumer)
                self._consumer.seek(self._partition(*at), track.fetch_offset())

    def _read_alone(self, at: At, track: _Track, end: int, deadline: float) -> None:
        for attempt in (1, 2):
            consumer = self._connect()
            try:
                consumer.assign([self._partition(*at)])
                consumer.seek(self._partition(*at), track.next)
                while not track.kept and self._consumer_offset(consumer, at) < end:
                    self._poll(consumer)
                    self._check_deadline(at, track, deadline)
            except LogError:
                raise
            except Exception as error:  # any error of decoding a batch
                if attempt == 2:
                    raise self._unreadable(at, track.next, error) from error
            else:
                return
            finally:
                close_quietly(consumer, autocommit=False, timeout_ms=1_000)

    def _unreadable(self, at: At, offset: int, error: Exception) -> KintsugiError:
        name = f"{at[0]}/{at[1]}"
        if isinstance(error, _OUT_OF_RANGE):
            self._bounds(at, offset)
            return LogUnavailable(f"{name} moved while offset {offset} was read; it is tried again")
        if getattr(error, "retriable", False) or isinstance(error, _NOT_THE_BYTES):
            return translate_error(error, f"reading {name} at offset {offset}")
        return LogCorrupt(
            f"{name} cannot be decoded at offset {offset}, twice ({error}); restore the segment "
            "from a replica or an export, nothing is skipped"
        )

    def _poll_all(self, deadline: float) -> bool:
        """Poll the shared consumer. Return False if the poll failed and the consumer was closed."""
        try:
            consumer = self._get_consumer()
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            self._poll(consumer, min(POLL_MS, left_ms))
        except LogError:
            raise
        except Exception as error:  # any error of decoding a batch; the partition is not known
            suspects = self._find_suspects(error)
            log.warning("reading failed, now read alone: %s: %r", sorted(suspects), error)
            self._suspects |= suspects
            self._discard()
            return False
        return True

    def _find_suspects(self, error: Exception) -> set[At]:
        if isinstance(error, theirs.OffsetOutOfRangeError) and error.args:
            return {self._at(partition) for partition in error.args[0]}
        return set(self._tracks)

    def _poll(self, consumer: Any, timeout_ms: int = POLL_MS) -> None:
        with self._watchdog.watch("KafkaConsumer.poll"):
            polled = consumer.poll(timeout_ms=timeout_ms)
        for partition, records in polled.items():
            at = self._at(partition)
            track = self._tracks[at]
            track.keep([_record(at, record) for record in records])
            if track.kept_bytes > BUFFER_BYTES:
                consumer.pause(partition)

    def _get_consumer(self) -> Any:
        if self._consumer is None:
            consumer = self._connect()
            self._assign(consumer)
            for at, track in self._tracks.items():
                if at not in self._suspects:
                    consumer.seek(self._partition(*at), track.fetch_offset())
            self._consumer = consumer
        for partition in self._consumer.paused():
            if self._tracks[self._at(partition)].kept_bytes <= BUFFER_BYTES // 2:
                self._consumer.resume(partition)
        return self._consumer

    def _assign(self, consumer: Any) -> None:
        consumer.assign([self._partition(*at) for at in self._tracks if at not in self._suspects])

    def _connect(self) -> Any:
        return self._connection.build(
            KafkaConsumer,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_uncommitted",
            max_poll_records=500,
            # An added or repositioned partition must wait for the running fetch.
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=4 << 20,
            fetch_max_bytes=32 << 20,
            check_crcs=True,
            key_deserializer=None,
            value_deserializer=None,  # an exception inside would make poll spin
            reconnect_backoff_max_ms=1_000,
            allow_auto_create_topics=False,
        )

    def _bounds(self, at: At, offset: int) -> tuple[int, int]:
        """Return the partition's start and end. Raises LogError if `offset` is not within."""
        partition = self._partition(*at)
        if self._consumer is None:
            check_topic_exists(self._connection, at[0], offset)
        try:
            starts, ends = self._offsets([partition])
        except LogUnavailable:
            check_topic_exists(self._connection, at[0], offset)
            raise
        check_bounds(*at, offset, starts[partition], ends[partition])
        return starts[partition], ends[partition]

    def _offsets(self, partitions: list[Any]) -> tuple[dict[Any, int], dict[Any, int]]:
        timeout_ms = self._connection.timeout_ms
        try:
            consumer = self._get_consumer()
            with self._watchdog.watch("KafkaConsumer.end_offsets"):
                return (
                    consumer.beginning_offsets(partitions, timeout_ms=timeout_ms),
                    consumer.end_offsets(partitions, timeout_ms=timeout_ms),
                )
        except theirs.KafkaError as error:
            self._discard()
            raise translate_error(error, "asking for the offsets of the log") from error

    def _consumer_offset(self, consumer: Any, at: At) -> int:
        """Return the consumer's next offset; also the end if the last offsets hold no record."""
        with self._watchdog.watch("KafkaConsumer.position"):
            position = consumer.position(
                self._partition(*at), timeout_ms=self._connection.timeout_ms
            )
        return -1 if position is None else int(position)

    def _check_deadline(self, at: At, track: _Track, deadline: float) -> None:
        if not track.kept and time.monotonic() >= deadline:
            self._discard()
            raise LogUnavailable(
                f"{at[0]}/{at[1]} gave nothing at offset {track.next} for "
                f"{self._connection.timeout_seconds:g} s; it is tried again"
            )

    def _discard(self) -> None:
        if self._consumer is not None:
            close_quietly(self._consumer, autocommit=False, timeout_ms=1_000)
            self._consumer = None

    def _partition(self, stream: str, partition: int) -> Any:
        return TopicPartition(self._connection.topic(stream), partition)

    def _at(self, partition: Any) -> At:
        stream = next(s for s in STREAMS if self._connection.topic(s) == partition.topic)
        return stream, int(partition.partition)


def _record(at: At, message: Any) -> Record:
    """Return a Kafka message as a Record. A message without a valid source gets a source of its
    own, so a fold writes one dead letter for it."""
    headers = tuple((name, value or b"") for name, value in message.headers)
    marks = {name: value for name, value in headers if name in (HEADER_SOURCE, HEADER_SEQUENCE)}
    source = marks.get(HEADER_SOURCE, b"").decode(errors="replace")
    sequence = _natural(marks.get(HEADER_SEQUENCE, b""))
    foreign = sequence is None or not is_origin(source, sequence)
    return Record(
        stream=at[0],
        partition=at[1],
        offset=message.offset,
        source=f"foreign:{message.offset}" if foreign else source,
        sequence=0 if foreign or sequence is None else sequence,
        key=(message.key or b"").decode(errors="replace"),
        headers=tuple(pair for pair in headers if pair[0] not in marks),
        value=bytes(message.value or b""),
        recorded_ms=message.timestamp,
    )


def _natural(text: bytes) -> int | None:
    """Return a number of at most 19 digits, else None; int() is slow for very many digits."""
    return int(text) if text.isdigit() and len(text) <= 19 else None
