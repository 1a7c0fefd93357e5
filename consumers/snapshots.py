"""Snapshots: the tables as they were after so many events, each a database of its own.

    FOLDER/000000100000.db      the tables after 100,000 events in the order of recording
    FOLDER/000000100000.json    how far that is, and a hash over every row and column

    keep(engine, tracked, folder, events) makes one; what it costs beside a copy of the file follows
                                          from what changed since the one before
    nearest(folder, end)                  the last that is not beyond a place in the log
    diverging(one, other)                 between which of two foldings of one log parted

SQLite alone: a snapshot of PostgreSQL is what its own tools make.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from consumers import database
from consumers.position import offsets
from consumers.tracking import Tracked
from events.archive import Cut
from events.errors import KintsugiError


class NoSnapshot(KintsugiError):
    """A folder that does not hold the snapshots that are needed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One of them."""

    path: Path
    events: int
    digest: str
    """Over every row and column but the broker's offsets."""
    offsets: Cut
    logs: tuple[str, ...] = ()
    """Where the log was that it was folded from: an archive, a log's file, or one after the other;
    empty for a broker's."""


@dataclass(frozen=True, slots=True)
class Parted:
    """Where two foldings of one log parted, as near as their snapshots say."""

    equal: Snapshot | None
    """The last one that both have; None: they differ from the first on."""
    one: Snapshot
    """The first that differs, of each."""
    other: Snapshot


def keep(
    engine: Engine, tracked: Tracked, folder: Path, events: int, logs: Sequence[str] = ()
) -> None:
    """Copy the tables of a SQLite database as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{events:012}.db"
    path.unlink(missing_ok=True)
    with engine.connect() as connection:
        # Outside a transaction: SQLite copies no database in the middle of one.
        connection.connection.cursor().execute("VACUUM INTO ?", (str(path),))
    with database.reading(engine) as connection:
        document = {
            "events": events,
            "digest": tracked.digest(connection),
            "offsets": [[*at, offset] for at, offset in sorted(offsets(connection).items())],
            "logs": list(logs),
        }
    # Written last: a snapshot without it was cut short, and is none.
    path.with_suffix(".json").write_text(json.dumps(document) + "\n")


def kept(folder: Path) -> list[Snapshot]:
    """The snapshots of a folder, the first one first."""
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def nearest(folder: Path, end: Cut) -> Snapshot | None:
    """The last snapshot that holds nothing behind `end`."""
    fitting = [
        one for one in kept(folder) if all(end[at] >= offset for at, offset in one.offsets.items())
    ]
    return fitting[-1] if fitting else None


def diverging(one: Path, other: Path) -> Parted | None:
    """Where the snapshots of two folders part, by halving; None where the last are equal.

    What has parted stays so: a row that is wrong is not made right by later events. Raises
    NoSnapshot where they have none in common.
    """
    left, right = ({found.events: found for found in kept(folder)} for folder in (one, other))
    common = sorted(left.keys() & right.keys())
    if not common:
        raise NoSnapshot(
            f"{one} and {other} have no snapshot after as many events; make them with kintsugi "
            "replay --every N, the same N in both"
        )
    low, high = 0, len(common)
    while low < high:
        middle = (low + high) // 2
        if left[common[middle]].digest == right[common[middle]].digest:
            low = middle + 1
        else:
            high = middle
    if low == len(common):
        return None
    return Parted(left[common[low - 1]] if low else None, left[common[low]], right[common[low]])


def _read(path: Path) -> Snapshot:
    try:
        found = json.loads(path.read_text())
        where = {(stream, partition): offset for stream, partition, offset in found["offsets"]}
        return Snapshot(
            path.with_suffix(".db"), found["events"], found["digest"], where, tuple(found["logs"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoSnapshot(
            f"{path} describes no snapshot ({error}); remove it and the file beside it"
        ) from error
