"""Snapshots: the tables after a number of events, each in a SQLite database of its own.
FOLDER/000000100000.db the tables after 100,000 events in the order of recording
FOLDER/000000100000.json their position, and a hash over every row and column"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from consumers import database
from consumers.digest import exact_digest
from consumers.digest_tracker import DigestTracker
from consumers.position import offsets
from events import private
from events.archive.archive import Cut
from events.errors import KintsugiError


class NoSnapshot(KintsugiError):
    """The folder lacks the snapshots that are needed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's file and description."""

    path: Path
    events: int
    digest: str
    """Hash over every row and every column except the broker's offsets."""
    offsets: Cut
    logs: tuple[str, ...] = ()
    """Locations of the folded log in order, archives or files of a log; empty for a broker."""


@dataclass(frozen=True, slots=True)
class SnapshotDivergence:
    """The place where two foldings of one log begin to differ, as far as their snapshots tell."""

    equal: Snapshot | None
    """The last equal snapshot; None if already the first ones differ."""
    one: Snapshot
    """The first differing snapshot of the first folding; `other` is of the second."""
    other: Snapshot


def keep(
    engine: Engine, tracked: DigestTracker, folder: Path, events: int, logs: Sequence[str] = ()
) -> None:
    """Copy the tables of a SQLite database into a snapshot. The digest reads only changed rows."""
    private.make_folder(folder)
    path = folder / f"{events:012}.db"
    path.unlink(missing_ok=True)
    private.create_file(path)
    with engine.connect() as connection, closing(sqlite3.connect(path)) as copy:
        # Copy page by page; VACUUM would build every index again.
        connection.connection.driver_connection.backup(copy)  # type: ignore[union-attr]
    with database.read_transaction(engine) as connection:
        document = {
            "events": events,
            "digest": tracked.digest(connection),
            "offsets": [[*at, offset] for at, offset in sorted(offsets(connection).items())],
            "logs": list(logs),
        }
    # Written last: without it, a snapshot is incomplete and ignored.
    path.with_suffix(".json").write_text(json.dumps(document) + "\n")


def list_snapshots(folder: Path) -> list[Snapshot]:
    """Return the snapshots of a folder, ordered by their number of events."""
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def nearest(folder: Path, end: Cut) -> Snapshot | None:
    """Return the last snapshot that holds no event beyond `end`."""
    fitting = [
        snapshot
        for snapshot in list_snapshots(folder)
        if all(end[at] >= offset for at, offset in snapshot.offsets.items())
    ]
    return fitting[-1] if fitting else None


def find_divergence(first: Path, second: Path) -> SnapshotDivergence | None:
    """Return where the snapshots of two folders begin to differ, by binary search, or None if the
    last ones are equal. It assumes that a difference never disappears later. Raise NoSnapshot if
    the folders have no snapshot after the same number of events."""
    pairs = _pairs(first, second)
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) // 2
        left, right = pairs[middle]
        if left.digest == right.digest:
            low = middle + 1
        else:
            high = middle
    if low == len(pairs):
        return None
    return SnapshotDivergence(pairs[low - 1][0] if low else None, *pairs[low])


def find_divergence_after(
    first: Path, second: Path, engines: tuple[Engine, Engine]
) -> SnapshotDivergence:
    """Return the divergence of two databases whose last common snapshots are equal."""
    pairs = _pairs(first, second)
    ends = (
        _describe_database(engine, last) for engine, last in zip(engines, pairs[-1], strict=True)
    )
    return SnapshotDivergence(pairs[-1][0], *ends)


def _pairs(first: Path, second: Path) -> list[tuple[Snapshot, Snapshot]]:
    left, right = (
        {snapshot.events: snapshot for snapshot in list_snapshots(folder)}
        for folder in (first, second)
    )
    common = sorted(left.keys() & right.keys())
    if not common:
        raise NoSnapshot(
            f"{first} and {second} have no snapshot after as many events; make them with kintsugi "
            "replay --every N, the same N in both"
        )
    return [(left[events], right[events]) for events in common]


def _describe_database(engine: Engine, last: Snapshot) -> Snapshot:
    with database.read_transaction(engine) as connection:
        stands = offsets(connection)
        digest = exact_digest(connection)
    more = sum(offset - last.offsets.get(at, 0) for at, offset in stands.items())
    return Snapshot(Path(str(engine.url.database)), last.events + more, digest, stands, last.logs)


def _read(path: Path) -> Snapshot:
    try:
        document = json.loads(path.read_text())
        where = {(stream, partition): offset for stream, partition, offset in document["offsets"]}
        return Snapshot(
            path.with_suffix(".db"),
            document["events"],
            document["digest"],
            where,
            tuple(document["logs"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoSnapshot(
            f"{path} describes no snapshot ({error}); remove it and the file beside it"
        ) from error
