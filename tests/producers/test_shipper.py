"""The shipper against a real broker: go-back-N, its cursor, its lock and its bounds."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from events.errors import LogError, LogReadOnly, LogUnavailable
from events.kafka.log import KafkaLog
from events.kafka.sender import OutboundRecord, Pending, Sender
from events.log import Entry, Record
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from ops.kafka.broker import Broker
from producers.shipper import Shipper

pytestmark = pytest.mark.kafka


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SqliteLog]:
    log = SqliteLog(tmp_path / "spool.db", durability="process")
    yield log
    log.close()


def entries(begin: int, count: int, value_bytes: int = 100) -> list[Entry]:
    return [
        Entry(
            "learning" if number % 10 == 0 else "rollouts",
            0 if number % 10 == 0 else number % 8,
            f"key-{number}",
            (("ce_id", str(number).encode()),),
            random.Random(number).randbytes(value_bytes),
            1_600_000_000_000 + number,
        )
        for number in range(begin, begin + count)
    ]


def accepted(log: KafkaLog | SqliteLog) -> dict[tuple[str, int], list[Record]]:
    """What a fold takes: per partition and source, the next sequence only."""
    taken: dict[tuple[str, int], list[Record]] = {}
    for stream in STREAMS.values():
        for place in range(stream.partitions):
            following: dict[str, int] = {}
            at, kept = 0, taken.setdefault((stream.name, place), [])
            while found := log.read(stream.name, place, at):
                at = found[-1].offset + 1
                for record in found:
                    if record.sequence == following.get(record.source, 0):
                        following[record.source] = record.sequence + 1
                        kept.append(record)
    return taken


def facts(log: KafkaLog | SqliteLog) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    """All but the offset, which is the log's own."""
    return {
        at: [(r.source, r.sequence, r.key, r.headers, r.value, r.recorded_ms) for r in records]
        for at, records in accepted(log).items()
    }


def records_on(log: KafkaLog) -> int:
    return sum(sum(log.end(stream)) for stream in STREAMS)


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


class FailsAfter(Sender):
    """A real sender whose connection is cut off after so many records: the caller learns of an
    error while some of what it sent arrived."""

    def __init__(self, log: KafkaLog, records: int) -> None:
        super().__init__(log.connection, delivery_seconds=20)
        self._left = records

    def send(self, record: OutboundRecord) -> Pending:
        self._left -= 1
        if self._left < 0:
            raise LogUnavailable("cut off")
        return super().send(record)


def test_it_copies_everything_as_it_was_recorded(spool: SqliteLog, kafka_log: KafkaLog) -> None:
    spool.append(entries(0, 1000))
    shipper = Shipper(spool, kafka_log.sender)
    assert shipper.ship_once() == 1000
    assert facts(kafka_log) == facts(spool)
    assert [spool.read_ship_offsets(stream) for stream in STREAMS] == [
        spool.end(s) for s in STREAMS
    ]
    assert shipper.ship_once() == 0
    spool.append(entries(1000, 10))
    assert shipper.ship_once() == 10
    assert records_on(kafka_log) == 1010
    assert shipper.counters.in_flight_bytes == 0


def test_after_an_error_it_goes_back_to_the_last_gapless_acknowledgement(
    spool: SqliteLog, kafka_log: KafkaLog
) -> None:
    spool.append(entries(0, 3000))
    cut = iter([50, 450, 330, 10, 700])

    def sender() -> Sender:
        records = next(cut, None)
        return kafka_log.sender() if records is None else FailsAfter(kafka_log, records)

    shipper = Shipper(spool, sender)
    shipper.ship_once()
    assert shipper.counters.go_backs == {"LogUnavailable": 5}
    assert facts(kafka_log) == facts(spool)


def test_what_a_lost_cursor_sends_again_is_dropped_by_the_next_sequence_rule(
    tmp_path: Path, spool: SqliteLog, kafka_log: KafkaLog
) -> None:
    spool.append(entries(0, 500))
    before = tmp_path / "before"
    before.mkdir()
    Shipper(spool, kafka_log.sender).ship_once()

    class Forgetful(SqliteLog):
        """As after a crash before any cursor was stored."""

        def read_ship_offsets(self, stream: str) -> tuple[int, ...]:
            return tuple(0 for _ in super().read_ship_offsets(stream))

    forgetful = Forgetful(spool.path, durability="process")
    assert Shipper(forgetful, kafka_log.sender).ship_once() == 500
    forgetful.close()
    assert records_on(kafka_log) == 1000
    assert facts(kafka_log) == facts(spool)


