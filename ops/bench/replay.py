"""Whether a replay is linear, and how long it takes to find where two long pasts part.

    python -m ops.bench.replay --events 1000000

Method. The mix of mix.py is appended to one log, and a second one is its restored export with one
more event. Then, once each:

    replay      of all events and of a tenth of them into fresh SQLite tables: the ratio, 10 where
                replay is linear
    snapshots   the same with ten snapshots on the way, over the replay without
    logs        diff of the two logs, where every event is read, in seconds
    exports     diff of their exports, where equal segments are not read, in seconds
    tables      diff --first-divergence of two foldings with snapshots, one with a row changed in
                every snapshot after the sixth, in seconds
"""

import argparse
import json
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
from consumers.replay import replay
from daemon import comparing
from events.archive import Archive, ends, export
from events.blobs import BlobStore
from events.sqlite import SqliteLog
from events.sqlite_restore import restore
from migrations.upgrade import upgrade
from ops.bench.mix import mix

_APPENDED: Final = 2_000
_WRONG_FROM: Final = 6


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        print(json.dumps(measure(Path(folder), options.events), indent=2))


def measure(folder: Path, events: int) -> dict[str, Any]:
    """All figures of one run."""
    log, tenth = (_log(folder / f"{count}.db", count) for count in (events, events // 10))
    blobs = BlobStore(folder / "blobs")
    export(log, blobs, folder / "kept")
    restore(Archive(folder / "kept"), folder / "longer.db", blobs)
    longer = SqliteLog(folder / "longer.db", durability="process")
    longer.append(list(mix(1, start=events)))
    export(longer, blobs, folder / "longer")
    whole = _replayed(log, folder / "whole.db")
    small = _replayed(tenth, folder / "small.db")
    snapped = _replayed(log, folder / "one.db", events // 10)
    logs = _timed(lambda: comparing.logs(log, longer))
    exports = _timed(lambda: comparing.logs(Archive(folder / "kept"), Archive(folder / "longer")))
    _alter(folder)
    tables = _timed(lambda: _compared(folder))
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
    }


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _log(path: Path, events: int) -> SqliteLog:
    log = SqliteLog(path, durability="process")
    for start in range(0, events, _APPENDED):
        log.append(list(mix(min(_APPENDED, events - start), start=start)))
    return log


def _replayed(log: SqliteLog, path: Path, every: int | None = None) -> float:
    """Seconds, without those of making the tables."""
    engine = database.open_database(database.sqlite_url(path))
    upgrade(engine)
    kept = path.with_name(f"{path.name}.snapshots")
    seconds = _timed(
        lambda: replay(
            log, engine, ends(log), every=every, keep=lambda n: snapshots.keep(engine, kept, n)
        )
    )
    engine.dispose()
    return seconds


def _alter(folder: Path) -> None:
    """A second folding that parted from the first after the sixth snapshot."""
    shutil.copyfile(folder / "one.db", folder / "two.db")
    shutil.copytree(folder / "one.db.snapshots", folder / "two.db.snapshots")
    wrong = snapshots.kept(folder / "two.db.snapshots")[_WRONG_FROM:]
    for path in (folder / "two.db", *(one.path for one in wrong)):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "UPDATE rollouts SET messages = 99 "
                "WHERE rollout = (SELECT max(rollout) FROM rollouts)"
            )
    for one in wrong:
        described = one.path.with_suffix(".json")
        engine = database.open_database(database.sqlite_url(one.path))
        with database.reading(engine) as reading:
            digest = exact_digest(reading)
        engine.dispose()
        described.write_text(json.dumps(json.loads(described.read_text()) | {"sha256": digest}))


def _compared(folder: Path) -> None:
    with ExitStack() as opened:
        one, two = (comparing.side(str(folder / f"{n}.db"), opened) for n in ("one", "two"))
        found = comparing.tables(one, two, first_only=True)
    assert found.parted is not None, "one of them was changed"
    assert found.parted.equal is not None, "the first snapshots are the same"
    assert found.difference is not None, "one of them was changed"


if __name__ == "__main__":
    main()
