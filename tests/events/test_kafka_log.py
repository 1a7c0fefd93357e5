"""The log on a real broker: each trap of kafka-python and of Kafka that the log has to survive.

What every log has in common is in tests/contract.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from events.envelope import HEADER_SEQUENCE, HEADER_SOURCE
from events.errors import (
    AheadOfLog,
    LogCorrupt,
    LogError,
    LogTruncated,
    LogUnavailable,
    TooLarge,
)
from events.kafka.client import EXIT_STUCK, Connection, Watchdog
from events.kafka.log import KafkaLog
from events.kafka.sender import WINDOW_RECORDS, OutboundRecord
from events.log import Entry
from ops.kafka.broker import Broker

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[2]
HOUR_MS = 3_600_000


def entry(
    number: int,
    partition: int = 0,
    value: bytes = b"value",
    headers: tuple[tuple[str, bytes], ...] = (),
    recorded_ms: int = 1_700_000_000_000,
) -> Entry:
    return Entry("rollouts", partition, f"key-{number}", headers, value, recorded_ms)


def outgoing(number: int, value: bytes = b"value") -> OutboundRecord:
    return OutboundRecord(
        "rollouts", 0, "spool", number, f"key-{number}", (), value, 1_700_000_000_000
    )


def read_all(log: KafkaLog, partition: int = 0, at: int = 0) -> list[int]:
    """The sequences of a partition."""
    sequences: list[int] = []
    while found := log.read("rollouts", partition, at):
        sequences += [record.sequence for record in found]
        at = found[-1].offset + 1
    return sequences


@contextmanager
def turned_byte(broker: Broker, topic: str, partition: int, needle: bytes) -> Iterator[None]:
    """A stored batch with one bit turned over, as long as this lasts."""
    # A clean stop: after a crash the broker checks its segments and cuts off what is damaged.
    broker.stop()
    (segment,) = (broker.data / f"{topic}-{partition}").glob("*.log")
    sound = segment.read_bytes()
    at = sound.index(needle)
    segment.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
    broker.start()
    try:
        yield
    finally:
        broker.stop()
        segment.write_bytes(sound)
        broker.start()


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_corrupt_batch_is_an_error_at_its_offset_and_is_never_skipped(
    broker: Broker, kafka_log: KafkaLog, kafka_topics: dict[str, str]
) -> None:
    for number in range(3):
        kafka_log.append([entry(number, 0, f"body-{number}".encode()), entry(number, 1)])
    with turned_byte(broker, kafka_topics["rollouts"], 0, b"body-1"):
        assert read_all(kafka_log, partition=1) == [0, 1, 2]
        assert [record.value for record in kafka_log.read("rollouts", 0, 0)] == [b"body-0"]
        for _ in range(2):
            with pytest.raises(LogCorrupt, match="rollouts/0 cannot be decoded at offset 1, twice"):
                kafka_log.read("rollouts", 0, 1)
        # The neighbour goes on, and so does the partition behind the batch if somebody decides so.
        kafka_log.append([entry(3, 1)])
        assert kafka_log.wait({("rollouts", 1): 3}, 5)
        assert read_all(kafka_log, partition=1, at=3) == [3]
        assert read_all(kafka_log, partition=0, at=2) == [2]
    assert read_all(kafka_log) == [0, 1, 2]


@pytest.mark.long
def test_a_poll_that_never_returns_ends_the_process(
    broker: Broker, kafka_log: KafkaLog, kafka_topics: dict[str, str]
) -> None:
    # The trap itself, without our reader around it: the poll after a failed one spins for ever.
    kafka_log.append([entry(0, 0, b"body-0")])
    code = """
import sys
from kafka import KafkaConsumer, TopicPartition
from events.kafka.client import Watchdog

consumer = KafkaConsumer(bootstrap_servers=sys.argv[1], auto_offset_reset="none")
at = TopicPartition(sys.argv[2], 0)
consumer.assign([at])
consumer.seek(at, 0)
watchdog = Watchdog(limit_seconds=3)
for _ in range(100):
    try:
        with watchdog.watch("KafkaConsumer.poll"):
            consumer.poll(timeout_ms=200)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""
    with turned_byte(broker, kafka_topics["rollouts"], 0, b"body-0"):
        done = run_python(code, broker.bootstrap, kafka_topics["rollouts"])
    assert done.stdout == "CorruptRecordError\n"
    assert done.returncode == EXIT_STUCK
    assert "KafkaConsumer.poll has not returned for 3 s" in done.stderr


