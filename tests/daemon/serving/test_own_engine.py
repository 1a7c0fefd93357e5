"""Commands beside `kintsugi up` find the engine that it runs, and say where there is none."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.core.own_engine import OwnEngine
from daemon.core.start_mark import VARIABLE, mint
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.roles.supervisor import alone
from ops.random_adapters import Adapters
from tests.daemon.commands import Result, run_here
from tests.daemon.serving.homes import Home, Restartable


@pytest.fixture
def engine(
    reference: tuple[Policy, Chat], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Restartable]:
    """An engine that shows the mark of the home in `tmp_path / "home"`."""
    monkeypatch.setenv(VARIABLE, mint(tmp_path / "home"))
    engine = Restartable(*reference)
    yield engine
    engine.stop()


@pytest.fixture
def name(adapters: Adapters, engine: Restartable, tmp_path: Path) -> str:
    """An adapter of the home, which no engine has yet."""
    home = Home(tmp_path / "home", [engine])
    pushed = home.push(adapters["v1"])
    home.close()
    return pushed


def run(tmp_path: Path, *words: str) -> Result:
    """A command in this home, whose settings name no engine."""
    return run_here([*words], {"KINTSUGI_HOME": str(tmp_path / "home")})


def test_promote_rollback_and_route_set_find_the_engine_of_up(
    name: str, engine: Restartable, tmp_path: Path
) -> None:
    with alone(tmp_path / "home", engine.url):
        why = ("--override", "--reason", "a test")
        promoted = run(tmp_path, "adapters", "promote", name, *why, "--json")
        assert promoted.code == 0, promoted.err
        assert promoted.json["route"][0]["adapter"] == name
        halves = (f"{name}=0.5", "base=0.5")
        assert run(tmp_path, "route", "set", "agent", *halves).code == 0
        least = run(tmp_path, "route", "set", "agent", f"{name}=0.000001", "base=0.999999").out
        assert "99.9999%" in least
        assert " 0.0001%" in least
        assert run(tmp_path, "adapters", "rollback").code == 0
        assert run(tmp_path, "adapters", "promote", name, *why).code == 0


@pytest.mark.long
def test_a_push_knows_the_model_that_the_engine_of_up_serves(
    adapters: Adapters, engine: Restartable, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapters["v2"] / name, foreign)
    settings = {
        "KINTSUGI_HOME": str(tmp_path / "home"), "KINTSUGI_ENGINE__MODEL": str(CHECKPOINT),
    }  # fmt: skip
    with alone(tmp_path / "home", engine.url):
        pushed = run_here(["adapters", "push", str(foreign)], settings)
    assert pushed.code == 0, pushed.err


def test_an_engine_that_is_stopped_is_named_with_the_remedy(
    name: str, engine: Restartable, tmp_path: Path
) -> None:
    with alone(tmp_path / "home", engine.url):
        engine.stop()
    for words in (
        ["adapters", "promote", name, "--override", "--reason", "a test"],
        ["route", "set", "agent", f"{name}=1"],
        ["adapters", "stage", name],
    ):
        refused = run(tmp_path, *words)
        assert refused.code == 4, words
        assert f"the engine of kintsugi up at {engine.url} gives no answer" in refused.err
        assert "start kintsugi up, or name an engine with --upstream" in refused.err


def test_a_home_without_up_and_another_homes_engine_are_told(
    name: str, engine: Restartable, tmp_path: Path
) -> None:
    refused = run(tmp_path, "adapters", "stage", name)
    assert refused.code == 4
    assert "kintsugi up has run none for" in refused.err
    other = tmp_path / "other"
    other.mkdir()
    with alone(other, engine.url):
        assert OwnEngine.read(other).url is None
        assert "taken by another process" in OwnEngine.read(other).trouble


@pytest.mark.parametrize("way", ["link", "other/../home"])
def test_a_home_by_another_path_has_the_engine_of_its_up(
    way: str, name: str, engine: Restartable, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("home")
    with alone(tmp_path / "home", engine.url):
        assert OwnEngine.read(tmp_path / way).url == engine.url


def test_going_back_to_the_base_waits_for_no_engine(
    name: str, engine: Restartable, tmp_path: Path
) -> None:
    with alone(tmp_path / "home", engine.url):
        why = ("--override", "--reason", "a test")
        assert run(tmp_path, "adapters", "promote", name, *why).code == 0
        engine.stop()
        assert run(tmp_path, "adapters", "rollback").code == 0