def test_all_is_shipped_again_to_a_broker_that_lost_what_it_acknowledged(
    spool: SqliteLog, kafka_log: KafkaLog
) -> None:
    spool.append(entries(0, 500))
    shipper = Shipper(spool, kafka_log.sender)
    shipper.ship_once()
    shipper.begin_again()
    spool.append(entries(500, 10))
    assert shipper.ship_once() == 510
    assert records_on(kafka_log) == 1010
    assert facts(kafka_log) == facts(spool)


def test_a_second_shipper_of_one_spool_is_refused(spool: SqliteLog, kafka_log: KafkaLog) -> None:
    stop = threading.Event()
    first = Shipper(spool, kafka_log.sender)
    running = threading.Thread(target=first.run, args=(stop,))
    running.start()
    spool.append(entries(0, 1))
    wait_until(lambda: first.counters.records == 1)
    with pytest.raises(LogError, match="another shipper works on"):
        Shipper(spool, kafka_log.sender).ship_once()
    before = spool.read_ship_offsets("rollouts"), spool.read_ship_offsets("learning")
    with pytest.raises(LogError, match="another shipper works on"):
        Shipper(spool, kafka_log.sender).begin_again()
    assert (spool.read_ship_offsets("rollouts"), spool.read_ship_offsets("learning")) == before
    stop.set()
    running.join()
    spool.append(entries(1, 1))
    assert Shipper(spool, kafka_log.sender).ship_once() == 1


def test_it_waits_for_a_broker_and_keeps_up_with_appends(
    broker: Broker, spool: SqliteLog, kafka_topics: dict[str, str]
) -> None:
    log = KafkaLog(
        broker.bootstrap, topics=kafka_topics, replication=1, timeout_seconds=2, delivery_seconds=3
    )
    log.ensure_topics()
    stop = threading.Event()
    shipper = Shipper(spool, log.sender)
    running = threading.Thread(target=shipper.run, args=(stop,))
    running.start()
    spool.append(entries(0, 100))
    wait_until(lambda: shipper.counters.records == 100)
    broker.kill()
    spool.append(entries(100, 5000, value_bytes=10_000))
    wait_until(lambda: shipper.counters.go_backs.total() >= 2)
    assert shipper.counters.in_flight_bytes <= 33 << 20
    broker.start()
    spool.append(entries(5100, 100))
    wait_until(
        lambda: all(spool.read_ship_offsets(stream) == spool.end(stream) for stream in STREAMS)
    )
    stop.set()
    running.join()
    assert facts(log) == facts(spool)
    log.close()


def test_once_gives_up_in_time_and_keeps_what_was_acknowledged(
    broker: Broker, spool: SqliteLog, kafka_log: KafkaLog
) -> None:
    spool.append(entries(0, 10))
    shipper = Shipper(spool, kafka_log.sender)
    broker.stop()
    try:
        with pytest.raises(LogUnavailable, match="no broker listens"):
            shipper.ship_once(timeout_seconds=0.5)
    finally:
        broker.start()
    assert shipper.ship_once() == 10


def test_what_waiting_cannot_heal_is_raised(spool: SqliteLog, kafka_log: KafkaLog) -> None:
    spool.append(entries(0, 10))

    def refused() -> Sender:
        raise LogReadOnly("these credentials may not write")

    with pytest.raises(LogReadOnly):
        Shipper(spool, refused).run(threading.Event())
    # The lock went with it.
    assert Shipper(spool, kafka_log.sender).ship_once() == 10


def test_without_idempotence_it_ships_the_same(spool: SqliteLog, kafka_log: KafkaLog) -> None:
    spool.append(entries(0, 500))
    Shipper(spool, partial(kafka_log.sender, idempotent=False)).ship_once()
    assert facts(kafka_log) == facts(spool)