def test_the_watchdog_lets_calls_be_that_return() -> None:
    stuck: list[str] = []
    watchdog = Watchdog(limit_seconds=2, on_stuck=stuck.append)
    for _ in range(40):
        with watchdog.watch("a short call"):
            time.sleep(0.1)
    watchdog.close()
    assert stuck == []


def test_without_crc32c_it_refuses_to_start() -> None:
    done = run_python(
        "import sys; sys.modules['crc32c'] = None\n"
        "from events.kafka.log import KafkaLog\n"
        "from events.errors import LogError\n"
        "try:\n    KafkaLog('127.0.0.1:9')\n"
        "except LogError as error:\n    print(type(error).__name__, error)\n"
    )
    assert done.stdout.startswith("LogError crc32c is not installed")
    assert "install kafka-python[crc32c]" in done.stdout


@pytest.mark.long
def test_records_on_their_way_are_bounded_while_the_broker_is_down(
    broker: Broker, kafka_topics: dict[str, str]
) -> None:
    log = KafkaLog(broker.bootstrap, topics=kafka_topics, replication=1, delivery_seconds=2)
    log.ensure_topics()
    sender = log.sender()
    sender.send(outgoing(0)).offset(30)
    broker.stop()
    try:
        for number in range(WINDOW_RECORDS):
            sender.send(outgoing(1 + number, bytes(20_000)))
        assert sender.room[0] == 0
        # It waits, and goes on when records were given up: never more than the window.
        with pytest.raises(LogUnavailable):
            sender.send(outgoing(WINDOW_RECORDS + 1)).offset(30)
        assert sender.in_flight_bytes <= 30_000 * WINDOW_RECORDS
    finally:
        threads_before = threading.active_count()
        sender.close()
        log.close()
        broker.start()
    assert sender.in_flight_bytes == 0
    assert threading.active_count() < threads_before


def test_a_window_holds_bytes_too_and_one_record_always_fits(kafka_log: KafkaLog) -> None:
    sender = kafka_log.sender()
    pending = [sender.send(outgoing(number, bytes(990_000))) for number in range(40)]
    assert sender.in_flight_bytes <= 32 << 20
    assert [item.offset(60) for item in pending] == list(range(40))
    assert sender.room == (WINDOW_RECORDS, 32 << 20)
    sender.close()


def test_the_largest_value_fits_and_one_byte_more_sends_nothing(kafka_log: KafkaLog) -> None:
    kafka_log.append([entry(0, 0, bytes(1_000_000), (("ce_id", bytes(1000)),))])
    with pytest.raises(TooLarge, match="1,000,001 bytes"):
        kafka_log.append([entry(1), entry(2, 0, bytes(1_000_001))])
    with pytest.raises(TooLarge, match="shorten its headers"):
        kafka_log.append([entry(1), entry(2, 0, bytes(1_000_000), (("ce_id", bytes(99_000)),))])
    assert kafka_log.end("rollouts")[0] == 1


