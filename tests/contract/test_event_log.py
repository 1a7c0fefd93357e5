"""What every log does, whatever it is made of: one suite for memory, SQLite and Kafka.

A test asks for offsets only where it has got them from: a broker may leave holes between them.
Sequences are dense per source and partition everywhere.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from events.errors import AheadOfLog, LogTruncated, TooLarge
from events.log import Entry, EventLog, Headers, Place, Record
from events.memory import MemoryLog
from events.sqlite.log import SqliteLog
from events.streams import MAX_VALUE_BYTES, STREAMS

SECONDS = 30.0
"""Deadline of whatever must happen: reaching it is a failure, so it may be generous."""


@pytest.fixture(params=["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    if request.param == "kafka":
        yield request.getfixturevalue("kafka_log")
        return
    made: EventLog = MemoryLog() if request.param == "memory" else SqliteLog(tmp_path / "log.db")
    yield made
    made.close()


@pytest.fixture
def other(request: pytest.FixtureRequest, log: EventLog) -> Iterator[EventLog]:
    """A second handle on the same log, as another process would hold it; in memory there is only
    the one."""
    if isinstance(log, MemoryLog):
        made: EventLog = log
    elif isinstance(log, SqliteLog):
        made = SqliteLog(log.path)
    else:
        from events.kafka.log import KafkaLog

        broker, topics = (request.getfixturevalue(name) for name in ("broker", "kafka_topics"))
        made = KafkaLog(broker.bootstrap, topics=topics, replication=1)
    yield made
    made.close()


def entry(
    value: bytes = b"value",
    *,
    stream: str = "rollouts",
    partition: int = 3,
    key: str = "session",
    headers: Headers = (("ce_id", b"1"),),
    recorded_ms: int = 1_700_000_000_000,
) -> Entry:
    return Entry(stream, partition, key, headers, value, recorded_ms)


def everything(log: EventLog, stream: str = "rollouts", partition: int = 3) -> list[Record]:
    """All records from the start, in reads as small as the interface allows."""
    found: list[Record] = []
    at = log.start(stream)[partition]
    while records := log.read(stream, partition, at, limit=3):
        found += records
        at = records[-1].offset + 1
    return found


def test_records_of_a_partition_come_back_in_the_order_of_their_appends(log: EventLog) -> None:
    for number in range(10):
        log.append([entry(b"%d" % number)])
    assert [record.value for record in everything(log)] == [b"%d" % n for n in range(10)]


def test_a_batch_keeps_its_order_in_every_partition_it_touches(log: EventLog) -> None:
    batch = [entry(b"%d" % number, partition=number % 4) for number in range(20)]
    log.append(batch)
    for partition in range(4):
        expected = [b"%d" % number for number in range(partition, 20, 4)]
        assert [record.value for record in everything(log, partition=partition)] == expected


def test_streams_do_not_mix(log: EventLog) -> None:
    log.append([entry(b"r", partition=0), entry(b"l", stream="learning", partition=0)])
    assert [record.value for record in everything(log, "rollouts", 0)] == [b"r"]
    assert [record.value for record in everything(log, "learning", 0)] == [b"l"]


def test_append_returns_the_place_of_each_entry(log: EventLog) -> None:
    batch = [entry(b"%d" % number, partition=number % 2) for number in range(6)]
    places = log.append(batch)
    assert [(place.stream, place.partition) for place in places] == [
        ("rollouts", number % 2) for number in range(6)
    ]
    for number, place in enumerate(places):
        first = log.read(place.stream, place.partition, place.offset, limit=1)[0]
        assert (first.offset, first.value) == (place.offset, b"%d" % number)


def test_an_empty_batch_is_appended_at_once(log: EventLog) -> None:
    assert log.append([]) == []


def test_reading_begins_at_any_offset(log: EventLog) -> None:
    places = log.append([entry(b"%d" % number) for number in range(8)])
    for number, place in enumerate(places):
        values = [record.value for record in log.read("rollouts", 3, place.offset)]
        assert values == [b"%d" % rest for rest in range(number, 8)]


def test_reading_stops_at_the_limit(log: EventLog) -> None:
    first = log.append([entry() for _ in range(8)])[0]
    assert len(log.read("rollouts", 3, first.offset, limit=5)) == 5


def test_reading_stops_before_the_bytes_are_too_many(log: EventLog) -> None:
    first = log.append([entry(b"x" * 1000) for _ in range(8)])[0]
    assert len(log.read("rollouts", 3, first.offset, max_bytes=3000)) == 3


def test_a_record_above_the_bytes_asked_for_is_read_by_itself(log: EventLog) -> None:
    first = log.append([entry(b"x" * 1000) for _ in range(3)])[0]
    assert len(log.read("rollouts", 3, first.offset, max_bytes=10)) == 1


def test_nothing_is_read_at_the_end(log: EventLog) -> None:
    log.append([entry()])
    assert log.read("rollouts", 3, log.end("rollouts")[3]) == []
    assert log.read("rollouts", 4, log.end("rollouts")[4]) == []


def test_every_partition_has_a_start_and_an_end(log: EventLog) -> None:
    for stream in STREAMS.values():
        assert len(log.start(stream.name)) == stream.partitions
        assert log.start(stream.name) == log.end(stream.name)


def test_the_end_moves_beyond_what_was_appended(log: EventLog) -> None:
    before = log.end("rollouts")
    place = log.append([entry()])[0]
    after = log.end("rollouts")
    assert after[3] > place.offset >= before[3]
    assert after[:3] + after[4:] == before[:3] + before[4:]


@pytest.mark.parametrize(
    "exact",
    [
        entry(b""),
        entry(bytes(range(256))),
        entry(b"\x00" * 5000),
        entry(b"v", key=""),
        entry(b"v", key="Straße 東京 \x00 \U0001f600"),
        entry(b"v", headers=()),
        entry(b"v", headers=(("empty", b""), ("binary", bytes(range(256))))),
        entry(b"v", headers=(("same", b"1"), ("other", b"2"), ("same", b"3"), ("same", b"1"))),
        entry(b"v", headers=(("größe", b"x" * 70_000),)),
        entry(b"x" * MAX_VALUE_BYTES),
        entry(b"v", recorded_ms=1),
    ],
    ids=[
        "empty value", "binary value", "zeros", "empty key", "odd key", "no headers",
        "odd header values", "repeated header names", "large header", "largest value", "old time",
    ],
)  # fmt: skip
def test_a_record_is_what_was_appended_bit_for_bit(log: EventLog, exact: Entry) -> None:
    place = log.append([exact])[0]
    record = log.read(place.stream, place.partition, place.offset)[0]
    assert record.key == exact.key
    assert record.value == exact.value
    assert record.headers == exact.headers
    assert record.recorded_ms == exact.recorded_ms
    assert (record.stream, record.partition) == (exact.stream, exact.partition)
    assert type(record.value) is bytes


def test_a_log_names_itself_as_the_source_and_counts_without_gaps(log: EventLog) -> None:
    for number in range(12):
        log.append([entry(partition=number % 3), entry(partition=5)])
    sources = set()
    for partition in (0, 1, 2, 5):
        records = everything(log, partition=partition)
        assert [record.sequence for record in records] == list(range(len(records)))
        sources |= {record.source for record in records}
    assert len(sources) == 1
    assert sources != {""}


def test_sequences_stay_dense_when_many_threads_append(log: EventLog) -> None:
    with ThreadPoolExecutor(8) as pool:
        batches = [
            [entry(b"%d/%d" % (batch, part), partition=part % 2) for part in range(4)]
            for batch in range(40)
        ]
        appended = list(pool.map(log.append, batches))
    places = [place for batch in appended for place in batch]
    assert len(set(places)) == 160
    for partition in (0, 1):
        records = everything(log, partition=partition)
        assert [record.sequence for record in records] == list(range(80))
        found = {record.offset: record.value for record in records}
        for batch, result in enumerate(appended):
            for part, place in enumerate(result):
                if place.partition == partition:
                    assert found[place.offset] == b"%d/%d" % (batch, part)


def test_a_value_above_the_limit_is_refused_and_leaves_nothing_of_its_batch(log: EventLog) -> None:
    with pytest.raises(TooLarge, match="1,000,001 bytes for rollouts/3"):
        log.append([entry(b"before"), entry(b"x" * (MAX_VALUE_BYTES + 1)), entry(b"after")])
    assert everything(log) == []
    log.append([entry(b"next")])
    assert [(record.sequence, record.value) for record in everything(log)] == [(0, b"next")]


def test_waiting_returns_at_once_when_something_is_there(log: EventLog) -> None:
    place = log.append([entry()])[0]
    assert log.wait({("rollouts", 3): place.offset, ("rollouts", 4): 0}, SECONDS)


def test_waiting_ends_without_result_when_nothing_comes(log: EventLog) -> None:
    log.append([entry()])
    ends = {("rollouts", p): end for p, end in enumerate(log.end("rollouts"))}
    assert not log.wait(ends, 0.05)
    assert not log.wait({}, 0.0)


def test_waiting_looks_at_the_partitions_of_the_cursor_only(log: EventLog) -> None:
    log.append([entry(partition=1)])
    assert not log.wait({("rollouts", 3): log.end("rollouts")[3]}, 0.05)


def test_waiting_is_ended_by_an_append(log: EventLog) -> None:
    ends: dict[tuple[str, int], int] = {
        ("rollouts", p): end for p, end in enumerate(log.end("rollouts"))
    }
    ends["learning", 0] = log.end("learning")[0]
    entered = threading.Event()

    def waiting() -> bool:
        entered.set()
        return log.wait(ends, SECONDS)

    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(waiting)
        entered.wait(SECONDS)
        log.append([entry(stream="learning", partition=0)])
        assert woken.result(SECONDS)


def test_trimming_moves_the_start_and_keeps_the_rest(log: EventLog) -> None:
    places = log.append([entry(b"%d" % number) for number in range(6)])
    end = log.end("rollouts")
    log.trim("rollouts", 3, places[4].offset)
    assert log.start("rollouts")[3] == places[4].offset
    assert log.end("rollouts") == end
    assert [record.value for record in everything(log)] == [b"4", b"5"]
    assert [record.sequence for record in everything(log)] == [4, 5]


def test_reading_before_the_start_is_refused_instead_of_skipping(log: EventLog) -> None:
    places = log.append([entry() for _ in range(6)])
    log.trim("rollouts", 3, places[4].offset)
    with pytest.raises(LogTruncated, match=f"rollouts/3 starts at offset {places[4].offset}"):
        log.read("rollouts", 3, places[3].offset)


def test_trimming_again_further_down_changes_nothing(log: EventLog) -> None:
    places = log.append([entry() for _ in range(6)])
    log.trim("rollouts", 3, places[4].offset)
    log.trim("rollouts", 3, places[2].offset)
    assert log.start("rollouts")[3] == places[4].offset


def test_a_log_trimmed_to_its_end_goes_on_counting(log: EventLog) -> None:
    log.append([entry() for _ in range(3)])
    end = log.end("rollouts")[3]
    log.trim("rollouts", 3, end)
    assert log.read("rollouts", 3, end) == []
    log.append([entry(b"next")])
    assert [(record.sequence, record.value) for record in everything(log)] == [(3, b"next")]


def test_reading_beyond_the_end_is_refused(log: EventLog) -> None:
    log.append([entry()])
    beyond = log.end("rollouts")[3] + 1
    with pytest.raises(AheadOfLog, match=f"offset {beyond} was asked for"):
        log.read("rollouts", 3, beyond)


def test_closing_twice_is_closing(log: EventLog) -> None:
    log.append([entry()])
    log.close()
    log.close()


def test_places_tell_streams_apart(log: EventLog) -> None:
    batch = [entry(partition=0), entry(stream="learning", partition=0), entry(partition=0)]
    first, decision, second = log.append(batch)
    assert decision == Place("learning", 0, log.start("learning")[0])
    assert first.offset < second.offset


def test_two_handles_append_to_one_log(log: EventLog, other: EventLog) -> None:
    for number in range(6):
        (log if number % 2 else other).append([entry(b"%d" % number)])
    assert [record.value for record in everything(log)] == [b"%d" % n for n in range(6)]
    assert everything(other) == everything(log)


def test_waiting_is_ended_by_an_append_through_another_handle(
    log: EventLog, other: EventLog
) -> None:
    cursor = {("rollouts", 3): log.end("rollouts")[3]}
    entered = threading.Event()

    def waiting() -> bool:
        entered.set()
        return log.wait(cursor, SECONDS)

    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(waiting)
        entered.wait(SECONDS)
        other.append([entry()])
        assert woken.result(SECONDS)


def test_a_handle_sees_what_another_one_trimmed(log: EventLog, other: EventLog) -> None:
    places = log.append([entry() for _ in range(4)])
    other.trim("rollouts", 3, places[2].offset)
    with pytest.raises(LogTruncated):
        log.read("rollouts", 3, places[1].offset)
