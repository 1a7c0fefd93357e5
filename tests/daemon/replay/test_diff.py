"""`kintsugi diff` as a person uses it: two logs, two foldings, and the event where they parted."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from consumers import database
from consumers.digest import exact_digest
from daemon.config.settings import load
from daemon.core.app import App
from events.log import Entry
from events.sqlite.log import SqliteLog, columns_of
from ops.mix import PERIOD, event, mix
from tests.consumers.folding import rollout
from tests.daemon.conftest import Kintsugi
from tests.daemon.replay.test_replay import entry

COUNT = 120
CHANGED = 73
"""A call of the third fifth."""


@pytest.fixture
def homes(tmp_path: Path, kintsugi: Kintsugi) -> tuple[Path, Path]:
    """Two homes of one past, but for one event; folded with a snapshot after each 20."""
    first, second = tmp_path / "first", tmp_path / "second"
    for home in (first, second):
        home.mkdir()
    with closing(SqliteLog(first / "log.db", durability="process")) as log:
        log.append(list(mix(COUNT)))
    shutil.copyfile(first / "log.db", second / "log.db")
    changed = event(CHANGED, seed=1).entry
    _put(second / "log.db", changed)
    for home in (first, second):
        made = kintsugi("replay", "--home", home, "--into", f"{home}.db", "--every", "20", "--json")
        assert made.json["snapshots"] == COUNT // 20, made.err
    return first, second


def _put(path: Path, changed: Entry) -> None:
    """In the place of the event that was recorded at its time."""
    *_, crc, key, headers, value = columns_of(changed)
    with closing(sqlite3.connect(path)) as connection, connection:
        done = connection.execute(
            "UPDATE record SET crc = ?, key = ?, headers = ?, value = ? "
            "WHERE stream = ? AND partition = ? AND recorded_ms = ?",
            (crc, key, headers, value, changed.stream, changed.partition, changed.recorded_ms),
        )
        assert done.rowcount == 1


def test_the_event_that_two_pasts_do_not_share_is_named(
    homes: tuple[Path, Path], kintsugi: Kintsugi
) -> None:
    first, second = homes
    found = kintsugi("diff", f"{first}.db", f"{second}.db", "--first-divergence", "--json")
    assert (found.code, found.json["between"]["events"]) == (1, [60, 80])
    named = found.json["first_event"]
    assert (named["found_by"], named["recorded_ms"]) == ("log", event(CHANGED).entry.recorded_ms)
    said = kintsugi("diff", f"{first}.db", f"{second}.db", "--first-divergence")
    assert f"{named['stream']}/{named['partition']}@{named['offset']}" in said.out
    assert "is not the same in both logs" in said.out


def test_of_one_past_the_event_that_wrote_what_differs_is_named(
    homes: tuple[Path, Path], kintsugi: Kintsugi, tmp_path: Path
) -> None:
    first, _ = homes
    number = 100 - 1 - PERIOD[::-1].index("rollout")
    shutil.copyfile(f"{first}.db", tmp_path / "wrong.db")
    shutil.copytree(f"{first}.db.snapshots", tmp_path / "wrong.db.snapshots")
    for count in (100, 120):
        path = tmp_path / "wrong.db.snapshots" / f"{count:012}.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            (last,) = connection.execute(
                "SELECT max(time) FROM rollouts WHERE time < ?", (_time(100),)
            ).fetchone()
            connection.execute("UPDATE rollouts SET messages = 99 WHERE time = ?", (last,))
        _describe(path)
    arguments = ("diff", f"{first}.db", tmp_path / "wrong.db", "--first-divergence")
    found = kintsugi(*arguments, "--json").json
    assert found["between"]["events"] == [80, 100]
    assert found["difference"]["column"] == "messages"
    named = found["first_event"]
    assert (named["found_by"], named["type"]) == ("fold", "RolloutEnded")
    assert named["recorded_ms"] == event(number).entry.recorded_ms

    shutil.move(first / "log.db", tmp_path / "log.db")
    lost = kintsugi(*arguments)
    assert (lost.code, "--log" in lost.err) == (1, True)
    moved = kintsugi(*arguments, "--log", tmp_path / "log.db", "--json").json
    assert moved["first_event"] == named
    again = kintsugi("diff", f"{first}.db", tmp_path / "wrong.db", "--log", "a", "--log", "b",
                     "--log", "c", "--first-divergence")  # fmt: skip
    assert again.code == 2


def test_what_parted_after_the_last_snapshot_is_named_as_well(
    homes: tuple[Path, Path], kintsugi: Kintsugi, tmp_path: Path
) -> None:
    first, _ = homes
    names = [tmp_path / "right.db", tmp_path / "wrong.db"]
    for name in names:
        kintsugi("replay", "--home", first, "--into", name, "--every", "50")
    with closing(sqlite3.connect(names[1])) as connection, connection:
        connection.execute("UPDATE rollouts SET messages = 99 WHERE time > ?", (_time(117),))
    found = kintsugi("diff", *names, "--first-divergence", "--json").json
    assert found["between"]["events"] == [100, 120]
    assert found["first_event"]["recorded_ms"] == event(118).entry.recorded_ms
    said = kintsugi("diff", *names, "--first-divergence").out
    assert "is the first that writes a row that differs" in said


def _time(number: int) -> str:
    from events.envelope import from_headers, timestamp

    moment = from_headers(event(number).entry.headers).time
    assert moment is not None
    return timestamp(moment)


def _describe(path: Path) -> None:
    """Have the file beside a snapshot say what is in it now."""

    engine = database.open_database(database.sqlite_url(path))
    with database.read_transaction(engine) as connection:
        digest = exact_digest(connection)
    engine.dispose()
    described = path.with_suffix(".json")
    described.write_text(json.dumps(json.loads(described.read_text()) | {"digest": digest}))


def test_foldings_are_told_apart_by_their_snapshots(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        kintsugi("replay", "--into", tmp_path / f"{name}.db", "--every", "2")
    assert (
        kintsugi("diff", tmp_path / "one.db", tmp_path / "two.db", "--first-divergence").code == 0
    )
    begun = kintsugi(
        "replay", "--into", tmp_path / "on.db", "--snapshots", tmp_path / "one.db.snapshots",
        "--json",
    ).json  # fmt: skip
    assert (begun["began_at"], begun["events"]) == (6, 0)


def test_snapshots_that_differ_in_their_digest_alone_hide_no_difference(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        kintsugi("replay", "--into", tmp_path / f"{name}.db", "--every", "2")
    for described in (tmp_path / "two.db.snapshots").glob("*.json"):
        other = {"digest": "0" * 64}
        described.write_text(json.dumps(json.loads(described.read_text()) | other))
    names = tmp_path / "one.db", tmp_path / "two.db", "--first-divergence"
    assert kintsugi("diff", *names).code == 0
    with closing(sqlite3.connect(tmp_path / "two.db", isolation_level=None)) as connection:
        connection.execute("UPDATE rollouts SET messages = 99")
    assert kintsugi("diff", *names).code == 1


def test_where_two_logs_part_is_said(imported: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    kintsugi("log", "export", tmp_path / "kept")
    assert kintsugi("diff", imported, tmp_path / "kept").code == 0
    kintsugi("diagnose")
    with App(load()) as app:
        app.append([entry(rollout("late"), "late", 99)])
    kintsugi("log", "export", tmp_path / "later")
    for later in (imported, tmp_path / "later"):
        found = kintsugi("diff", tmp_path / "kept", later, "--first-divergence", "--json")
        (one,) = found.json["divergences"]
        assert (found.code, one["what"], one["a"], one["b"]["type"]) == (
            1, "missing", None, "RolloutEnded",
        )  # fmt: skip
    mixed = kintsugi("diff", imported, imported / "kintsugi.db")
    assert (mixed.code, "name two of a kind" in mixed.err) == (2, True), "1 says that they differ"


def test_what_is_no_database_of_ours_is_named_and_left_as_it_is(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection, connection:
        connection.execute("CREATE TABLE person_keys (keyid TEXT)")
    before = foreign.read_bytes()
    tables = imported / "kintsugi.db"
    for name in (foreign, f"sqlite:///{foreign}"):
        for pair in ((name, tables), (tables, name)):
            refused = kintsugi("diff", *pair)
            assert (refused.code, "foreign.db" in refused.err) == (2, True)
            assert "holds no tables of kintsugi" in refused.err
    assert kintsugi("rebuild", "--snapshot", foreign).code == 2
    assert foreign.read_bytes() == before
    for name in ("", tmp_path / "none.db", f"sqlite:///{tmp_path / 'none.db'}", "sqlite://"):
        absent = kintsugi("diff", name, tables)
        assert (absent.code, repr(str(name)) in absent.err) == (2, True)
    assert not (tmp_path / "none.db").exists()
