"""A broker's log, with events of several sources, brought back from its archive bit for bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from events.archive import restore_kafka, restore_sqlite
from events.archive.archive import MANIFEST, Archive
from events.archive.export import export
from events.blobs import BlobStore
from events.errors import LogCorrupt, LogError
from events.kafka.log import KafkaLog
from events.kafka.sender import OutboundRecord
from events.log import Entry
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from ops.kafka.broker import Broker
from ops.mix import mix
from producers.shipper import Shipper
from tests.events.archive.test_archive import decision, records

pytestmark = pytest.mark.kafka


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def spool(folder: Path, entries: list[Entry]) -> SqliteLog:
    log = SqliteLog(folder, durability="process")
    log.append(entries)
    return log


@pytest.fixture
def archive(tmp_path: Path, kafka_log: KafkaLog, blobs: BlobStore) -> Archive:
    """Of topics to which two homes shipped in turn, one of them twice what it had."""
    one = spool(tmp_path / "one.db", list(mix(120)))
    other = spool(tmp_path / "other.db", [*mix(90, start=120), decision(0)])
    for log, added in ((one, [decision(1)]), (other, list(mix(40, start=210)))):
        Shipper(log, kafka_log.sender).ship_once()
        log.append(added)
        Shipper(log, kafka_log.sender).ship_once()
    again = one.read("rollouts", 1, 0, limit=3)
    _send(kafka_log, one, len(again))
    one.close()
    other.close()
    export(kafka_log, blobs, tmp_path / "kept")
    return Archive(tmp_path / "kept")


def _send(log: KafkaLog, spool: SqliteLog, count: int) -> None:
    """As a shipper does that was killed before it stored its cursor."""
    sender = log.sender()
    for record in spool.read("rollouts", 1, 0, limit=count):
        sender.send(OutboundRecord.of(record)).offset(30)
    sender.close()


@pytest.fixture
def empty(broker: Broker) -> Iterator[KafkaLog]:
    """Other topics."""
    topics = {stream.name: f"{stream.topic}.{uuid4().hex[:12]}" for stream in STREAMS.values()}
    log = KafkaLog(broker.bootstrap, topics=topics, replication=1)
    log.ensure_topics()
    yield log
    log.close()


def manifest(folder: Path) -> bytes:
    return (folder / MANIFEST).read_bytes()


def test_it_becomes_an_embedded_log_of_copies(
    archive: Archive, blobs: BlobStore, tmp_path: Path
) -> None:
    done = restore_sqlite.restore(archive, tmp_path / "back.db", blobs)
    assert done.events == 120 + 90 + 2 + 40 + 3
    back = SqliteLog(tmp_path / "back.db")
    assert records(back) == records(archive)
    assert len({one.source for of in records(back).values() for one in of}) == 2
    assert back.check() == []
    export(back, blobs, tmp_path / "again")
    assert manifest(tmp_path / "again") == manifest(archive.folder)

    # What it records itself is a source of its own, from 0 on.
    (place,) = back.append([decision(7)])
    (own,) = back.read("learning", 0, place.offset)
    assert (own.source, own.sequence, place.offset) == (back.source, 0, 2)
    back.close()


def test_it_fills_empty_topics_and_goes_on_where_it_was_left(
    archive: Archive, blobs: BlobStore, empty: KafkaLog, tmp_path: Path
) -> None:
    cut = archive.manifest.segments[:3]
    archive_cut = Archive(archive.folder)
    archive_cut.manifest = replace(archive.manifest, segments=cut)
    restore_kafka.restore(archive_cut, empty, blobs)
    assert sum(map(len, records(empty).values())) == sum(one.count for one in cut)
    restore_kafka.restore(archive, empty, blobs)
    assert records(empty) == records(archive)
    restore_kafka.restore(archive, empty, blobs)
    export(empty, blobs, tmp_path / "again")
    assert manifest(tmp_path / "again") == manifest(archive.folder)


def test_topics_that_hold_anything_else_are_left_alone(
    archive: Archive, blobs: BlobStore, empty: KafkaLog
) -> None:
    empty.append([decision(5)])
    with pytest.raises(LogError, match="learning/0 holds events from offset 0"):
        restore_kafka.restore(archive, empty, blobs)
    assert records(empty)["learning", 0][0].value == b"5"
    empty.append([decision(number) for number in range(6)])
    with pytest.raises(LogError, match="learning/0 holds events from offset 2"):
        restore_kafka.restore(archive, empty, blobs)


def test_nothing_is_sent_of_a_damaged_archive_or_one_without_its_beginning(
    archive: Archive, blobs: BlobStore, empty: KafkaLog, kafka_log: KafkaLog, tmp_path: Path
) -> None:
    last = sorted((archive.folder / "segments").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(LogCorrupt, match=last.name):
        restore_kafka.restore(Archive(archive.folder), empty, blobs)
    kafka_log.trim("rollouts", 2, 4)
    export(kafka_log, blobs, tmp_path / "late")
    late = Archive(tmp_path / "late")
    with pytest.raises(LogError, match="begins at offset 4 of rollouts/2"):
        restore_kafka.restore(late, empty, blobs)
    assert not any(records(empty).values())
    restore_sqlite.restore(late, tmp_path / "late.db", blobs)
    back = SqliteLog(tmp_path / "late.db")
    assert records(back) == records(late)
    back.close()
