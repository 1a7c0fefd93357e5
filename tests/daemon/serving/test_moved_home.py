"""A home that was restored, moved or copied serves its own files, and no others."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from daemon.adapters.adoption import adopt
from daemon.adapters.directory import WEIGHTS
from daemon.core.decision_log import Decisions
from daemon.engine.reference.weights import CHECKPOINT
from daemon.status.doctor.report import examine
from events.lifecycle import State
from events.serving import AdapterProduced
from ops.random_adapters import Adapters
from tests.daemon.commands import run_here
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home
from tests.e2e.test_restore import commands, run

OpenHome = Callable[[Path, Home], Home]


@pytest.fixture
def open_home() -> Iterator[OpenHome]:
    """Open the home in a folder, over the engines of another one."""
    with ExitStack() as stack:

        def open_(folder: Path, before: Home) -> Home:
            home = Home(folder, before.engines)
            stack.callback(home.close)
            return home

        yield open_


def serve(home: Home, folder: Path, *, older: bool) -> str:
    """Have an adapter answer alone; `older`: with events of an older version."""
    if not older:
        return home.serve(folder)
    adopted = adopt(folder, home.app.settings.adapters, CHECKPOINT, kind="agent")
    produced = AdapterProduced(
        adapter=adopted.name, alias="agent", base="reference", sha256=adopted.sha256,
        path=str(adopted.folder), origin="push",
    )  # fmt: skip
    home.app.settle()
    decisions = Decisions(home.app)
    decisions.take(produced, "produced", decisions.act(ADA, "adapters push", {}))
    home.publisher.promote(adopted.name, ADA, override=True)
    return adopted.name


def find_folders(home: Home) -> dict[str, str]:
    """Adapter -> folder that each engine has it from."""
    (engine,) = home.fleet.engines.values()
    return dict(engine.replica.list_models().adapters)


def check_files(home: Home) -> tuple[bool, str]:
    """What doctor says of the adapters that answer."""
    return next((c.ok, c.detail) for c in examine(home.app) if c.check == "adapters")


@pytest.mark.parametrize("older", [False, True])
def test_a_backup_is_restored_under_another_path_and_serves(
    older: bool, make_home: MakeHome, open_home: OpenHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(1)
    lost, backup, restored = home.app.home, tmp_path / "backup", tmp_path / "restored"
    name = serve(home, adapters["v1"], older=older)
    home.close()
    here, there = {"KINTSUGI_HOME": str(lost)}, {"KINTSUGI_HOME": str(restored)}
    before = run_here(["rebuild", "--json"], here).json
    for line in commands("Back up"):
        run(line, {"/var/lib/kintsugi": lost, "/backup": backup}, here)
    shutil.move(lost, tmp_path / "gone")
    for line in commands("Restore"):
        run(line, {"/var/lib/kintsugi": restored, "/backup": backup}, there)
    assert run_here(["rebuild", "--json"], there).json["hash"] == before["hash"]
    shown = run_here(["adapters", "show", name, "--json"], there).json
    assert shown["path"] == str(next((restored / "adapters").glob(f"{name}*")))
    (engine,) = home.engines
    engine.restart()
    moved = open_home(restored, home)
    assert moved.tick().loaded == [name]
    assert find_folders(moved) == {name: shown["path"]}
    assert check_files(moved)[0]
    assert moved.tick().loaded == []


def test_an_engine_that_went_on_while_its_home_was_moved_is_left_alone(
    make_home: MakeHome, open_home: OpenHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(1)
    name = home.serve(adapters["v1"])
    old = find_folders(home)[name]
    home.close()
    shutil.move(home.app.home, tmp_path / "moved")
    moved = open_home(tmp_path / "moved", home)
    for _ in range(2):
        done = moved.tick()
        assert (done.loaded, done.unloaded, done.troubles) == ([], [], [])
    assert find_folders(moved)[name] == old
    second = moved.serve(adapters["v2"])
    assert find_folders(moved)[second] == moved.row(second).path
    moved.publisher.rollback("agent", ADA)
    assert moved.row(name).state is State.PROMOTED
    assert moved.tick().troubles == []
    moved.engines[0].restart()
    assert name in moved.tick().loaded
    assert find_folders(moved)[name] == moved.row(name).path


@pytest.mark.parametrize("older", [False, True])
def test_doctor_looks_at_the_copy_of_the_home_that_it_is_asked_about(
    older: bool, make_home: MakeHome, open_home: OpenHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(1)
    name = serve(home, adapters["v1"], older=older)
    home.close()
    shutil.copytree(home.app.home, tmp_path / "copy")
    copy = open_home(tmp_path / "copy", home)
    assert check_files(copy)[0]
    own = Path(copy.row(name).path)
    (own / WEIGHTS).write_bytes(b"damaged")
    ok, detail = check_files(copy)
    assert not ok
    assert str(own) in detail
    shutil.rmtree(own)
    ok, detail = check_files(copy)
    assert not ok
    assert f"{own} answers and is not there" in detail


def test_the_same_files_pushed_into_a_moved_home_are_the_same_adapter(
    make_home: MakeHome, open_home: OpenHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(1)
    name = serve(home, adapters["v1"], older=True)
    home.close()
    shutil.move(home.app.home, tmp_path / "moved")
    moved = open_home(tmp_path / "moved", home)
    assert moved.push(adapters["v1"]) == name
