"""What a home holds is its owner's alone, whatever the umask; but for what engines load."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.database import open_database, sqlite_url, write_transaction
from consumers.rebuild import rebuild
from daemon.config.settings import load
from daemon.core.app import App
from daemon.roles.supervisor import alone
from daemon.status.doctor.machine import modes
from events import private
from events.archive.export import export
from events.blobs import BlobStore
from events.privacy.keys import KeyStore
from events.sqlite.log import SqliteLog
from ops.mix import mix
from tests.daemon.commands import spawn


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """The umask of most machines: others may read. Set before any thread of the test begins."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Everything below a folder that somebody else may read or change, or enter."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    )


def entered(folder: Path) -> list[str]:
    """What somebody else reaches below a folder, by folders that he may pass through."""
    found = []
    for path in folder.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o006:
            found.append(path.name)
        elif path.is_dir() and mode & 0o001:
            found += [f"{path.name}/{name}" for name in entered(path)]
    return sorted(found)


def test_log_blobs_and_archives_are_their_owners_alone(place: Path) -> None:
    log, blobs = SqliteLog(place / "log.db"), BlobStore(place / "blobs")
    blobs.put(b"x" * 100)
    log.append(list(mix(20)))
    export(log, blobs, place / "archive")
    assert {"log.db", "log.db-wal", "log.db-shm"} <= {path.name for path in place.iterdir()}
    assert open_to_others(place) == []
    log.close()


def test_tables_and_keys_are_their_owners_alone(place: Path) -> None:
    url = sqlite_url(place / "kintsugi.db")
    with write_transaction(open_database(url)) as connection:
        connection.exec_driver_sql("CREATE TABLE positions (x)")
        KeyStore(sqlite_url(place / "keys.db")).close()
        assert (place / "kintsugi.db-wal").exists()
        assert open_to_others(place) == []


def test_a_home_lets_nobody_read_but_what_engines_load(tmp_path: Path) -> None:
    home = tmp_path / "home"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "My number is 12345."}]}\n')
    for command in (("import", str(rows)), ("diagnose",), ("log", "verify"), ("status",)):
        assert spawn(command, tmp_path, {"KINTSUGI_HOME": str(home)}).code in (0, 3)
    (home / "adapters").mkdir(exist_ok=True)
    assert (home / "log.db").exists()
    assert (home / "kintsugi.db").exists()
    assert [name for name in entered(home) if not name.startswith("adapters")] == []
    # An engine of another user passes through, and cannot look around.
    assert stat.S_IMODE(home.stat().st_mode) == private.PASSAGE


def test_a_home_whose_adapters_lie_elsewhere_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_SERVING__ADAPTERS", str(tmp_path / "shared"))
    with App(load(home=tmp_path / "home")) as app:
        assert stat.S_IMODE(app.home.stat().st_mode) == private.FOLDER


def test_what_an_older_version_left_open_is_closed_when_it_is_used(place: Path) -> None:
    log, blobs = SqliteLog(place / "log.db"), BlobStore(place / "blobs")
    blobs.put(b"x")
    log.append(list(mix(2)))
    for path in (*place.glob("log.db*"), place / "blobs"):
        path.chmod(0o755 if path.is_dir() else 0o664)
    again = SqliteLog(place / "log.db")
    BlobStore(place / "blobs").put(b"y")
    # What the group may do was somebody's decision.
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert found == {"log.db": 0o660, "log.db-wal": 0o660, "log.db-shm": 0o660, "blobs": 0o750}
    again.close()
    log.close()


def test_the_doctor_names_what_everybody_may_read(place: Path) -> None:
    with App(load(home=place)) as app:
        app.spool.append(list(mix(2)))
        (place / "adapters").mkdir()
        assert modes(app)[0]
        (place / "evaluations").mkdir()
        ok, detail = modes(app)
        assert not ok
        assert "evaluations" in detail
        assert "chmod" in detail
        (place / "evaluations").rmdir()
        place.chmod(0o711)
        assert "may list it" not in modes(app)[1]
        place.chmod(0o755)  # as an earlier version made it
        ok, detail = modes(app)
        assert ok
        assert "everybody may list it" in detail


def test_locks_are_private_too(place: Path) -> None:
    with App(load(home=place)) as app, alone(place):
        app.append(list(mix(2)))
        app.settle()
        rebuild(app.log, app.engine)
        locks = {path.name for path in place.glob("*.lock")}
        assert locks >= {"up.lock", "kintsugi.db.rebuild.lock"}
        assert modes(app)[0]


def test_what_lies_in_a_home_that_nobody_else_enters_is_nobody_elses(place: Path) -> None:
    with App(load(home=place)) as app:
        (place / "notes").touch(0o644)
        assert not modes(app)[0]
        place.chmod(0o700)
        assert modes(app)[0]


def test_a_file_that_is_made_is_never_open_for_a_moment(place: Path) -> None:
    with open(place / "a", "wb", opener=private.opener) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    private.create_file(place / "b")
    private.create_file(place / "b")
    assert stat.S_IMODE((place / "b").stat().st_mode) == 0o600
