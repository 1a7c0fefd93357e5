"""An archive: a log's records in files that a hash chain holds together.

    FOLDER/manifest.json       the index; each segment names the hash of the entry before it
    FOLDER/segments/*.segment  records of one partition, exactly as they were (segments.py)
    FOLDER/blobs/ab/<sha256>   the bodies that they name

Guarantee: a missing, altered or exchanged segment raises an error with its name before its records
are returned. Not covered: an older archive of the same log in place of this one. Only the `head`
that an export printed shows that.
"""

import bisect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from events.archive import segments
from events.blobs import BlobStore
from events.canonical import exact_json, sha256
from events.errors import LogCorrupt, LogError, LogReadOnly
from events.jobs import Sha256
from events.log import Cursor, Entry, EventLog, Place, Record, check_bounds, within_bytes
from events.registry import first_problem
from events.streams import LEARNING, ROLLOUTS, STREAMS

FORMAT: Final = 1

MANIFEST: Final = "manifest.json"

_HELD: Final = 1 + sum(stream.partitions for stream in STREAMS.values())
"""Most segments in memory: one per partition, because readers alternate between partitions."""

_Number = Annotated[int, Field(ge=0, lt=1 << 62)]
"""An offset, a partition or a size. The limit leaves room for offset + 1 in SQLite's integers."""

Cut = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Segment:
    """An entry of the manifest."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    stream: str
    partition: _Number
    first: _Number
    """Offset of its first record."""
    last: _Number
    count: Annotated[_Number, Field(ge=1)]
    """Number of records; less than the range of offsets where the log had holes."""
    size: _Number
    """Bytes before compression."""
    sha256: Sha256
    file: str
    previous: Sha256
    """Hash of the previous entry; in the first entry, the hash of the manifest's general fields."""

    @property
    def hash(self) -> str:
        """Return the entry's hash."""
        return sha256(exact_json(asdict(self)))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an archive."""

    source: str | None
    """The log's id; None for a log with events of several sources: a broker's, or a copy of it."""
    starts: dict[str, list[int]]
    """Stream -> per partition, the first offset."""
    segments: tuple[Segment, ...]

    @property
    def head(self) -> str:
        """Return the hash of the last entry, which depends on the whole archive."""
        return self.segments[-1].hash if self.segments else self.root

    @property
    def root(self) -> str:
        """Return the hash of the manifest's general fields, which the first entry names."""
        return sha256(exact_json({"format": FORMAT, "source": self.source, "starts": self.starts}))

    def ends(self) -> Cut:
        """Return the offset after the last record of each partition."""
        cut = {
            (stream, p): offset
            for stream, offsets in self.starts.items()
            for p, offset in enumerate(offsets)
        }
        cut |= {(segment.stream, segment.partition): segment.last + 1 for segment in self.segments}
        return cut


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of restoring an archive into a home's log or to a broker."""

    events: int
    blobs: int


def ends(log: EventLog) -> Cut:
    """Return the current end of each partition. Rounds before these ends name no later rollout."""
    # Read `learning` first: rollouts that decisions name were appended before them.
    at = {stream.name: log.end(stream.name) for stream in (LEARNING, ROLLOUTS)}
    return {(stream, p): offset for stream in STREAMS for p, offset in enumerate(at[stream])}


def check_dense(archive: "Archive") -> None:
    """Raise LogError if the archive lacks offsets (from a foreign transaction or a compaction)."""
    following = {
        (stream, p): offset
        for stream, offsets in archive.manifest.starts.items()
        for p, offset in enumerate(offsets)
    }
    for segment in archive.manifest.segments:
        at = (segment.stream, segment.partition)
        if (segment.first, segment.count) != (following[at], segment.last + 1 - segment.first):
            raise LogError(
                f"{archive.folder} lacks offsets of {segment.stream}/{segment.partition} between "
                f"{following[at]} and {segment.last}, and a log has none without a record; it can "
                "be "
                "read and folded with --archive, and not imported"
            )
        following[at] = segment.last + 1


def is_archive(folder: Path) -> bool:
    """Return whether a folder holds an archive."""
    return (folder / MANIFEST).is_file()


class ReadOnlyLog:
    """A log that takes no events."""

    def append(self, entries: Sequence[Entry]) -> list[Place]:
        self._refuse()

    def trim(self, stream: str, partition: int, before: int) -> None:
        self._refuse()

    def close(self) -> None:
        """Do nothing: it holds nothing open, or the caller closes the log that it opened."""

    def _refuse(self) -> NoReturn:
        raise LogReadOnly("a replay only reads; append to the log itself")


