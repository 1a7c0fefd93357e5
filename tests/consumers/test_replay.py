"""Replay: a range of the log in tables of its own, at any moment, and where two foldings part."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text

from consumers import database, snapshots
from consumers.digest import exact_digest
from consumers.digest_tracker import DigestTracker
from consumers.position import offsets
from consumers.rebuild import SnapshotUnfit, rebuild
from consumers.replay import BeforeSnapshot, NotEmpty, replay
from consumers.runner import PositionGap
from consumers.tables import Rollout
from events.archive.archive import Cut, ends
from events.archive.views import cut_at
from events.log import Entry
from events.memory import MemoryLog
from ops.mix import mix
from tests.consumers.folding import close_round, ended, fold, fresh, hash_of

COUNT = 240


@pytest.fixture
def log(tmp_path: Path) -> MemoryLog:
    """Traffic, a round over it, more traffic."""
    log = MemoryLog()
    traffic = list(mix(COUNT))
    log.append(traffic[:160])
    engine = fresh(tmp_path, "rounds")
    close_round(log, engine)
    engine.dispose()
    # The round was recorded between them.
    (round_,) = log.read("learning", 0, 0)
    log._records["learning", 0][0] = replace(round_, recorded_ms=traffic[159].recorded_ms)
    log.append(traffic[160:])
    return log


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Engine]:
    engine = fresh(tmp_path, "other")
    yield engine
    engine.dispose()


def keeping(engine: Engine, folder: Path) -> Callable[[int], None]:
    """What makes a snapshot of an engine's tables."""
    tracked = DigestTracker(engine)
    return lambda events: snapshots.keep(engine, tracked, folder, events)


def test_a_replay_of_all_is_the_live_tables(log: MemoryLog, engine: Engine, other: Engine) -> None:
    fold(log, engine)
    done = replay(log, other, ends(log))
    assert (done.events, done.hash) == (COUNT + 1, hash_of(engine))


def test_at_every_moment_it_is_what_the_tables_were(
    log: MemoryLog, engine: Engine, tmp_path: Path
) -> None:
    entries = list(mix(COUNT))
    for count in (80, 200):
        cut = cut_at(log, entries[count].recorded_ms)
        past = MemoryLog()
        past.source = log.source
        past.append(entries[: count + 1])
        past.append([_entry(one) for one in log.read("learning", 0, 0)[: cut["learning", 0]]])
        expected, replayed = fresh(tmp_path, f"e{count}"), fresh(tmp_path, f"r{count}")
        fold(past, expected)
        assert replay(log, replayed, cut).hash == hash_of(expected)
        expected.dispose()
        replayed.dispose()


def _entry(record: object) -> Entry:
    names = ("stream", "partition", "key", "headers", "value", "recorded_ms")
    return Entry(*(getattr(record, name) for name in names))


def test_from_a_place_on_it_holds_what_the_range_makes(log: MemoryLog, other: Engine) -> None:
    start = cut_at(log, next(iter(mix(1, start=199))).recorded_ms)
    done = replay(log, other, ends(log), start=start)
    assert done.events == COUNT - 200
    with database.read_transaction(other) as connection:
        kept = set(connection.execute(select(Rollout.table().c.rollout)).scalars())
    assert kept == {
        name for number, name in enumerate(_rollouts()) if number >= 200 and name is not None
    }
    with pytest.raises(NotEmpty):
        replay(log, other, ends(log), start=start)


def _rollouts() -> list[str | None]:
    from ops.mix import PERIOD

    engine_names: list[str | None] = []
    for number, one in enumerate(mix(COUNT)):
        engine_names.append(_rollout_of(one) if PERIOD[number % len(PERIOD)] == "rollout" else None)
    return engine_names


def _rollout_of(entry: Entry) -> str:
    from events.codec import decode
    from events.log import Record
    from events.rollouts import RolloutEnded

    record = Record(
        entry.stream, entry.partition, 0, "s", 0, entry.key, entry.headers, entry.value, 0
    )
    data = decode(record).data
    assert isinstance(data, RolloutEnded)
    return data.rollout


def test_a_cut_between_a_round_and_its_rollouts_is_refused(log: MemoryLog, other: Engine) -> None:
    cut: Cut = dict.fromkeys(ends(log), 1)
    with pytest.raises(PositionGap, match="end it at a time"):
        replay(log, other, cut)


