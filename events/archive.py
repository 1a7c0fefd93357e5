"""An archive: a log's records in files that a hash chain holds together.

    FOLDER/manifest.json       what there is; each segment names the hash of the entry before it
    FOLDER/segments/*.segment  records of one partition, exactly as they were (segments.py)
    FOLDER/blobs/ab/<sha256>   the bodies that they name

    export(log, blobs, folder)    writes one, or goes on where one ends
    Archive(folder)               reads one: a log that nobody can append to

Guarantees: the manifest is written last and at once, so an export that is killed leaves the archive
as it was before; a segment that is missing, was altered or was exchanged is named before anything
of it is handed out. Not covered: a whole archive that was exchanged for an older one of the same
log, which only the `head` that an export returned can tell.
"""

import bisect
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from events import segments
from events.blobs import BlobStore, sync_folder
from events.canonical import exact_json, sha256
from events.codec import blob_of
from events.envelope import minted_id
from events.errors import BadRecord, LogCorrupt, LogError, LogReadOnly
from events.log import Cursor, Entry, EventLog, Place, Record, check_bounds, read_all, within_bytes
from events.sqlite import SqliteLog
from events.streams import LEARNING, ROLLOUTS, STREAMS

FORMAT: Final = 1

MANIFEST: Final = "manifest.json"

_HELD: Final = 1 + sum(stream.partitions for stream in STREAMS.values())
"""Segments in memory: one per partition, since a round has all partitions read in turn."""

Cut = dict[tuple[str, int], int]
"""(stream, partition) -> offset."""


