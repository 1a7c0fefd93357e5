"""`kintsugi diff`: find where two logs diverge, or two foldings (tables folded from a log). Logs
are compared event by event, tables row by row. Snapshots tell between which events two foldings
diverged. Archives are compared by the hashes of their segments before they are read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

from sqlalchemy import Engine

from consumers import database
from consumers.digest import Difference, count_differences, first_difference
from consumers.snapshots import SnapshotDivergence, find_divergence, find_divergence_after
from events.archive.archive import Archive, Cut, is_archive
from events.archive.views import ArchiveWithLog, starts
from events.errors import WrongUsage
from events.log import EventLog, Record, read_all
from events.privacy.database_url import parse_database_url, render_name
from events.sqlite.log import SqliteLog

_FIELDS: Final = ("source", "sequence", "recorded_ms", "key", "headers", "value")


class Incomparable(WrongUsage):
    """The two things cannot be compared, or a name refers to nothing."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two compared things."""

    name: str
    kind: Literal["log", "database"]
    log: EventLog | None = None
    engine: Engine | None = None
    snapshots: Path | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first event of a partition that differs between both logs."""

    stream: str
    partition: int
    offset: int
    what: str
    """Name of the differing field; `start` if one log begins later; or `missing`."""
    one: Record | None
    """The record in the first log, if any."""
    other: Record | None

    @property
    def time_ms(self) -> int:
        """Return when the earlier of the two records was recorded."""
        return min(record.recorded_ms for record in (self.one, self.other) if record is not None)


@dataclass(slots=True)
class LogComparison:
    """Result of comparing two logs."""

    events: int = 0
    """Number of events of the first log, also in segments with equal hashes."""
    read: int = 0
    """Number of events that had to be read and compared."""
    divergences: list[Divergence] = field(default_factory=list)
    """One entry per differing partition, in the order of recording."""


@dataclass(frozen=True, slots=True)
class TableComparison:
    """Result of comparing two foldings, which are databases folded from a log."""

    difference: Difference | None
    changed: dict[str, int]
    """Table -> number of differing rows; empty if only the first difference was asked for."""
    parted: SnapshotDivergence | None = None


def side(name: str, opened: ExitStack) -> Side:
    """Open for reading the home, log, archive or database that `name` (a path or URL) names."""
    path = _path(name)
    if path is None:
        return _tables(name, None, opened)
    if name and path.is_dir():
        if is_archive(path):
            return Side(name, "log", log=Archive(path))
        if (path / "log.db").is_file():
            return _log(name, path / "log.db", opened)
        raise Incomparable(
            f"{name!r} holds neither log.db nor an archive; name a home or an export"
        )
    if not path.is_file():
        raise Incomparable(f"{name!r} does not exist; name a home, an export, a log or a database")
    if "record" in database.tables_in(path):
        return _log(name, path, opened)
    return _tables(str(path), path.with_name(f"{path.name}.snapshots"), opened, name)


def _path(name: str) -> Path | None:
    """Return the file or folder of a name or URL; None for a server's database."""
    if "://" not in name:
        return Path(name)
    try:
        url = parse_database_url(name)
    except ValueError as error:
        raise Incomparable(f"a name is no database URL: {error}") from error
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database:
        raise Incomparable(f"{render_name(name)!r} names no file; name one that is there")
    return Path(url.database)


def logs_at(names: Sequence[str], opened: ExitStack) -> EventLog:
    """Open one log, or an archive together with the log that it was exported from."""
    parts = []
    for name in names:
        log = side(name, opened).log
        if log is None:
            raise Incomparable(f"{name} is no log; name a home, an export or a log")
        parts.append(log)
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    assert isinstance(first, Archive), "an archive goes before the log that it is of"
    return ArchiveWithLog(first, second)


def _log(name: str, path: Path, opened: ExitStack) -> Side:
    log = SqliteLog(path, read_only=True)
    opened.callback(log.close)
    return Side(name, "log", log=log)


def _tables(where: str, snapshots: Path | None, opened: ExitStack, name: str | None = None) -> Side:
    engine = database.open_tables(where)
    opened.callback(engine.dispose)
    kept = snapshots if snapshots is not None and snapshots.is_dir() else None
    return Side(name or where, "database", engine=engine, snapshots=kept)


