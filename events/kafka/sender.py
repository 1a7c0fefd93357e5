"""A producer with a bounded window. The producer of kafka-python buffers without limit.

At most `window_records` records and `window_bytes` bytes are on their way; `send` waits for room.
Records of one partition arrive in order, or an error is raised. After an error the owner closes the
sender and starts a new one after the last record acknowledged without a gap (go-back-N). With
`idempotent=False`, for brokers that refuse idempotence, a failed request may arrive late. Its
failure is always raised, because the producer does not retry.
"""

import threading
from dataclasses import dataclass
from typing import Any, Final

import kafka.errors as theirs
from kafka import KafkaProducer

from events.envelope import HEADER_SEQUENCE, HEADER_SOURCE
from events.errors import KintsugiError, LogCorrupt, LogUnavailable, TooLarge
from events.kafka.client import Connection, abandon_producer, translate_error
from events.log import Headers, Record

WINDOW_RECORDS: Final = 200
WINDOW_BYTES: Final = 32 << 20

MAX_RECORD_BYTES: Final = 1_048_000
"""Largest record with key, headers and framing, below Kafka's default limit of 1,048,588."""

_FRAMING: Final = 256
"""Upper bound of the bytes of a batch header (61) and of a record's lengths and deltas."""


@dataclass(frozen=True, slots=True)
class OutboundRecord:
    """A record on its way into a topic."""

    stream: str
    partition: int
    source: str
    sequence: int
    key: str
    headers: Headers
    value: bytes
    recorded_ms: int

    @classmethod
    def of(cls, record: Record) -> "OutboundRecord":
        """Return the outbound copy of a record; source and sequence stay the same."""
        return cls(
            record.stream, record.partition, record.source, record.sequence, record.key,
            record.headers, record.value, record.recorded_ms,
        )  # fmt: skip

    def all_headers(self) -> list[tuple[str, bytes]]:
        """Return the event's headers, plus the headers for source and sequence."""
        return [
            *(pair for pair in self.headers if pair[0] not in (HEADER_SOURCE, HEADER_SEQUENCE)),
            (HEADER_SOURCE, self.source.encode()),
            (HEADER_SEQUENCE, str(self.sequence).encode()),
        ]

    def size(self) -> int:
        """Return an upper bound of the record's size in bytes, in a batch of its own."""
        headers = sum(len(name) * 4 + len(value) + 10 for name, value in self.headers)
        return len(self.value) + len(self.key) * 4 + len(self.source) + headers + _FRAMING


def check_record_size(record: OutboundRecord) -> int:
    """Return a record's size. Raises TooLarge when no batch may hold it."""
    size = record.size()
    if size > MAX_RECORD_BYTES:
        raise TooLarge(
            f"record {record.source}/{record.sequence} takes {size:,} bytes with key and headers, "
            f"a batch holds at most {MAX_RECORD_BYTES:,}; shorten its headers"
        )
    return size


class Pending:
    """A record that was sent, and the future of its acknowledgement."""

    def __init__(self, record: OutboundRecord, future: Any, changed: threading.Condition) -> None:
        self.record = record
        self._future = future
        self._changed = changed

    def wait(self, timeout_seconds: float) -> bool:
        """Return whether the outcome is known, after waiting at most `timeout_seconds` for it."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._future.is_done), timeout_seconds)

    def offset(self, timeout_seconds: float = 0) -> int:
        """Return the record's offset. Raises the send's error; LogUnavailable: not yet known."""
        if not self.wait(timeout_seconds):
            raise LogUnavailable(
                f"record {self.record.source}/{self.record.sequence} was not acknowledged in "
                f"{timeout_seconds:g} s; whether it arrived is unknown"
            )
        try:
            return int(self._future.get(timeout=0).offset)
        except Exception as error:  # any error of the producer's thread
            raise translate_send_error(error, self.record) from error


def translate_send_error(error: Exception, record: OutboundRecord) -> KintsugiError:
    """Translate as `translate_error`, but a damaged batch is LogUnavailable: it may be resent."""
    at = f"sending {record.source}/{record.sequence} to {record.stream}/{record.partition}"
    failure = translate_error(error, at)
    return LogUnavailable(str(failure)) if isinstance(failure, LogCorrupt) else failure


class Sender:
    """One producer and its window, for one thread. Raises LogUnavailable without a broker."""

    def __init__(
        self,
        connection: Connection,
        *,
        idempotent: bool = True,
        delivery_seconds: float = 120.0,
        linger_ms: int = 10,
        batch_bytes: int = 512 << 10,
        window_records: int = WINDOW_RECORDS,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._connection = connection
        self._delivery_seconds = delivery_seconds
        self._window_records = window_records
        self._window_bytes = window_bytes
        self._records = 0
        self._bytes = 0
        self._room = threading.Condition()
        # Without idempotence, a retry inside the producer could reorder records unnoticed.
        retries: dict[str, Any] = {} if idempotent else {"retries": 0}
        delivery_ms = int(delivery_seconds * 1000)
        self._producer: Any = connection.build(
            KafkaProducer,
            acks="all",
            enable_idempotence=idempotent,
            max_in_flight_requests_per_connection=5,
            compression_type=None,  # values are compressed already
            batch_size=batch_bytes,
            linger_ms=linger_ms,
            max_request_size=MAX_RECORD_BYTES,
            delivery_timeout_ms=delivery_ms,
            # kafka-python requires request time-out + linger <= delivery time-out.
            request_timeout_ms=min(connection.timeout_ms, delivery_ms - linger_ms),
            max_block_ms=connection.timeout_ms,
            reconnect_backoff_max_ms=1_000,
            allow_auto_create_topics=False,
            **retries,
        )

    @property
    def in_flight_bytes(self) -> int:
        """Return the number of bytes that were sent and are not acknowledged."""
        return self._bytes

    @property
    def room(self) -> tuple[int, int]:
        """Return how many records and bytes may be sent without waiting."""
        return self._window_records - self._records, self._window_bytes - self._bytes

    def send(self, record: OutboundRecord) -> Pending:
        """Start to send. Waits for room in the window; raises LogUnavailable without room."""
        size = check_record_size(record)
        self._take(size)
        try:
            future = self._producer.send(
                self._connection.topic(record.stream),
                key=record.key.encode(),
                value=record.value,
                headers=record.all_headers(),
                partition=record.partition,
                timestamp_ms=record.recorded_ms,
            )
        except BaseException as error:
            self._give_back(size)
            if isinstance(error, theirs.KafkaError):
                raise translate_send_error(error, record) from error
            raise
        future.add_both(lambda _: self._give_back(size))
        return Pending(record, future, self._room)

    def close(self) -> None:
        """Close the producer at once; unacknowledged records have an unknown outcome."""
        abandon_producer(self._producer)

    def _take(self, size: int) -> None:
        def fits() -> bool:
            # One record always fits, however small the window was made.
            return self._records == 0 or (
                self._records < self._window_records and self._bytes + size <= self._window_bytes
            )

        with self._room:
            if not self._room.wait_for(fits, self._delivery_seconds):
                raise LogUnavailable(
                    f"{self._records} records ({self._bytes:,} bytes) wait for an acknowledgement "
                    f"for {self._delivery_seconds:g} s; it is tried again"
                )
            self._records += 1
            self._bytes += size

    def _give_back(self, size: int) -> None:
        with self._room:
            self._records -= 1
            self._bytes -= size
            self._room.notify_all()