def test_from_a_snapshot_on_it_is_the_same(log: MemoryLog, tmp_path: Path) -> None:
    whole, folder = fresh(tmp_path, "whole"), tmp_path / "kept"
    done = replay(log, whole, ends(log), every=100, keep=keeping(whole, folder))
    assert done.hash == replay(log, fresh(tmp_path, "plain"), ends(log)).hash
    assert [one.events for one in snapshots.list_snapshots(folder)] == [100, 200]
    found = snapshots.nearest(folder, ends(log))
    assert found is not None
    assert found.events == 200
    start = database.open_database(database.sqlite_url(found.path))
    again = replay(log, start, ends(log))
    assert (again.hash, again.events) == (done.hash, COUNT + 1 - 200)
    with pytest.raises(BeforeSnapshot):
        replay(log, start, cut_at(log, next(iter(mix(1))).recorded_ms))
    assert snapshots.nearest(folder, cut_at(log, next(iter(mix(1))).recorded_ms)) is None
    start.dispose()
    whole.dispose()


def test_a_digest_that_is_kept_up_to_date_is_that_of_the_rows(
    log: MemoryLog, tmp_path: Path
) -> None:
    engine = fresh(tmp_path, "tables")
    replay(log, engine, cut_at(log, next(iter(mix(1, start=99))).recorded_ms))
    tracked = DigestTracker(engine)
    found = []
    for change in (
        lambda: None,
        lambda: replay(log, engine, ends(log)),
        lambda: _execute(engine, "UPDATE rollouts SET messages = 99 WHERE success = 0"),
        lambda: _execute(engine, "DELETE FROM feedback"),
        lambda: _execute(engine, "UPDATE rollouts SET messages = 98 WHERE success = 0"),
    ):
        change()
        with database.read_transaction(engine) as connection:
            found.append(tracked.digest(connection))
            assert found[-1] == exact_digest(connection)
    assert len(set(found)) == len(found)
    with closing(sqlite3.connect(tmp_path / "tables.db")) as connection:
        kinds = {kind for (kind,) in connection.execute("SELECT type FROM sqlite_master")}
    assert kinds <= {"table", "index"}, "nothing of it is in the file"
    engine.dispose()


def _execute(engine: Engine, statement: str) -> None:
    with database.write_transaction(engine) as connection:
        assert connection.execute(text(statement)).rowcount > 0


def test_a_rebuild_from_a_snapshot_is_equal(log: MemoryLog, engine: Engine, tmp_path: Path) -> None:
    made = fresh(tmp_path, "made")
    replay(log, made, ends(log), every=100, keep=keeping(made, tmp_path / "s"))
    first, _ = snapshots.list_snapshots(tmp_path / "s")
    snapshot = database.open_database(database.sqlite_url(first.path))
    with pytest.raises(SnapshotUnfit, match="ahead"):
        rebuild(log, engine, snapshot=snapshot)
    fold(log, engine)
    rebuilt = rebuild(log, engine, snapshot=snapshot)
    assert (rebuilt.equal, rebuilt.events, rebuilt.hash) == (True, COUNT - 99, hash_of(engine))
    with database.write_transaction(snapshot) as connection:
        connection.execute(text("UPDATE projection SET fold_version = 1"))
    with pytest.raises(SnapshotUnfit, match="version 1"):
        rebuild(log, engine, snapshot=snapshot)
    snapshot.dispose()
    made.dispose()


def test_foldings_that_part_are_told_apart_by_their_snapshots(
    log: MemoryLog, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        engine = fresh(tmp_path, f"of-{folder.name}")
        wrong_from = 120 if folder.name == "two" else COUNT + 1
        kept = keeping(engine, folder)

        def keep(
            count: int,
            engine: Engine = engine,
            wrong_from: int = wrong_from,
            kept: Callable[[int], None] = kept,
        ) -> None:
            if count >= wrong_from:
                with database.write_transaction(engine) as connection:
                    connection.execute(text("UPDATE rollouts SET messages = 99"))
            kept(count)

        replay(log, engine, ends(log), every=40, keep=keep)
        engine.dispose()
    parted = snapshots.find_divergence(*folders)
    assert parted is not None
    assert parted.equal is not None
    assert (parted.equal.events, parted.one.events, parted.other.events) == (80, 120, 120)
    assert snapshots.find_divergence(folders[0], folders[0]) is None
    with pytest.raises(snapshots.NoSnapshot):
        snapshots.find_divergence(folders[0], tmp_path / "none")


def test_the_log_is_not_written_to(log: MemoryLog, other: Engine) -> None:
    before = ends(log)
    replay(log, other, before, every=50, keep=lambda _: None)
    assert ends(log) == before
    log.append([ended("later")])
    with database.read_transaction(other) as connection:
        assert sum(offsets(connection).values()) == COUNT + 1
