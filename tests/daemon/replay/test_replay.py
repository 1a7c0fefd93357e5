"""Replay, whatif, export and import as a person uses them, over a recorded home."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import ConfigurationError, Scheduler, load
from daemon.core.app import App
from daemon.replay.cycle_history import read_past_cycles
from daemon.replay.replay import override_scheduler
from daemon.replay.whatif import whatif
from events.archive.archive import ends
from events.archive.views import cut_at
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.learning import CycleEnded, CycleStarted, LeaderClaimed
from events.log import Entry
from events.memory import MemoryLog
from tests.consumers.cycling import cycle_id, over
from tests.consumers.folding import at, fold, folded_position, fresh, rollout
from tests.daemon.commands import environment
from tests.daemon.conftest import Kintsugi

_ROOT = Path(__file__).parents[3]

EVERY_10 = Scheduler(
    min_rollouts=10, min_failures=1, min_priority=1e9, cooldown_seconds=30, max_age_seconds=1e9,
    backoff=2, tick_seconds=1,
)  # fmt: skip


def content_of(home: Path) -> list[Any]:
    """Everything that the home's log and tables hold."""
    found: list[Any] = []
    for file in ("log.db", "kintsugi.db"):
        with closing(sqlite3.connect(home / file)) as connection:
            found.append(list(connection.iterdump()))
    return found


