"""The log on Apache Kafka: `assign` and `seek`, no consumer group, no transactions.

Guarantees: a returned append was acknowledged by `min.insync.replicas` replicas; reads never skip,
and raise LogTruncated, AheadOfLog or LogCorrupt instead; offsets grow but may have holes. Clients
are built at the first use; a broker that is down is LogUnavailable, and the call can be repeated.

`append` is for processes without a disk; others ship their SQLite log (producers/shipper.py).
Appended records have a new source id and sequences from 0 per partition, without gaps. Only one
append runs at a time, because a failure before a success would leave a gap, and folds stop there. A
failed append may have arrived in part, so the next one uses a new source. A repeated append may
write an event id twice; folds drop the second.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from events.envelope import new_id
from events.kafka.client import Connection, Watchdog, require_crc32c
from events.kafka.reader import Reader
from events.kafka.sender import OutboundRecord, Sender, check_record_size
from events.kafka.topics import ensure_topics, trim
from events.log import Cursor, Entry, Place, Record, check_size

REPLICATION: Final = 3


class KafkaLog:
    """An EventLog on a broker. Safe to use from several threads, not across a fork."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        security: Mapping[str, str] | None = None,
        topics: Mapping[str, str] | None = None,
        replication: int = REPLICATION,
        min_insync: int | None = None,
        timeout_seconds: float = 10.0,
        delivery_seconds: float = 120.0,
    ) -> None:
        require_crc32c()
        self.connection = Connection(
            bootstrap_servers, dict(security or {}), dict(topics or {}), timeout_seconds
        )
        self.source = new_id()
        self._replication = replication
        # Writes continue if one replica is down; a single node needs itself.
        self._min_insync = min_insync or max(1, replication - 1)
        self._delivery_seconds = delivery_seconds
        self._watchdog = Watchdog()
        self._reader = Reader(self.connection, self._watchdog)
        self._appending = threading.Lock()
        self._sender: Sender | None = None
        self._sequences: dict[tuple[str, int], int] = {}

    def ensure_topics(self) -> None:
        """Create missing topics. Raises LogError if a topic has another number of partitions."""
        ensure_topics(self.connection, self._replication, self._min_insync)

    def sender(
        self, *, idempotent: bool = True, linger_ms: int = 10, batch_bytes: int = 512 << 10
    ) -> Sender:
        """Return a producer with a bounded window, for a caller that numbers the records."""
        return Sender(
            self.connection,
            idempotent=idempotent,
            delivery_seconds=self._delivery_seconds,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
        )

    def append(self, entries: Sequence[Entry]) -> list[Place]:
        """Append as EventLog.append does, but part of a failed batch may be in the log. Waits up to
        `delivery_seconds` for the acknowledgement, so a broker may restart meanwhile."""
        for entry in entries:
            check_size(entry)
        with self._appending:
            numbered = self._number(entries)
            for record in numbered:
                check_record_size(record)
            if self._sender is None:
                self._sender = self.sender(linger_ms=0)
            try:
                offsets = self._send(self._sender, numbered)
            except BaseException:
                self._begin_anew()
                raise
            for record in numbered:
                self._sequences[record.stream, record.partition] = record.sequence + 1
        return [
            Place(record.stream, record.partition, offset)
            for record, offset in zip(numbered, offsets, strict=True)
        ]

    def _number(self, entries: Sequence[Entry]) -> list[OutboundRecord]:
        following = dict(self._sequences)
        numbered: list[OutboundRecord] = []
        for entry in entries:
            at = (entry.stream, entry.partition)
            sequence = following.get(at, 0)
            following[at] = sequence + 1
            numbered.append(
                OutboundRecord(
                    entry.stream,
                    entry.partition,
                    self.source,
                    sequence,
                    entry.key,
                    entry.headers,
                    entry.value,
                    entry.recorded_ms,
                )
            )
        return numbered

    def _send(self, sender: Sender, records: list[OutboundRecord]) -> list[int]:
        pending = [sender.send(record) for record in records]
        # The producer itself fails a record after this time; the margin is for its thread.
        return [item.offset(self._delivery_seconds + 10) for item in pending]

    def _begin_anew(self) -> None:
        if self._sender is not None:
            self._sender.close()
        self._sender = None
        self.source = new_id()
        self._sequences = {}

    def read(
        self, stream: str, partition: int, offset: int, limit: int = 500, max_bytes: int = 32 << 20
    ) -> list[Record]:
        return self._reader.read((stream, partition), offset, limit, max_bytes)

    def start(self, stream: str) -> tuple[int, ...]:
        return self._reader.bounds(stream)[0]

    def end(self, stream: str) -> tuple[int, ...]:
        return self._reader.bounds(stream)[1]

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        return self._reader.wait(cursor, timeout_seconds)

    def trim(self, stream: str, partition: int, before: int) -> None:
        starts, ends = self._reader.bounds(stream)
        before = min(before, ends[partition])
        if before <= starts[partition]:
            return
        trim(self.connection, stream, partition, before)
        self._reader.forget((stream, partition))

    def close(self) -> None:
        with self._appending:
            if self._sender is not None:
                self._sender.close()
                self._sender = None
        self._reader.close()
        self._watchdog.close()
