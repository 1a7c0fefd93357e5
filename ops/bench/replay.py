"""Measure whether a replay takes linear time, and the time to find where two long logs diverge.

    python -m ops.bench.replay --events 1000000

Method. The mix of ops/mix.py is appended to one log, and a second one is its restored export with
one more event. Then, once each:

    replay      of all events and of a tenth of them into fresh SQLite tables: the ratio, 10 where
                replay is linear
    snapshots   the same with ten snapshots on the way, over the replay without
    logs        diff of the two logs, where every event is read, in seconds
    exports     diff of their exports, where equal segments are not read, in seconds
    tables      diff --first-divergence of two foldings of one log with snapshots, one with a row
                changed in every snapshot after the sixth, in seconds: the row, and by folding the
                interval again the event that wrote it
    pasts       the same of foldings of two logs, one with a byte of one event changed in
                the middle, in seconds: the event
"""

import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from consumers import database, snapshots
from consumers.digest import exact_digest
from consumers.digest_tracker import DigestTracker
from consumers.replay import replay
from consumers.snapshots import Snapshot
from daemon.replay import diff
from daemon.replay.bisect import First, first_event, logs_of
from events.archive.archive import Archive, ends
from events.archive.export import export
from events.archive.restore_sqlite import restore
from events.blobs import BlobStore
from events.sqlite.log import SqliteLog, columns_of
from migrations.upgrade import upgrade
from ops.command_line import run_command
from ops.mix import PERIOD, event, mix, write_log

_WRONG_FROM: Final = 6


def measure(folder: Path, events: int) -> dict[str, Any]:
    """Return all figures of one run."""
    log, tenth = (write_log(folder / f"{count}.db", count) for count in (events, events // 10))
    blobs = BlobStore(folder / "blobs")
    export(log, blobs, folder / "kept")
    restore(Archive(folder / "kept"), folder / "longer.db", blobs)
    longer = SqliteLog(folder / "longer.db", durability="process")
    longer.append(list(mix(1, start=events)))
    export(longer, blobs, folder / "longer")
    whole = _time_replay(log, folder / "whole.db")
    small = _time_replay(tenth, folder / "small.db")
    snapped = _time_replay(log, folder / "one.db", events // 10)
    logs = _time_work(lambda: diff.logs(log, longer))
    exports = _time_work(lambda: diff.logs(Archive(folder / "kept"), Archive(folder / "longer")))
    _alter(folder)
    tables = _time_work(lambda: _find_divergence(folder, "two"))
    number = _other_past(folder, log, events)
    pasts = _time_work(lambda: _check_divergence(folder, number))
    for each in (log, tenth, longer):
        each.close()
    return {
        "events": events,
        "replay_all_over_tenth": round(whole / small, 2),
        "replay_events_per_second": round(events / whole),
        "snapshots_over_none": round(snapped / whole, 2),
        "diff_logs_seconds": round(logs, 2),
        "diff_exports_seconds": round(exports, 2),
        "diff_tables_seconds": round(tables, 2),
        "diff_pasts_seconds": round(pasts, 2),
    }


def _time_work(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _time_replay(log: SqliteLog, path: Path, every: int | None = None) -> float:
    engine = database.open_database(database.sqlite_url(path))
    upgrade(engine)
    kept = path.with_name(f"{path.name}.snapshots")

    def fold() -> None:
        tracked = None if every is None else DigestTracker(engine)

        def keep(count: int) -> None:
            assert tracked is not None, "snapshots were asked for"
            snapshots.keep(engine, tracked, kept, count, [str(log.path)])

        replay(log, engine, ends(log), every=every, keep=keep)

    seconds = _time_work(fold)
    engine.dispose()
    return seconds


def _alter(folder: Path) -> None:
    shutil.copyfile(folder / "one.db", folder / "two.db")
    right, wrong = _branch(folder, "two")
    before, after = (_rollouts(snapshot.path) for snapshot in (right[-1], wrong[0]))
    (name,) = _execute(
        wrong[0].path,
        "SELECT rollout FROM rollouts ORDER BY rowid LIMIT 1 OFFSET ?",
        (before + after) // 2,
    )
    for path in (folder / "two.db", *(snapshot.path for snapshot in wrong)):
        _execute(path, "UPDATE rollouts SET messages = 99 WHERE rollout = ?", name)
    for snapshot in wrong:
        described = snapshot.path.with_suffix(".json")
        engine = database.open_database(database.sqlite_url(snapshot.path))
        with database.read_transaction(engine) as reading:
            digest = exact_digest(reading)
        engine.dispose()
        described.write_text(json.dumps(json.loads(described.read_text()) | {"digest": digest}))


def _branch(folder: Path, name: str) -> tuple[list[Snapshot], list[Snapshot]]:
    """Make another folding's snapshots: links to the first's up to the divergence, then copies."""
    target = folder / f"{name}.db.snapshots"
    target.mkdir()
    for number, snapshot in enumerate(snapshots.list_snapshots(folder / "one.db.snapshots")):
        copy = os.link if number < _WRONG_FROM else shutil.copyfile
        for path in (snapshot.path, snapshot.path.with_suffix(".json")):
            copy(path, target / path.name)
    copies = snapshots.list_snapshots(target)
    return copies[:_WRONG_FROM], copies[_WRONG_FROM:]


def _rollouts(path: Path) -> int:
    return int(_execute(path, "SELECT count(*) FROM rollouts")[0])


def _execute(path: Path, statement: str, *values: object) -> tuple[Any, ...]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return tuple(connection.execute(statement, values).fetchone() or ())


def _other_past(folder: Path, log: SqliteLog, events: int) -> int:
    """Write and fold a log with one changed event, from the snapshot before. Return its number."""
    number = events * (2 * _WRONG_FROM + 1) // 20
    number += PERIOD.index("rollout") - number % len(PERIOD)
    changed = event(number, seed=1).entry
    shutil.copyfile(log.path, folder / "past.db")
    *_, crc, key, headers, value = columns_of(changed)
    _execute(
        folder / "past.db",
        "UPDATE record SET crc = ?, key = ?, headers = ?, value = ? "
        "WHERE stream = ? AND partition = ? AND recorded_ms = ?",
        crc, key, headers, value, changed.stream, changed.partition, changed.recorded_ms,
    )  # fmt: skip
    right, wrong = _branch(folder, "three")
    for snapshot in wrong:
        snapshot.path.unlink()
        snapshot.path.with_suffix(".json").unlink()
    shutil.copyfile(right[-1].path, folder / "three.db")
    past = SqliteLog(folder / "past.db", durability="process")
    _time_replay(past, folder / "three.db", events // 10)
    past.close()
    return number


def _check_divergence(folder: Path, number: int) -> None:
    first = _find_divergence(folder, "three").record
    expected = event(number).entry
    assert (first.key, first.recorded_ms) == (expected.key, expected.recorded_ms), "the very event"


def _find_divergence(folder: Path, name: str) -> First:
    with ExitStack() as opened, tempfile.TemporaryDirectory(dir=folder) as scratch:
        left, right = (diff.side(str(folder / f"{n}.db"), opened) for n in ("one", name))
        comparison = diff.tables(left, right, first_only=True)
        assert comparison.parted is not None, "one of them was changed"
        assert comparison.parted.equal is not None, "the first snapshots are the same"
        assert comparison.difference is not None, "one of them was changed"
        first = first_event(
            comparison.parted, logs_of(comparison.parted, (), opened), Path(scratch)
        )
    assert first is not None, "an event of the interval wrote it"
    return first


if __name__ == "__main__":
    run_command(__doc__, measure, indent=2, events=20_000)
