"""A spool that was restored from before: who ships it stops, and under a new id it goes on."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from consumers.reads import rollouts
from consumers.runner import ORDER
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.core.spool_check import SpoolBehindTables, check_spool
from daemon.status.doctor import records
from events.serving import OperatorActed
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from producers.spool.owner import SpoolInUse
from producers.spool.renewal import renew
from tests.consumers.folding import Broker, ended, entry, fold

PARTITION = ROLLOUTS.partition_of("s")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty one."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def record(home: Path, names: str) -> None:
    with closing(SqliteLog(home / "log.db")) as spool:
        spool.append([ended(name, session="s") for name in names])


def ship(home: Path, broker: Broker) -> None:
    """As the shipper does."""
    with closing(SqliteLog(home / "log.db")) as spool:
        at = (ROLLOUTS.name, PARTITION)
        (shipped, end) = (log(at[0])[at[1]] for log in (spool.read_ship_offsets, spool.end))
        broker.deliver(spool.read(*at, shipped))
        spool.store_ship_offset(*at, end)


def set_back(home: Path, broker: Broker, app: App) -> None:
    """To a copy that was made in the middle."""
    record(home, "abc")
    ship(home, broker)
    shutil.copy(home / "log.db", home / "copy.db")
    record(home, "def")
    ship(home, broker)
    fold(broker, app.engine)
    (home / "copy.db").replace(home / "log.db")


def checked(home: Path, app: App) -> None:
    with closing(SqliteLog(home / "log.db")) as spool:
        check_spool(app.reading, spool)


@pytest.mark.parametrize("since", ["", "u", "uvw", "uvwxyz"])
def test_a_spool_that_was_restored_is_told_however_far_it_has_grown(home: Path, since: str) -> None:
    broker = Broker()
    with App(Settings(home=home)) as app:
        set_back(home, broker, app)
        if since:
            record(home, since)
        with pytest.raises(SpoolBehindTables, match="kintsugi spool renew"):
            checked(home, app)
        ok, said = records.spool(app)
        assert not ok
        assert "restored from before" in said


def test_one_whose_last_event_the_tables_hold_otherwise_was_not_restored(home: Path) -> None:
    """PostgreSQL has no NUL in text, so a mark stands in its place."""
    broker = Broker()
    with App(Settings(home=home)) as app:
        with closing(SqliteLog(home / "log.db")) as spool:
            data = OperatorActed(actor="a", action="pause", reason="pasted\x00text")
            spool.append([entry(data, "o"), ended("r", session="s\x00")])
            for stream, partition in ORDER:
                if spool.end(stream)[partition]:
                    broker.deliver(spool.read(stream, partition, 0))
        fold(broker, app.engine)
        checked(home, app)


def test_one_that_was_not_is_left_alone(home: Path) -> None:
    """Shipped or not, folded or not, and trimmed."""
    broker = Broker()
    with App(Settings(home=home)) as app:
        record(home, "abc")
        ship(home, broker)
        checked(home, app)
        fold(broker, app.engine)
        record(home, "de")
        checked(home, app)
        with closing(SqliteLog(home / "log.db")) as spool:
            spool.trim(ROLLOUTS.name, PARTITION, 3)
        checked(home, app)


def test_under_a_new_id_all_that_was_recorded_is_folded(home: Path) -> None:
    broker = Broker()
    with App(Settings(home=home)) as app:
        set_back(home, broker, app)
        record(home, "uvwxyz")
        found = renew(home)
        assert found.events == 6
        with closing(SqliteLog(found.kept, read_only=True)) as kept:
            assert kept.source == found.before
            assert kept.end(ROLLOUTS.name)[PARTITION] == 9
        checked(home, app)
        ship(home, broker)
        fold(broker, app.engine)
        with app.reading() as connection:
            names = "".join(sorted(one.rollout for one in rollouts.rollout_lines(connection)))
            assert names == "abcdefuvwxyz"
            assert rollouts.dead_letters(connection) == []


def test_what_was_shipped_after_the_copy_counts_once(home: Path) -> None:
    """The restored cursor does not know of it."""
    broker = Broker()
    with App(Settings(home=home)) as app:
        record(home, "abc")
        shutil.copy(home / "log.db", home / "copy.db")
        ship(home, broker)
        record(home, "def")
        ship(home, broker)
        fold(broker, app.engine)
        (home / "copy.db").replace(home / "log.db")
        record(home, "x")
        assert renew(home).events == 4
        ship(home, broker)
        fold(broker, app.engine)
        with app.reading() as connection:
            names = "".join(sorted(one.rollout for one in rollouts.rollout_lines(connection)))
            assert names == "abcdefx"


def test_a_spool_that_somebody_has_open_is_not_touched(home: Path) -> None:
    with App(Settings(home=home)) as app:
        assert app.spool.source
        with pytest.raises(SpoolInUse):
            renew(home)