def logs(
    left_log: EventLog,
    right_log: EventLog,
    advance: Callable[[int], None] = lambda _: None,
    start: Cut | None = None,
) -> LogComparison:
    """Compare two logs, from `start` if given; return each partition's first divergence."""
    comparison = LogComparison()
    for at in starts(left_log):
        if start is None:
            divergence = _partition(left_log, right_log, *at, comparison, advance)
        else:
            divergence = _from(left_log, right_log, *at, start[at], comparison, advance)
        if divergence is not None:
            comparison.divergences.append(divergence)
    comparison.divergences.sort(key=lambda each: (each.time_ms, each.stream, each.partition))
    return comparison


def _partition(
    left_log: EventLog,
    right_log: EventLog,
    stream: str,
    partition: int,
    comparison: LogComparison,
    advance: Callable[[int], None],
) -> Divergence | None:
    first, second = (log.start(stream)[partition] for log in (left_log, right_log))
    comparison.events += left_log.end(stream)[partition] - first
    at = max(first, second)
    if first != second:
        # Events trimmed from one log are only in the other.
        longer = left_log if first < second else right_log
        lost = next(iter(longer.read(stream, partition, min(first, second), limit=1)), None)
        if lost is not None:
            pair = (lost, None) if longer is left_log else (None, lost)
            return Divergence(stream, partition, lost.offset, "start", *pair)
    at = _past_equal_segments(left_log, right_log, stream, partition, at)
    return _from(left_log, right_log, stream, partition, at, comparison, advance)


def _from(
    left_log: EventLog,
    right_log: EventLog,
    stream: str,
    partition: int,
    at: int,
    comparison: LogComparison,
    advance: Callable[[int], None],
) -> Divergence | None:
    ends = [log.end(stream)[partition] for log in (left_log, right_log)]
    pairs = zip_longest(
        _records(left_log, stream, partition, min(at, ends[0])),
        _records(right_log, stream, partition, min(at, ends[1])),
    )
    for left, right in pairs:
        comparison.read += 1
        if comparison.read % 1000 == 0:
            advance(1000)
        what = _what(left, right)
        if what is not None:
            offset = min(each.offset for each in (left, right) if each is not None)
            there = (each if each and each.offset == offset else None for each in (left, right))
            return Divergence(stream, partition, offset, what, *there)
    return None


def _past_equal_segments(
    left_log: EventLog, right_log: EventLog, stream: str, partition: int, at: int
) -> int:
    """Return the offset after the segments that two archives share by hash; else `at`."""
    if isinstance(left_log, Archive) and isinstance(right_log, Archive):
        pairs = zip(
            left_log.segments(stream, partition),
            right_log.segments(stream, partition),
            strict=False,
        )
        for left, right in pairs:
            if (left.first, left.last, left.sha256) != (right.first, right.last, right.sha256):
                break
            at = left.last + 1
    return at


def _records(log: EventLog, stream: str, partition: int, offset: int) -> Iterator[Record]:
    for page in read_all(log, stream, partition, offset, log.end(stream)[partition]):
        yield from page


def _what(left: Record | None, right: Record | None) -> str | None:
    if left is None or right is None or left.offset != right.offset:
        return "missing"
    if left == right:
        return None
    return next(name for name in _FIELDS if getattr(left, name) != getattr(right, name))


def tables(left_side: Side, right_side: Side, first_only: bool) -> TableComparison:
    """Compare two databases by rows. With `first_only`, their snapshots are compared first."""
    assert left_side.engine is not None, "a database was opened"
    assert right_side.engine is not None, "a database was opened"
    parted = None
    folders = (left_side.snapshots, right_side.snapshots) if first_only else (None, None)
    if folders[0] is not None and folders[1] is not None:
        parted = find_divergence(folders[0], folders[1])
    if parted is not None:
        with ExitStack() as opened:
            left, right = (
                _tables(str(each.path), None, opened) for each in (parted.one, parted.other)
            )
            comparison = tables(left, right, first_only=True)
        if comparison.difference is not None:
            return TableComparison(comparison.difference, {}, parted)
        # Snapshots of another version may have other digests for the same rows.
        parted = None
    with (
        database.read_transaction(left_side.engine) as left_rows,
        database.read_transaction(right_side.engine) as right_rows,
    ):
        difference = first_difference(left_rows, right_rows)
        counted = difference is not None and not first_only
        changed: dict[str, Any] = count_differences(left_rows, right_rows) if counted else {}
    if difference is not None and folders[0] is not None and folders[1] is not None:
        parted = find_divergence_after(
            folders[0], folders[1], (left_side.engine, right_side.engine)
        )
    return TableComparison(difference, changed, parted)
