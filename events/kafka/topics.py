"""Creates, checks and trims the topics of the streams. A topic with another number of partitions
than in streams.py is refused: keys would move, and replays would break."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import kafka.errors as theirs
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from events.errors import AheadOfLog, LogError, LogUnavailable
from events.kafka.client import Connection, close_quietly, translate_error
from events.streams import LEARNING, STREAMS

_ALREADY_THERE: Final = 36
_UNKNOWN_TOPIC: Final = 3


@contextmanager
def administration(connection: Connection, doing: str) -> Iterator[Any]:
    """Yield an admin client; translate errors of calls within the `with` block."""
    admin = connection.build(KafkaAdminClient)
    try:
        yield admin
    except theirs.KafkaError as error:
        raise translate_error(error, doing) from error
    finally:
        close_quietly(admin)


def topic_settings(stream: str, replication: int, min_insync: int) -> dict[str, str]:
    """Return a topic's settings: keep records forever and unchanged, with `min_insync` replicas."""
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "min.insync.replicas": str(min_insync),
        "message.timestamp.type": "CreateTime",
        # By default a record more than an hour ahead of the broker's clock is refused, and a spool
        # written under a wrong clock could never be shipped.
        "message.timestamp.after.max.ms": str(2**63 - 1),
        # Segments end by size alone: by default clocks a week apart would end one at each record.
        "segment.ms": str(2**63 - 1),
        "compression.type": "producer",
        "unclean.leader.election.enable": "false",
    }
    if replication == 1 and stream == LEARNING.name:
        # Without a second replica, sync each record; decisions are rare enough.
        settings["flush.messages"] = "1"
    return settings


def ensure_topics(connection: Connection, replication: int, min_insync: int) -> None:
    """Create missing topics. Raises LogError for a topic with another number of partitions."""
    wanted = {connection.topic(stream.name): stream for stream in STREAMS.values()}
    with administration(connection, "creating the topics") as admin:
        new = {
            topic: {
                "num_partitions": stream.partitions,
                "replication_factor": replication,
                "configs": topic_settings(stream.name, replication, min_insync),
            }
            for topic, stream in wanted.items()
        }
        answer = admin.create_topics(new, timeout_ms=connection.timeout_ms, raise_errors=False)
        for topic in answer["topics"]:
            if topic["error_code"] not in (0, _ALREADY_THERE):
                raise theirs.for_code(topic["error_code"])(
                    f"{topic['name']}: {topic.get('error_message')}"
                )
        admin.wait_for_topics(list(wanted), timeout_ms=connection.timeout_ms)
        partitions = {
            topic["name"]: topic["partitions"] for topic in admin.describe_topics(list(wanted))
        }
    for topic, stream in wanted.items():
        if len(partitions[topic]) != stream.partitions:
            raise LogError(
                f"topic {topic} has {len(partitions[topic])} partitions, stream {stream.name} has "
                f"{stream.partitions}; name another topic, keys would move between partitions"
            )


def check_topic_exists(connection: Connection, stream: str, offset: int) -> None:
    """Raise an error for a missing topic: AheadOfLog if `offset` > 0, else LogUnavailable."""
    topic = connection.topic(stream)
    with administration(connection, f"looking for topic {topic}") as admin:
        (description,) = admin.describe_topics([topic])
    if description["error_code"] != _UNKNOWN_TOPIC:
        return
    if offset > 0:
        raise AheadOfLog(
            f"topic {topic} does not exist at {connection.bootstrap_servers}, offset {offset} of "
            "it was asked for; this is another broker or it was wiped: connect to the right one "
            "or restore it"
        )
    raise LogUnavailable(
        f"topic {topic} does not exist at {connection.bootstrap_servers}; create it with "
        "ensure_topics"
    )


def trim(connection: Connection, stream: str, partition: int, before: int) -> None:
    """Delete the records below offset `before`, which the partition must have."""
    at = TopicPartition(connection.topic(stream), partition)
    with administration(connection, f"trimming {stream}/{partition} to {before}") as admin:
        admin.delete_records({at: before}, timeout_ms=connection.timeout_ms)
