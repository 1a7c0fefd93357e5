"""Find the event at which two foldings (tables folded from a log) diverged between two snapshots.

Two logs are read side by side from the last equal snapshot on, up to the first different event.
One log is folded again from the last equal snapshot on, up to the first event that writes a row
which differs at the next snapshot. Either way reads one interval between snapshots. If one of two
foldings of the same log wrote a wrong row, a later event than that row's may be named.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sqlalchemy import Engine

from consumers import database
from consumers.digest import Keys, diff_keys
from consumers.digest_tracker import WriteTracker, match_keys
from consumers.runner import Runner
from consumers.snapshots import Snapshot, SnapshotDivergence
from daemon.replay import diff
from events.archive.archive import Cut, ends
from events.archive.views import Span, in_time, starts
from events.log import EventLog, Record
from migrations.upgrade import upgrade

_STEP: Final = 1_000
"""Events folded in one step of the search for the event that writes a differing row."""


@dataclass(frozen=True, slots=True)
class First:
    """The first diverging event, and how it was found."""

    record: Record
    found_by: Literal["log", "fold"]
    """`log`: the event differs between both logs; `fold`: it wrote a row that differs."""


def logs_of(parted: SnapshotDivergence, named: Sequence[str], opened: ExitStack) -> list[EventLog]:
    """Return the logs at the paths `named`, else those that the snapshots were folded from: one per
    folding, or a shared one. Return no log if a snapshot's log is unknown or gone."""
    if named:
        return [diff.logs_at([name], opened) for name in named]
    places = [parted.one.logs, parted.other.logs]
    if not all(places) or not all(Path(name).exists() for place in places for name in place):
        return []
    return [diff.logs_at(place, opened) for place in dict.fromkeys(places)]


def first_event(parted: SnapshotDivergence, logs: Sequence[EventLog], folder: Path) -> First | None:
    """Return the first event after the last equal snapshot at which the foldings diverge; None if
    no event shows it. `folder` is for a temporary copy of the tables."""
    log, other = logs[0], logs[-1]
    if log is not other:
        past, other_past = (
            Span(log, _until(log, parted.one)),
            Span(other, _until(other, parted.other)),
        )
        compared = diff.logs(past, other_past, start=_begin(log, parted.equal))
        for divergence in compared.divergences:
            record = divergence.one or divergence.other
            assert record is not None, "one of the two has it"
            return First(record, "log")
    record = _first_writer(log, parted, folder)
    return None if record is None else First(record, "fold")


def _begin(log: EventLog, equal: Snapshot | None) -> Cut:
    return starts(log) if equal is None else starts(log) | equal.offsets


def _until(log: EventLog, snapshot: Snapshot) -> Cut:
    return dict.fromkeys(ends(log), 0) | snapshot.offsets


def _first_writer(log: EventLog, parted: SnapshotDivergence, folder: Path) -> Record | None:
    keys = diff_keys(parted.one.path, parted.other.path)
    begin, until = _begin(log, parted.equal), _until(log, parted.one)
    places = [(r.stream, r.partition, r.offset) for r in in_time(log, begin, until)]
    refold = _Refold(log, parted.equal, begin, keys, folder)
    at = refold.first_step(places, 0, _STEP)
    if at is None:
        return None
    at = refold.first_step(places[: at + _STEP], at, 1)
    assert at is not None, "folds are deterministic: some event of the step wrote it"
    stream, partition, offset = places[at]
    return log.read(stream, partition, offset, limit=1)[0]


@dataclass(frozen=True, slots=True)
class _Refold:
    log: EventLog
    equal: Snapshot | None
    begin: Cut
    keys: Keys
    folder: Path

    def first_step(
        self, places: Sequence[tuple[str, int, int]], skipped: int, size: int
    ) -> int | None:
        """Fold the events at `places` from index `skipped` on, in steps of `size` events. Return
        the first index of the first step that writes one of the differing rows, if any."""
        with self._tables() as engine:
            runner = Runner(self.log, engine)
            cut = self.begin | _after(places[:skipped])
            runner.catch_up(until=cut)
            written = WriteTracker(engine)
            for first in range(skipped, len(places), size):
                cut |= _after(places[first : first + size])
                runner.catch_up(until=cut)
                if self._hit(engine, written.take()):
                    return first
        return None

    @contextmanager
    def _tables(self) -> Iterator[Engine]:
        path = self.folder / "again.db"
        if self.equal is not None:
            shutil.copyfile(self.equal.path, path)
        engine = database.open_database(database.sqlite_url(path))
        try:
            upgrade(engine)
            yield engine
        finally:
            engine.dispose()
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)

    def _hit(self, engine: Engine, written: Mapping[str, set[int]]) -> bool:
        with database.read_transaction(engine) as connection:
            return match_keys(connection, written, self.keys)


def _after(places: Sequence[tuple[str, int, int]]) -> Cut:
    return {(stream, partition): offset + 1 for stream, partition, offset in places}