class Archive(ReadOnlyLog):
    """The log that an archive holds; it is read-only."""

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
        """Return the segments of a partition, in the order of offsets."""
        return self._of[stream, partition]

    def records(self, segment: Segment) -> list[Record]:
        """Return a segment's records. Raises LogCorrupt with its name if it was altered."""
        if segment.file not in self._held:
            self._held[segment.file] = self._load(segment)
            if len(self._held) > _HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(segment.file)
        return self._held[segment.file]

    def _load(self, segment: Segment) -> list[Record]:
        path = self.folder / "segments" / segment.file
        try:
            # Data that does not compress gets a little longer.
            if path.stat().st_size > 2 * segments.MAX_BYTES:
                raise LogCorrupt(
                    f"segment {path} is larger than any that is exported; restore it from another "
                    "copy"
                )
            stored = path.read_bytes()
        except OSError as error:
            raise LogCorrupt(
                f"segment {path} cannot be read: {error.strerror}; restore it from another copy"
            ) from error
        records = segments.unpack_segment(
            segment.stream, segment.partition, stored, segment.sha256, str(path)
        )
        if [r.offset for r in records[:1] + records[-1:]] != [segment.first, segment.last]:
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
        place = bisect.bisect_left(of, offset, key=lambda item: item.last)
        if place == len(of):
            return []
        records = self.records(of[place])
        first = bisect.bisect_left(records, offset, key=lambda item: item.offset)
        return within_bytes(records[first : first + limit], max_bytes)

    def start(self, stream: str) -> tuple[int, ...]:
        return tuple(self.manifest.starts[stream])

    def end(self, stream: str) -> tuple[int, ...]:
        return tuple(self._ends[stream, p] for p in range(STREAMS[stream].partitions))

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        return any(self._ends[at] > offset for at, offset in cursor.items())

    def _refuse(self) -> NoReturn:
        raise LogReadOnly(
            f"{self.folder} is an archive; append to the log that it is exported from"
        )


class _Format(BaseModel):
    model_config = ConfigDict(strict=True)

    format: int


class _ManifestFile(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    format: int
    head: Sha256
    source: str | None
    starts: dict[str, list[_Number]]
    segments: list[Segment]

    @field_validator("starts")
    @classmethod
    def _check_partitions(cls, starts: dict[str, list[int]]) -> dict[str, list[int]]:
        known = {name: stream.partitions for name, stream in STREAMS.items()}
        if {name: len(offsets) for name, offsets in starts.items()} != known:
            counts = ", ".join(f"{count} of {name}" for name, count in known.items())
            raise ValueError(f"a log has these partitions: {counts}")
        return starts


def _load(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
        written = _Format.model_validate_json(text).format
        if written != FORMAT:
            raise LogError(
                f"{path} has format {written}, this kintsugi reads {FORMAT}; upgrade this process"
            )
        document = _ManifestFile.model_validate_json(text)
    except FileNotFoundError as error:
        raise LogError(
            f"{folder} is no archive: it has no {MANIFEST}; name the folder of an export"
        ) from error
    except OSError as error:
        raise LogCorrupt(
            f"{path} cannot be read ({error.strerror}); restore it from a copy"
        ) from error
    except ValidationError as error:
        raise LogCorrupt(
            f"{path} cannot be read ({first_problem(error)}); restore it from a copy"
        ) from None
    manifest = Manifest(document.source, document.starts, tuple(document.segments))
    _check_chain(path, manifest, document.head)
    return manifest


def _check_chain(path: Path, manifest: Manifest, head: str) -> None:
    previous = manifest.root
    following = {
        (stream, p): offset
        for stream in STREAMS
        for p, offset in enumerate(manifest.starts[stream])
    }
    for segment in manifest.segments:
        file = segment.file
        if file in ("", "..") or "\0" in file or Path(file).name != file:
            raise LogCorrupt(
                f"{path} names {segment.file!r}, which is not in its own folder; restore it from a "
                "copy"
            )
        at = (segment.stream, segment.partition)
        if at not in following:
            raise LogCorrupt(
                f"{path} names {segment.file} as of {segment.stream[:64]}/{segment.partition}, "
                "which no log has; restore it from a copy"
            )
        if segment.previous != previous or not following[at] <= segment.first <= segment.last:
            raise LogCorrupt(
                f"{path} does not name {segment.file} where its chain of hashes has its place; "
                "restore it from a copy"
            )
        previous, following[at] = segment.hash, segment.last + 1
    if head != manifest.head:
        raise LogCorrupt(
            f"{path} ends at {manifest.head}, and not at {head}; restore it from a copy"
        )
