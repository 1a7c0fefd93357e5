"""Whether an archive may take the place of the beginning of a log.

    verify_archive(archive, log, partition, end)    how much of `rollouts` it verifiably holds

Every record before `end` is read in both and compared, so a segment that is damaged, or an archive
of another log, is found before anything is dropped.
"""

from events.archive.archive import Archive
from events.codec import blob_of
from events.errors import BadRecord, LogError, LogTruncated
from events.log import EventLog, Record, read_all
from events.streams import ROLLOUTS


def verify_archive(archive: Archive, log: EventLog, partition: int, end: int) -> int:
    """The offset, at most `end`, before which the archive holds all that the log does, bit for bit,
    with the bodies that records name. Raises LogError, LogCorrupt."""
    start = log.start(ROLLOUTS.name)[partition]
    if archive.start(ROLLOUTS.name)[partition] > start:
        raise LogTruncated(
            f"{archive.folder} starts at {ROLLOUTS.name}/{partition} offset "
            f"{archive.start(ROLLOUTS.name)[partition]}, and the log at {start}; name an archive "
            "that holds its beginning"
        )
    until = min(end, archive.end(ROLLOUTS.name)[partition])
    for page in read_all(log, ROLLOUTS.name, partition, start, until):
        _check(archive, page)
        for record in page:
            _check_body(archive, record)
    return max(start, until)


def _check(archive: Archive, page: list[Record]) -> None:
    first, last = page[0], page[-1]
    kept = [
        record
        for part in read_all(
            archive, first.stream, first.partition, first.offset, last.offset + 1, len(page)
        )
        for record in part
    ]
    if kept != page:
        raise LogError(
            f"{archive.folder} does not hold what the log does from {first.stream}/"
            f"{first.partition} offset {first.offset} on; export the log into another folder"
        )


def _check_body(archive: Archive, record: Record) -> None:
    try:
        reference = blob_of(record.value)
    except BadRecord:
        return  # a dead letter names nothing
    if reference is not None:
        archive.blobs.get(reference.sha256)