def test_a_home_is_restored_on_an_empty_machine(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    live = kintsugi("rebuild", "--json").json
    exported = kintsugi("log", "export", tmp_path / "kept", "--json").json
    there = tmp_path / "there"
    restored = kintsugi("log", "import", tmp_path / "kept", "--home", there, "--json").json
    assert restored == {"events": exported["events"], "blobs": 0, "head": exported["head"]}
    again = kintsugi("rebuild", "--home", there, "--json").json
    assert (again["hash"], again["equal"]) == (live["hash"], True)
    compared = kintsugi("diff", imported, there, "--json").json
    assert (compared["kind"], compared["equal"]) == ("log", True)
    assert kintsugi("log", "verify", "--home", there).code == 0
    refused = kintsugi("log", "import", tmp_path / "kept", "--home", there)
    assert (refused.code, "is there already" in refused.err) == (4, True)


def test_a_rebuild_reads_the_archive_and_then_the_log(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    live = kintsugi("rebuild", "--json").json
    kintsugi("log", "export", tmp_path / "kept")
    with App(load()) as app:
        for partition, end in enumerate(app.spool.end("rollouts")):
            app.spool.trim("rollouts", partition, end)
    assert kintsugi("rebuild").code == 4, "the log alone does not hold it any more"
    found = kintsugi("rebuild", "--archive", tmp_path / "kept", "--json").json
    assert (found["hash"], found["equal"], found["events"]) == (
        live["hash"], True, live["events"],
    )  # fmt: skip


def test_nothing_that_only_looks_changes_a_home(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    kintsugi("rebuild")
    before = content_of(imported)
    live = kintsugi("rebuild", "--json").json["hash"]
    replayed = kintsugi("replay", "--into", tmp_path / "then.db", "--every", "2", "--json").json
    assert (replayed["hash"], replayed["events"], replayed["snapshots"]) == (live, 6, 3)
    assert kintsugi("whatif", "--set", "scheduler.min_rollouts=1", "--json").code == 0
    assert kintsugi("log", "export", tmp_path / "kept").code == 0
    assert kintsugi("diff", tmp_path / "then.db", imported / "kintsugi.db").code == 0
    assert content_of(imported) == before


def test_a_replay_loads_nothing_that_has_effects(imported: Path, tmp_path: Path) -> None:
    """Neither leader, worker, jobs, replicas nor a client for them is even imported."""
    program = (
        "import sys\n"
        "from daemon.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(*sorted(sys.modules))"
    )
    for command in (
        ["replay", "--into", str(tmp_path / "then.db"), "--every", "2", "--quiet"],
        ["whatif", "--set", "scheduler.min_rollouts=1", "--quiet"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            env=environment(KINTSUGI_HOME=str(imported)),
            capture_output=True, text=True, check=True, timeout=60, cwd=_ROOT,
        )  # fmt: skip
        loaded = set(done.stdout.split())
        assert {"consumers.runner", "events.sqlite.log"} <= loaded
        effects = (
            "daemon.cycle.leader", "daemon.cycle.worker", "daemon.jobs", "daemon.roles",
            "daemon.serving", "producers.gateway.server", "httpx2", "torch",
        )  # fmt: skip
        assert not {name for name in loaded if name.startswith(effects)}


@pytest.mark.postgres
def test_a_replay_fills_an_empty_database_of_a_server_and_never_the_live_one(
    imported: Path, kintsugi: Kintsugi, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = kintsugi("rebuild", "--json").json
    there = kintsugi("replay", "--into", postgres_url, "--json").json
    assert (there["hash"], there["events"]) == (live["hash"], live["events"])
    monkeypatch.setenv("KINTSUGI_DATABASE_URL", postgres_url)
    itself = kintsugi("replay", "--into", postgres_url)
    assert (itself.code, "is the live database" in itself.err) == (1, True)
    # The same one under another spelling is no empty one.
    other = postgres_url.replace("postgresql+psycopg://", "postgresql://", 1) + "?connect_timeout=3"
    spelt = kintsugi("replay", "--into", other)
    assert (spelt.code, "name an empty one" in spelt.err) == (1, True)
    every = kintsugi("replay", "--into", "postgresql://nobody:secret@nowhere/x", "--every", "2")
    assert "secret" not in every.err
    assert (every.code, "SQLite alone" in every.err) == (2, True)


def test_a_range_is_replayed_on_its_own_and_from_an_archive(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    every = kintsugi("replay", "--into", tmp_path / "all.db", "--json").json
    kintsugi("log", "export", tmp_path / "kept")
    kintsugi("log", "export", tmp_path / "part", "--to", "learning@0", "--json")
    part = kintsugi("diff", tmp_path / "kept", tmp_path / "part", "--json").json
    assert {one["what"] for one in part["divergences"]} == {"missing"}
    with App(load()) as app:
        for partition, end in enumerate(app.spool.end("rollouts")):
            app.spool.trim("rollouts", partition, end)
    again = kintsugi(
        "replay", "--into", tmp_path / "again.db", "--archive", tmp_path / "kept", "--json"
    ).json
    assert (again["hash"], again["events"]) == (every["hash"], every["events"])
    late = kintsugi(
        "replay", "--into", tmp_path / "late.db", "--archive", tmp_path / "kept",
        "--from", every["end"], "--json",
    ).json  # fmt: skip
    assert late["events"] == 0
    both = kintsugi(
        "replay", "--into", tmp_path / "both.db", "--from", "learning@0", "--snapshots", tmp_path
    )
    assert (both.code, "exclude each other" in both.err) == (2, True)


def test_a_rebuild_begins_at_a_snapshot_that_is_named(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    live = kintsugi("rebuild", "--json").json
    kintsugi("replay", "--into", tmp_path / "all.db", "--every", "2")
    snapshot = tmp_path / "all.db.snapshots" / "000000000004.db"
    found = kintsugi("rebuild", "--snapshot", snapshot, "--json").json
    assert (found["hash"], found["equal"], found["events"]) == (live["hash"], True, 2)
    nowhere = kintsugi("rebuild", "--snapshot", tmp_path / "none.db")
    assert (nowhere.code, "does not exist" in nowhere.err) == (2, True)


def test_whatif_asks_in_the_range_that_is_named(imported: Path, kintsugi: Kintsugi) -> None:
    asked = kintsugi(
        "whatif", "--from", "learning@0", "--to", "learning@1", "--every", "0",
        "--set", "scheduler.min_rollouts=1", "--json",
    ).json  # fmt: skip
    assert (asked["did"], asked["every_seconds"]) == ([], 0.0)
    assert asked["looks"] > 0
    assert kintsugi("whatif", "--to", "learning@1").out


def test_a_replay_ends_where_it_is_told(imported: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    early = kintsugi("replay", "--into", tmp_path / "early.db", "--to", "learning@0", "--json")
    assert early.json["events"] == 0
    whole = kintsugi("replay", "--into", tmp_path / "whole.db", "--to", "learning@1", "--json")
    assert whole.json["events"] == 6
    parted = kintsugi("diff", tmp_path / "early.db", tmp_path / "whole.db", "--json")
    assert (parted.code, parted.json["equal"]) == (1, False)
    assert parted.json["changed"]["rollouts"] == 5
    nowhere = kintsugi("replay", "--into", tmp_path / "no.db", "--to", "learning@9")
    assert (nowhere.code, "'learning@9'" in nowhere.err) == (2, True)
    assert not (tmp_path / "no.db").exists()


def test_a_range_that_ends_before_it_begins_is_refused_by_all_that_take_one(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    for command in (
        ("replay", "--into", tmp_path / "new.db"), ("log", "export", tmp_path / "new"), ("whatif",),
    ):  # fmt: skip
        refused = kintsugi(*command, "--from", "learning@1", "--to", "learning@0")
        assert (refused.code, "'learning@1' begins behind 'learning@0'" in refused.err) == (2, True)
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize("into", ["", "sqlite://", "sqlite:///:memory:", ":memory:"])
def test_a_replay_that_nobody_could_look_at_is_refused(
    imported: Path, kintsugi: Kintsugi, into: str
) -> None:
    refused = kintsugi("replay", "--into", into)
    assert (refused.code, f"{into!r} names no file" in refused.err) == (2, True)


@pytest.mark.parametrize("into", ["kintsugi.db", "log.db"])
def test_a_replay_fills_no_database_that_is_there(
    imported: Path, kintsugi: Kintsugi, into: str
) -> None:
    before = content_of(imported)
    result = kintsugi("replay", "--into", imported / into)
    assert (result.code, "exists" in result.err) == (1, True)
    as_url = kintsugi("replay", "--into", f"sqlite:///{imported / into}")
    assert as_url.code == 1
    assert content_of(imported) == before


def entry(data: Any, name: str, second: float, epoch: int | None = None) -> Entry:
    moment = at(0).timestamp() + second
    envelope = Envelope(
        id=derive_id("test", name), type=data.TYPE, version=data.VERSION, subject=data.key(),
        time=at(int(second)), epoch=epoch,
    )  # fmt: skip
    return encode(envelope, data, recorded_ms=int(moment * 1000)).entry


@pytest.fixture
def past(tmp_path: Path) -> Iterator[MemoryLog]:
    """A failure a second for a minute, and two cycles: at 10 s for 5 s, and at 40 s for 7 s."""
    log = MemoryLog()
    engine = fresh(tmp_path, "past")
    log.append([entry(LeaderClaimed(epoch=1, holder="p"), "claim", 0)])
    spoken = {10: 1, 46: 2}
    for second in range(1, 61):
        log.append([entry(rollout(f"r{second}", task=None), f"r{second}", second)])
        if second in spoken:
            fold(log, engine)
            number = spoken[second]
            begun = CycleStarted(
                cycle=cycle_id(number), alias="agent", base="base", number=number,
                environment="shop", trigger="rollouts", reason="so",
                position=folded_position(engine),
            )  # fmt: skip
            log.append([entry(begun, f"begun{number}", second, 1)])
        for ends_at, number, outcome in ((16, 1, "promoted"), (53, 2, "rejected")):
            if second == ends_at:
                data: CycleEnded = over(number, outcome)  # type: ignore[arg-type]
                log.append([entry(data, f"over{number}", second, 1)])
    yield log
    engine.dispose()


def supposed(
    log: MemoryLog, folder: Path, since: int | None = None, **changes: Any
) -> list[tuple[int, str, int]]:
    """(second, trigger, rollouts) of each cycle that would have begun, after second `since`."""
    from consumers import database

    engine, tables = fresh(folder, "lived"), fresh(folder, f"walk-{len(changes)}")
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        cycles = read_past_cycles(connection)
    assert [one.seconds for one in cycles] == [6.0, 7.0]
    assert [one.rollouts for one in cycles] == [10, 36]
    before = ends(log)
    found = whatif(
        log, tables, cycles, {"agent": "shop"}, EVERY_10.model_copy(update=changes),
        start=None if since is None else cut_at(log, int(1000 * (at(0).timestamp() + since))),
        end=before, every_ms=1000,
    )  # fmt: skip
    assert ends(log) == before
    for each in (engine, tables):
        each.dispose()
    start = at(0).timestamp()
    return [(round(one.at.timestamp() - start), one.trigger, one.rollouts) for one in found.cycles]


def test_with_the_settings_that_there_were_the_cycles_are_those_that_there_were(
    past: MemoryLog, tmp_path: Path
) -> None:
    assert supposed(past, tmp_path) == [(10, "rollouts", 10), (46, "rollouts", 36)]


def test_with_other_settings_they_begin_when_these_say(past: MemoryLog, tmp_path: Path) -> None:
    found = supposed(past, tmp_path, min_rollouts=20, cooldown_seconds=0)
    assert found == [(20, "rollouts", 20), (40, "rollouts", 20)]
    by_age = supposed(past, tmp_path, min_rollouts=1000, max_age_seconds=25.7, cooldown_seconds=1)
    assert by_age == [(27, "age", 26), (52, "age", 26)], "0.7 s after a look, before the next one"


def test_what_began_before_the_place_that_was_named_is_as_it_was(
    past: MemoryLog, tmp_path: Path
) -> None:
    assert supposed(past, tmp_path, since=9) == [(10, "rollouts", 10), (46, "rollouts", 36)]
    for name in ("lived.db", "walk-0.db"):
        (tmp_path / name).unlink()
    # The first cycle read 10 and ended at 16 s; its 30 seconds of rest are over at 40 s.
    assert supposed(past, tmp_path, since=12) == [(46, "rollouts", 36)]
    # The second one is like the second that there was: in vain, so more rollouts are asked for.
    found = supposed(past, tmp_path, since=12, min_rollouts=20, cooldown_seconds=0)
    assert found == [(30, "rollouts", 20)]


def test_a_setting_that_is_none_or_no_number_is_refused() -> None:
    assert override_scheduler(Scheduler(), ["scheduler.min_rollouts=7"]).min_rollouts == 7
    for wrong in (
        "min_rollouts=7",
        "scheduler.min_rollout=7",
        "scheduler.min_rollouts",
        "jobs.x=1",
    ):
        with pytest.raises(ConfigurationError, match="sets nothing here"):
            override_scheduler(Scheduler(), [wrong])
    with pytest.raises(ConfigurationError, match="min_rollouts"):
        override_scheduler(Scheduler(), ["scheduler.min_rollouts=many"])
