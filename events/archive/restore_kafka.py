"""Restores a broker's log from an archive on empty topics, with the same offsets, times, sources,
sequences and bytes.

Guarantees: every segment is checked before it is sent; every record is acknowledged at its old
offset, or the restore stops and names it. A second run compares the topics and writes nothing
twice. Not covered: an archive that lacks the log's beginning, because a new topic begins at 0.
"""

from collections.abc import Callable, Sequence
from typing import Final

from events.archive.archive import Archive, RestoreResult, Segment, check_dense
from events.archive.export import copy_blobs
from events.blobs import BlobStore
from events.errors import LogError, LogUnavailable
from events.kafka.log import KafkaLog
from events.kafka.sender import OutboundRecord, Sender
from events.log import Record, read_all
from events.streams import STREAMS

_ACKNOWLEDGED_SECONDS: Final = 130.0
"""Seconds to wait for an acknowledgement. The producer gives up earlier by itself."""


def restore(
    archive: Archive,
    log: KafkaLog,
    blobs: BlobStore,
    advance: Callable[[int], None] = lambda _: None,
) -> RestoreResult:
    """Restore all blobs, then all records. The result also counts records that were there before.
    Raises LogCorrupt, BlobError, LogUnavailable, and LogError for topics with other records."""
    check_dense(archive)
    _check_begins(archive)
    copied = sum(
        copy_blobs(archive.records(segment), archive.blobs, blobs)
        for segment in archive.manifest.segments
    )
    ends = {(stream, p): at for stream in STREAMS for p, at in enumerate(log.end(stream))}
    for (stream, partition), end in archive.manifest.ends().items():
        if ends[stream, partition] > end:
            raise _conflict_error(archive, stream, partition, end)
    sender = log.sender()
    try:
        for segment in archive.manifest.segments:
            _fill(archive, segment, log, ends[segment.stream, segment.partition], sender)
            advance(segment.count)
    except LogUnavailable as error:
        raise LogUnavailable(f"{error}; import again, it goes on where the topics end") from error
    finally:
        sender.close()
    return RestoreResult(sum(segment.count for segment in archive.manifest.segments), copied)


def _check_begins(archive: Archive) -> None:
    for stream, offsets in archive.manifest.starts.items():
        for partition, offset in enumerate(offsets):
            if offset:
                raise LogError(
                    f"{archive.folder} begins at offset {offset} of {stream}/{partition}, and a "
                    "new topic at 0; import an archive that holds the beginning, or this one into "
                    "an empty home, without kafka_bootstrap_servers"
                )


def _fill(archive: Archive, segment: Segment, log: KafkaLog, end: int, sender: Sender) -> None:
    """Send the records of a segment that its topic lacks. `end` is the topic's end before the
    restore. Raises LogError if the topic holds other records."""
    records = archive.records(segment)
    at = (segment.stream, segment.partition)
    held = max(0, min(end, segment.last + 1) - segment.first)
    there = [
        record
        for page in read_all(log, *at, segment.first, segment.first + held)
        for record in page
    ]
    if there != records[:held]:
        raise _conflict_error(archive, *at, segment.first)
    _send(archive, records[held:], sender)


def _send(archive: Archive, records: Sequence[Record], sender: Sender) -> None:
    sent = [sender.send(OutboundRecord.of(record)) for record in records]
    for record, pending in zip(records, sent, strict=True):
        if pending.offset(_ACKNOWLEDGED_SECONDS) != record.offset:
            raise _conflict_error(archive, record.stream, record.partition, record.offset)


def _conflict_error(archive: Archive, stream: str, partition: int, offset: int) -> LogError:
    return LogError(
        f"the topic of {stream}/{partition} holds events from offset {offset} on that are not "
        f"those of {archive.folder}; stop what ships there and import into topics that are empty"
    )
