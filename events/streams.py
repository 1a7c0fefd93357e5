"""Names, topics, keys, partitions and retention of the streams, for SQLite and Kafka. A topic's
number of partitions never changes, because keys would move and replays would break. More partitions
need a new generation of the topic (`.v2`)."""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

MAX_VALUE_BYTES: Final = 1_000_000
"""Largest value of one record, below Kafka's default `max.message.bytes` of 1,048,588."""

MAX_INLINE_BODY_BYTES: Final = 900_000
"""Largest compressed body in a record. A larger one becomes a blob, written before its event."""

MAX_DECODED_BYTES: Final = 256 << 20
"""Largest decompressed section of a record: a bound against decompression bombs."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream: a Kafka topic, or its embedded counterpart."""

    name: str
    topic: str
    partitions: int
    keyed_by: str
    retention: str

    def partition_of(self, key: str) -> int:
        """Return the partition of `key`: its crc32 modulo the number (not Kafka's default)."""
        return crc32(key.encode()) % self.partitions


ROLLOUTS: Final = Stream(
    name="rollouts",
    topic="kintsugi.rollouts.v1",
    partitions=8,
    keyed_by="session, else rollout",
    retention="forever, or until an archive job has verified its copy",
)
"""Calls, sessions and rollouts. Events are ordered within a session, not across partitions."""

LEARNING: Final = Stream(
    name="learning",
    topic="kintsugi.learning.v1",
    partitions=1,
    keyed_by='the constant "control"',
    retention="forever",
)
"""Every decision of the daemon, in one total order."""

STREAMS: Final = {stream.name: stream for stream in (ROLLOUTS, LEARNING)}
"""Name -> stream, in the order in which they are printed."""