@dataclass(frozen=True, slots=True)
class Segment:
    """An entry of the manifest."""

    stream: str
    partition: int
    first: int
    """Offset of its first record."""
    last: int
    count: int
    """Fewer than the offsets between, where the log had holes."""
    size: int
    """Bytes before compression."""
    sha256: str
    """Of these bytes."""
    file: str
    previous: str
    """Hash of the entry before; of the first, of what the manifest says of the whole."""

    @property
    def hash(self) -> str:
        """What the next entry names."""
        return sha256(exact_json(asdict(self)))


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds."""

    source: str | None
    """The log's own id; None for a broker's log, which holds events of several."""
    starts: dict[str, list[int]]
    """Stream -> per partition, the first offset."""
    segments: tuple[Segment, ...]

    @property
    def head(self) -> str:
        """Hash of the last entry: it stands for the whole archive."""
        return self.segments[-1].hash if self.segments else self.root

    @property
    def root(self) -> str:
        """What the first entry names."""
        return sha256(exact_json({"format": FORMAT, "source": self.source, "starts": self.starts}))

    def ends(self) -> Cut:
        """Offset after the last record of each partition."""
        found = {
            (stream, p): offset
            for stream, offsets in self.starts.items()
            for p, offset in enumerate(offsets)
        }
        found |= {(one.stream, one.partition): one.last + 1 for one in self.segments}
        return found


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    events: int
    segments: int
    blobs: int
    head: str
    """Of the archive; whoever keeps it elsewhere can tell another archive from this one."""


def export(
    log: EventLog,
    blobs: BlobStore,
    folder: Path,
    *,
    start: Cut | None = None,
    end: Cut | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Exported:
    """Write what lies before `end` (default: the log's end now) into `folder`: from `start`
    (default: the log's start) into a new one, and into an archive of this log what it lacks.

    Raises LogError where the archive is of another log or does not reach the log's start."""
    until = ends(log) if end is None else end
    manifest = _begun(log, folder, start)
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
    return Exported(events, len(written) - len(manifest.segments), copied, done.head)


def ends(log: EventLog) -> Cut:
    """Where a log ends now: no round that lies before it names rollouts behind it."""
    # The decisions first: what they name was appended before them.
    at = {stream.name: log.end(stream.name) for stream in (LEARNING, ROLLOUTS)}
    return {(stream, p): offset for stream in STREAMS for p, offset in enumerate(at[stream])}


def is_archive(folder: Path) -> bool:
    """Whether a folder holds an archive."""
    return (folder / MANIFEST).is_file()


class Archive:
    """The log that an archive holds; it can be read only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _load(folder)
        self.blobs = BlobStore(folder / "blobs")
        self._ends = self.manifest.ends()
        self._of: dict[tuple[str, int], list[Segment]] = {at: [] for at in self._ends}
        for segment in self.manifest.segments:
            self._of[segment.stream, segment.partition].append(segment)
        self._held: OrderedDict[str, list[Record]] = OrderedDict()

    def segments(self, stream: str, partition: int) -> Sequence[Segment]:
        """Of one partition, in the order of offsets."""
        return self._of[stream, partition]

    def records(self, segment: Segment) -> list[Record]:
        """Of one segment; raises LogCorrupt, with its name, where it is not what it was."""
        if segment.file not in self._held:
            self._held[segment.file] = self._load(segment)
            if len(self._held) > _HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(segment.file)
        return self._held[segment.file]

    def _load(self, segment: Segment) -> list[Record]:
        path = self.folder / "segments" / segment.file
        try:
            stored = path.read_bytes()
        except OSError as error:
            raise LogCorrupt(
                f"segment {path} cannot be read: {error.strerror}; restore it from another copy"
            ) from error
        records = segments.unpacked(
            segment.stream, segment.partition, stored, segment.sha256, str(path)
        )
        if [r.offset for r in (records[0], records[-1])] != [segment.first, segment.last]:
            raise LogCorrupt(
                f"segment {path} does not hold offsets {segment.first} to {segment.last}, as "
                f"{MANIFEST} says; restore both from another copy"
            )
        return records

    def read(
        self, stream: str, partition: int, offset: int, limit: int = 500, max_bytes: int = 32 << 20
    ) -> list[Record]:
        end = self._ends[stream, partition]
        check_bounds(stream, partition, offset, self.manifest.starts[stream][partition], end)
        of = self._of[stream, partition]
        place = bisect.bisect_left(of, offset, key=lambda one: one.last)
        if place == len(of):
            return []
        records = self.records(of[place])
        first = bisect.bisect_left(records, offset, key=lambda one: one.offset)
        return within_bytes(records[first : first + limit], max_bytes)

    def start(self, stream: str) -> tuple[int, ...]:
        return tuple(self.manifest.starts[stream])

    def end(self, stream: str) -> tuple[int, ...]:
        return tuple(self._ends[stream, p] for p in range(STREAMS[stream].partitions))

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        return any(self._ends[at] > offset for at, offset in cursor.items())

    def append(self, entries: Sequence[Entry]) -> list[Place]:
        self._refuse()

    def trim(self, stream: str, partition: int, before: int) -> None:
        self._refuse()

    def close(self) -> None:
        """Nothing to release."""

    def _refuse(self) -> NoReturn:
        raise LogReadOnly(
            f"{self.folder} is an archive; append to the log that it is exported from"
        )


def _begun(log: EventLog, folder: Path, start: Cut | None) -> Manifest:
    """The manifest of what is there, or of a new archive."""
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
        return Manifest(log.source if isinstance(log, SqliteLog) else None, first, ())
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
    """The archive's last record has to be the log's."""
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
    """The records of one segment after the other, and as they stand in it."""
    records: list[Record] = []
    frames: list[bytes] = []
    size = 0
    for page in read_all(log, stream, partition, offset, end):
        for record in page:
            records.append(record)
            frames.append(segments.framed(record))
            size += len(frames[-1])
            # At round offsets, so that segments of two archives of one log are the same ones.
            if (record.offset + 1) % segments.RECORDS == 0 or size >= segments.BYTES:
                yield records, frames
                records, frames, size = [], [], 0
    if records:
        yield records, frames


def copy_blobs(records: Sequence[Record], blobs: BlobStore, kept: BlobStore) -> int:
    """Put the bodies that records name where they are kept; returns how many were not there."""
    copied = 0
    for record in records:
        if record.stream != ROLLOUTS.name:
            continue
        try:
            reference = blob_of(record.value)
        except BadRecord:
            continue  # a dead letter: its bytes are kept as they are, and name nothing
        if reference is not None and not kept.holds(reference.sha256):
            kept.put(blobs.get(reference.sha256))
            copied += 1
    return copied


def _write(
    folder: Path, records: Sequence[Record], frames: Sequence[bytes], previous: str
) -> Segment:
    stream, partition = records[0].stream, records[0].partition
    first, last = records[0].offset, records[-1].offset
    packed = segments.packed(stream, partition, frames)
    # Named by what it holds: two exports at once into one folder never write different bytes there.
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
        "segments": [asdict(one) for one in manifest.segments],
    }
    _put(folder / MANIFEST, json.dumps(document, indent=1).encode() + b"\n")


def _put(path: Path, content: bytes) -> None:
    """Write a file durably and at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{minted_id()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _load(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise LogError(
                f"{path} has format {document['format']!r}, this kintsugi reads {FORMAT}; upgrade "
                "this process"
            )
        manifest = Manifest(
            document["source"],
            {stream: list(document["starts"][stream]) for stream in STREAMS},
            tuple(Segment(**entry) for entry in document["segments"]),
        )
    except FileNotFoundError as error:
        raise LogError(
            f"{folder} is no archive: it has no {MANIFEST}; name the folder of an export"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LogCorrupt(f"{path} cannot be read ({error}); restore it from a copy") from error
    _check_chain(path, manifest, document.get("head"))
    return manifest


def _check_chain(path: Path, manifest: Manifest, head: object) -> None:
    previous = manifest.root
    following = {
        (stream, p): offset
        for stream in STREAMS
        for p, offset in enumerate(manifest.starts[stream])
    }
    for segment in manifest.segments:
        at = (segment.stream, segment.partition)
        if segment.previous != previous or segment.first < following.get(at, 0):
            raise LogCorrupt(
                f"{path} does not name {segment.file} where its chain of hashes has its place; "
                "restore it from a copy"
            )
        previous, following[at] = segment.hash, segment.last + 1
    if head != manifest.head:
        raise LogCorrupt(
            f"{path} ends at {manifest.head}, and not at {head}; restore it from a copy"
        )