@pytest.mark.long
def test_a_wiped_broker_is_ahead_of_log_and_not_a_wait(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as own:
        log = KafkaLog(own.bootstrap, replication=1, timeout_seconds=5)
        log.ensure_topics()
        log.append([entry(number) for number in range(5)])
        assert read_all(log) == [0, 1, 2, 3, 4]
        own.wipe()
        own.start()
        with pytest.raises(AheadOfLog, match="does not exist"):
            log.read("rollouts", 0, 5)
        with pytest.raises(LogUnavailable, match="create it with ensure_topics"):
            log.read("rollouts", 0, 0)
        log.ensure_topics()
        with pytest.raises(AheadOfLog, match="ends at offset 0, offset 5 was asked for"):
            log.read("rollouts", 0, 5)
        assert log.wait({("rollouts", 0): 5}, 0.5) is log.wait({("rollouts", 0): 5}, 0.5)
        log.close()


def test_a_start_that_another_process_moved_is_log_truncated(
    broker: Broker, kafka_log: KafkaLog, kafka_topics: dict[str, str]
) -> None:
    kafka_log.append([entry(number) for number in range(10)])
    kafka_log.read("rollouts", 0, 0, limit=2)
    other = KafkaLog(broker.bootstrap, topics=kafka_topics, replication=1)
    other.trim("rollouts", 0, 6)
    with pytest.raises(LogTruncated, match="starts at offset 6, offset 3 was asked for"):
        other.read("rollouts", 0, 3)
    fresh = KafkaLog(broker.bootstrap, topics=kafka_topics, replication=1)
    assert fresh.wait({("rollouts", 0): 0}, 1)
    with pytest.raises(LogTruncated):
        fresh.read("rollouts", 0, 0)
    assert read_all(fresh, at=6) == [6, 7, 8, 9]
    other.close()
    fresh.close()


def test_a_broker_that_is_down_is_log_unavailable_of_each_call_and_heals(
    broker: Broker, kafka_topics: dict[str, str]
) -> None:
    log = KafkaLog(broker.bootstrap, topics=kafka_topics, replication=1)
    broker.stop()
    try:
        for call in (
            lambda: log.ensure_topics(),
            lambda: log.append([entry(0)]),
            lambda: log.read("rollouts", 0, 0),
            lambda: log.end("rollouts"),
            lambda: log.wait({("rollouts", 0): 0}, 0.1),
        ):
            with pytest.raises(LogUnavailable, match=f"no broker listens at {broker.bootstrap}"):
                call()
        threads = threading.active_count()
        for _ in range(5):
            with pytest.raises(LogUnavailable):
                log.read("rollouts", 0, 0)
        assert threading.active_count() == threads
    finally:
        broker.start()
    log.ensure_topics()
    log.append([entry(0)])
    assert read_all(log) == [0]
    log.close()


@pytest.mark.long
def test_a_broker_that_goes_away_under_connected_clients_is_found_again(
    broker: Broker, kafka_topics: dict[str, str]
) -> None:
    log = KafkaLog(
        broker.bootstrap, topics=kafka_topics, replication=1, timeout_seconds=2, delivery_seconds=2
    )
    log.ensure_topics()
    log.append([entry(0)])
    assert read_all(log) == [0]
    source = log.source
    broker.kill()
    with pytest.raises(LogUnavailable):
        log.append([entry(1)])
    with pytest.raises(LogUnavailable):
        log.end("rollouts")
    broker.start()
    # Its outcome is unknown, so the numbers of the old source may have a gap: a new one begins.
    assert log.source != source
    log.append([entry(2)])
    last = log.read("rollouts", 0, log.end("rollouts")[0] - 1)[-1]
    assert (last.source, last.sequence, last.key) == (log.source, 0, "key-2")
    log.close()


@pytest.mark.long
def test_an_append_waits_for_a_broker_that_only_restarts(
    broker: Broker, kafka_log: KafkaLog
) -> None:
    kafka_log.append([entry(0)])
    broker.kill()
    done: list[int] = []
    appending = threading.Thread(
        target=lambda: done.append(kafka_log.append([entry(1)])[0].offset), daemon=True
    )
    appending.start()
    broker.start()
    appending.join(120)
    assert done == [1]
    assert read_all(kafka_log) == [0, 1]


def test_each_object_is_a_source_of_its_own_numbered_from_zero(
    broker: Broker, kafka_log: KafkaLog, kafka_topics: dict[str, str]
) -> None:
    other = KafkaLog(broker.bootstrap, topics=kafka_topics, replication=1)
    for log in (kafka_log, other, kafka_log):
        log.append([entry(0), entry(1), entry(2, 5)])
    other.close()
    found = kafka_log.read("rollouts", 0, 0)
    assert [record.sequence for record in found if record.source == kafka_log.source] == [
        0,
        1,
        2,
        3,
    ]
    assert [record.sequence for record in found if record.source == other.source] == [0, 1]


def test_what_was_recorded_under_a_wrong_clock_is_kept_as_it_is(kafka_log: KafkaLog) -> None:
    moments = [1_000, int(time.time() * 1000) + 48 * HOUR_MS, 1_700_000_000_000]
    kafka_log.append([entry(0, recorded_ms=moment) for moment in moments])
    assert [record.recorded_ms for record in kafka_log.read("rollouts", 0, 0)] == moments
    assert read_all(kafka_log) == [0, 1, 2]


def test_a_record_of_another_program_is_handed_over_once_as_a_source_of_its_own(
    broker: Broker, kafka_log: KafkaLog, kafka_topics: dict[str, str]
) -> None:
    kafka_log.append([entry(0)])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for _ in range(2):
        producer.send(kafka_topics["rollouts"], value=None, key=b"\xff", partition=0).get(30)
    producer.close()
    own, *foreign = kafka_log.read("rollouts", 0, 0)
    assert own.source == kafka_log.source
    assert [(record.source, record.sequence) for record in foreign] == [
        ("foreign:1", 0),
        ("foreign:2", 0),
    ]
    assert [record.value for record in foreign] == [b"", b""]


def test_an_origin_that_no_log_of_ours_has_is_a_source_of_its_own(
    broker: Broker, kafka_log: KafkaLog, kafka_topics: dict[str, str]
) -> None:
    """Too long a name, or a sequence that is no number of 63 bits, once stopped the partition."""
    origins = [
        (b"far", str(2**63).encode()), (b"far", b"9" * 5_000), (b"x" * 3_000, b"0"),
        (b"a\x00b", b"0"), (b"far", b"-1"), (b"near", str(2**63 - 1).encode()),
    ]  # fmt: skip
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for source, sequence in origins:
        headers = [(HEADER_SOURCE, source), (HEADER_SEQUENCE, sequence)]
        topic = kafka_topics["rollouts"]
        producer.send(topic, value=b"v", key=b"k", partition=0, headers=headers).get(30)
    producer.close()
    *foreign, last = kafka_log.read("rollouts", 0, 0)
    assert [(record.source, record.sequence) for record in foreign] == [
        (f"foreign:{offset}", 0) for offset in range(len(origins) - 1)
    ]
    assert (last.source, last.sequence) == ("near", 2**63 - 1)


def test_one_consumer_serves_all_partitions_and_keeps_what_comes_for_others(
    kafka_log: KafkaLog,
) -> None:
    kafka_log.append([entry(number, number % 8, bytes(60_000)) for number in range(800)])
    at = dict.fromkeys(range(8), 0)
    assert kafka_log.wait({("rollouts", place): 0 for place in at}, 10)
    seen: list[tuple[int, int]] = []
    while len(seen) < 800:
        for place in at:
            found = kafka_log.read("rollouts", place, at[place], limit=7)
            seen += [(place, record.sequence) for record in found]
            at[place] = found[-1].offset + 1 if found else at[place]
    for place in at:
        assert [sequence for where, sequence in seen if where == place] == list(range(100))
    # Going back is a read like any other.
    assert kafka_log.read("rollouts", 3, 40, limit=1)[0].sequence == 40
    assert kafka_log.read("rollouts", 3, 12, limit=1)[0].sequence == 12


def test_topics_with_other_partitions_are_refused(broker: Broker) -> None:
    topics = {"rollouts": "narrow.rollouts", "learning": "narrow.learning"}
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"narrow.rollouts": {"num_partitions": 3, "replication_factor": 1}})
    admin.close()
    log = KafkaLog(broker.bootstrap, topics=topics, replication=1)
    with pytest.raises(LogError, match=r"narrow\.rollouts has 3 partitions, stream rollouts has 8"):
        log.ensure_topics()
    log.close()


def test_topics_are_made_to_keep_what_they_are_given(
    broker: Broker, kafka_log: KafkaLog, kafka_topics: dict[str, str]
) -> None:
    kafka_log.ensure_topics()  # again, over its own
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in kafka_topics.values()]
    found = admin.describe_configs(resources, config_filter="all")["topic"]
    admin.close()
    for stream, topic in kafka_topics.items():
        settings = {name: item["value"] for name, item in found[topic].items()}
        assert settings["retention.ms"] == settings["retention.bytes"] == "-1"
        assert settings["cleanup.policy"] == "delete"
        assert settings["segment.ms"] == str(2**63 - 1)
        assert settings["min.insync.replicas"] == "1"
        assert settings["unclean.leader.election.enable"] == "false"
        assert settings["flush.messages"] == ("1" if stream == "learning" else str(2**63 - 1))


def test_a_bootstrap_server_without_a_port_is_named(broker: Broker) -> None:
    with pytest.raises(LogError, match="'kafka' must be written host:port"):
        Connection("kafka").build(KafkaAdminClient)
