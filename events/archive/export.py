"""Writes archives. The manifest is written last and at once, so a killed export leaves the archive
as it was."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from events import private
from events.archive import segments
from events.archive.archive import (
    FORMAT,
    MANIFEST,
    Archive,
    Cut,
    Manifest,
    Segment,
    ends,
    is_archive,
)
from events.blobs import BlobStore
from events.codec import blob_of
from events.errors import BadRecord, LogError
from events.files import replace_file
from events.log import EventLog, Record, check_bounds, read_all
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS, STREAMS


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export."""

    events: int
    segments: int
    blobs: int
    head: str
    """Hash of the archive's last entry. Keep it elsewhere to recognise this archive later."""


def export(
    log: EventLog,
    blobs: BlobStore,
    folder: Path,
    *,
    start: Cut | None = None,
    end: Cut | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> ExportResult:
    """Write the records before `end` (default: the log's end) into `folder`. A new archive begins
    at `start`; an existing archive gets the records that it lacks. Raises LogError if the archive
    is of another log or starts too late."""
    until = ends(log) if end is None else end
    manifest = _open_manifest(log, folder, start)
    private.make_folder(folder)
    kept = BlobStore(folder / "blobs")
    written: list[Segment] = list(manifest.segments)
    events = copied = 0
    for (stream, partition), offset in manifest.ends().items():
        for records, frames in _portions(log, stream, partition, offset, until[stream, partition]):
            copied += copy_blobs(records, blobs, kept)
            previous = written[-1].hash if written else manifest.root
            written.append(_write(folder, records, frames, previous))
            events += len(records)
            advance(len(records))
    done = replace(manifest, segments=tuple(written))
    if done != manifest or not (folder / MANIFEST).exists():
        _store(folder, done)
    return ExportResult(events, len(written) - len(manifest.segments), copied, done.head)


def _open_manifest(log: EventLog, folder: Path, start: Cut | None) -> Manifest:
    if not is_archive(folder):
        if folder.exists() and any(folder.iterdir()):
            raise LogError(f"{folder} holds files and no archive; name another folder")
        first = {
            stream: [
                held if start is None else max(held, start[stream, p])
                for p, held in enumerate(log.start(stream))
            ]
            for stream in STREAMS
        }
        return Manifest(log.only_source if isinstance(log, SqliteLog) else None, first, ())
    archive = Archive(folder)
    if start is not None:
        raise LogError(
            f"{folder} holds an archive, which goes on where it ends; leave out where to begin, "
            "or name another folder"
        )
    for (stream, partition), end in archive.manifest.ends().items():
        _check_continues(archive, log, stream, partition, end)
    return archive.manifest


def _check_continues(
    archive: Archive, log: EventLog, stream: str, partition: int, end: int
) -> None:
    check_bounds(stream, partition, end, log.start(stream)[partition], log.end(stream)[partition])
    of = archive.segments(stream, partition)
    if not of or of[-1].last < log.start(stream)[partition]:
        return
    if archive.records(of[-1])[-1:] != log.read(stream, partition, of[-1].last, limit=1):
        raise LogError(
            f"{archive.folder} is an archive of another log: {stream}/{partition} offset "
            f"{of[-1].last} is another event there; name another folder"
        )


def _portions(
    log: EventLog, stream: str, partition: int, offset: int, end: int
) -> Iterator[tuple[list[Record], list[bytes]]]:
    records: list[Record] = []
    frames: list[bytes] = []
    size = 0
    for page in read_all(log, stream, partition, offset, end):
        for record in page:
            records.append(record)
            frames.append(segments.frame_record(record))
            size += len(frames[-1])
            # Close at multiples of `RECORDS`, so two archives of one log have the same segments.
            if (record.offset + 1) % segments.RECORDS == 0 or size >= segments.BYTES:
                yield records, frames
                records, frames, size = [], [], 0
    if records:
        yield records, frames


def copy_blobs(records: Sequence[Record], blobs: BlobStore, kept: BlobStore) -> int:
    """Copy the blobs that records name, if `kept` lacks them. Return the number of copies."""
    copied = 0
    for record in records:
        if record.stream != ROLLOUTS.name:
            continue
        try:
            reference = blob_of(record.value)
        except BadRecord:
            continue  # not readable (a dead letter): the record is kept, and no blob is known
        if reference is not None and not kept.holds(reference.sha256):
            kept.put(blobs.get(reference.sha256))
            copied += 1
    return copied


def _write(
    folder: Path, records: Sequence[Record], frames: Sequence[bytes], previous: str
) -> Segment:
    stream, partition = records[0].stream, records[0].partition
    first, last = records[0].offset, records[-1].offset
    packed = segments.pack_segment(stream, partition, frames)
    # The hash in the name prevents concurrent exports from writing different bytes to one file.
    file = f"{stream}-{partition}-{first:012}-{last:012}-{packed.sha256[:8]}.segment"
    _put(folder / "segments" / file, packed.stored)
    return Segment(
        stream, partition, first, last, len(records), packed.size, packed.sha256, file, previous
    )


def _store(folder: Path, manifest: Manifest) -> None:
    document = {
        "format": FORMAT,
        "head": manifest.head,
        "source": manifest.source,
        "starts": manifest.starts,
        "segments": [asdict(segment) for segment in manifest.segments],
    }
    _put(folder / MANIFEST, json.dumps(document, indent=1).encode() + b"\n")


def _put(path: Path, content: bytes) -> None:
    private.make_folder(path.parent)
    replace_file(path, content, is_durable=True, is_private=True, is_shared=True)
