"""`kintsugi log trim`: drop the part of a log that an archive verifiably holds.

Only `rollouts` is trimmed: `learning` is small, and explains everything. An event is dropped if it
lies before the named place and was folded, and the archive has it and all earlier events unchanged.
In the folded log, no open session may need it. In a spool, the broker must have it. Another
database that folds the same topics halts if it has not folded the dropped events.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.position import offsets, position
from consumers.retention import find_retention_offset
from events.archive.archive import Archive, Cut
from events.codec import blob_of
from events.errors import BadRecord, LogError, LogTruncated
from events.log import EventLog, Record, read_all
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from daemon.core.app import App


@dataclass(frozen=True, slots=True)
class Portion:
    """The part of one partition that may be dropped."""

    partition: int
    start: int
    before: int
    """Events from `start` to before this offset are dropped."""
    kept_for: str | None
    """Reason for keeping the rest before the named place; None if all of it is dropped."""

    @property
    def events(self) -> int:
        return self.before - self.start


_REASONS: Final = ("archive", "tables", "broker", "sessions")


def find_source_log(app: "App", archive: Archive) -> EventLog:
    """Return the log of this home that an archive was made from. Raise LogError without one."""
    source = archive.manifest.source
    if source is None and app.on_kafka:
        return app.kafka
    if source != app.spool.only_source:
        whose = "a broker" if source is None else f"log {source}"
        raise LogError(
            f"{archive.folder} is an archive of {whose}, and {app.spool.path} is log "
            f"{app.spool.source}; name an export of this home, made without Kafka, or set "
            "kafka_bootstrap_servers to the broker that it is of"
        )
    return app.spool


def plan(app: "App", log: EventLog, archive: Archive, before: Cut) -> list[Portion]:
    """Return the droppable portion of each partition up to `before`. Raise LogError, LogCorrupt."""
    return [
        _portion(app, log, archive, p, before[ROLLOUTS.name, p]) for p in range(ROLLOUTS.partitions)
    ]


def _portion(app: "App", log: EventLog, archive: Archive, partition: int, named: int) -> Portion:
    start = log.start(ROLLOUTS.name)[partition]
    end = max(start, named)
    limits = {
        "archive": archive.end(ROLLOUTS.name)[partition],
        "tables": _read_fold_offset(app, log, partition),
    }
    if log is not app.log:
        limits["broker"] = app.spool.read_ship_offsets(ROLLOUTS.name)[partition]
    before = max(start, min(end, *limits.values()))
    if log is app.log:
        # Sessions are read from the folded log.
        with app.reading() as connection:
            limits["sessions"] = find_retention_offset(connection, partition, before)
        before = max(start, min(before, limits["sessions"]))
    proven = _verify_archive(archive, log, partition, before)
    assert proven == before, "the archive reaches as far as its end says"
    held_back = next((name for name in _REASONS if limits.get(name, end) == before < end), None)
    return Portion(partition, start, before, held_back)


def _read_fold_offset(app: "App", log: EventLog, partition: int) -> int:
    """Return the offset before which the tables hold every event of a log."""
    with app.reading() as connection:
        if log is app.log:
            return offsets(connection).get((ROLLOUTS.name, partition), 0)
        reached = position(connection).get(ROLLOUTS.name, {}).get(str(partition), {})
    last = reached.get(app.spool.source)
    # A spool's copies of other logs' events were shipped and folded before its own events.
    return 0 if last is None else app.spool.copy_end(ROLLOUTS.name, partition) + last + 1


def trim(log: EventLog, planned: list[Portion]) -> int:
    """Drop the planned portions; return the number of events dropped."""
    for portion in planned:
        if portion.events:
            log.trim(ROLLOUTS.name, portion.partition, portion.before)
    return sum(portion.events for portion in planned)


def _verify_archive(archive: Archive, log: EventLog, partition: int, end: int) -> int:
    """Return the offset, at most `end`, up to which the archive has the log's records and bodies.
    Every record is compared, so a damaged or foreign archive is found before events are dropped.
    Raise LogError, LogCorrupt."""
    start = log.start(ROLLOUTS.name)[partition]
    if archive.start(ROLLOUTS.name)[partition] > start:
        raise LogTruncated(
            f"{archive.folder} starts at {ROLLOUTS.name}/{partition} offset "
            f"{archive.start(ROLLOUTS.name)[partition]}, and the log at {start}; name an archive "
            "that holds its beginning"
        )
    until = min(end, archive.end(ROLLOUTS.name)[partition])
    for page in read_all(log, ROLLOUTS.name, partition, start, until):
        _check_page(archive, page)
        for record in page:
            _check_body(archive, record)
    return max(start, until)


def _check_page(archive: Archive, page: list[Record]) -> None:
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
        return  # an unreadable record has no body
    if reference is not None:
        archive.blobs.get(reference.sha256)
