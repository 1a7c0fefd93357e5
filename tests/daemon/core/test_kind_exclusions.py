"""Kinds of constant outcome, and kinds that a cheater wins, are named and never trained on."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import pytest

from daemon.config.settings import Agent, Settings
from daemon.core import kind_exclusions
from daemon.core.app import App
from daemon.core.kind_exclusions import (
    drop_kinds,
    find_cheat_exclusions,
    find_exclusions,
    measure_cheats,
    read_agent_kinds,
    read_cheats,
)
from daemon.status.doctor.loop import kinds
from envs.cheating.trial import BankReport, run_bank
from envs.environment import Environment
from envs.registry import open_place
from envs.toolsandbox.environment import ToolSandbox
from events.jobs import TaskPool

LIBRARY: Final = """
from typing import ClassVar
from envs.shop.environment import Shop
from envs.task import Criteria

SHOP = Shop()

class Library(Shop):
    name = "library"
    capabilities: ClassVar = {"lend": "lends", "greet": "says hello", "sure": "lends two"}
    constant: ClassVar = frozenset({"greet"})

    def generate(self, capability, seed):
        if capability == BROKEN:
            raise ValueError("no such shelf")
        task = SHOP.generate("cancel", seed)
        criteria = task.criteria
        if capability == "lend":
            criteria = Criteria(gold_actions=(), outputs=criteria.outputs)
        return task.model_copy(update={
            "id": self.task_id(capability, seed), "environment": "library",
            "capability": capability, "criteria": criteria})
"""


def write(folder: Path, broken: str = "") -> Path:
    path = folder / "library.py"
    path.write_text(f"BROKEN = {broken!r}\n{LIBRARY}")
    return path


def settings_of(folder: Path, *allowed: str) -> Settings:
    place = str(folder / "library.py")
    agent: Any = Agent(alias="agent", environment=place)
    return Settings(
        home=folder / "home",
        agents=(agent,),
        environments={"allow_winnable": allowed},
    )


@pytest.fixture
def library(tmp_path: Path) -> Environment:
    """An environment whose kind `lend` is won by whoever says many numbers."""
    return open_place(str(write(tmp_path)))


def test_a_winnable_kind_is_named_with_cheater_and_remedy_once_it_was_measured(
    library: Environment, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path)
    (before,) = read_agent_kinds(settings)
    assert (before.measured, before.winnable) == (False, {})
    assert "cheaters have not played library" in before.says
    assert f"kintsugi env check {tmp_path / 'library.py'} shows" in before.says
    measure_cheats(settings, library)
    (after,) = read_agent_kinds(settings)
    assert (after.measured, after.constant) == (True, ("greet",))
    assert "lend is left out: the cheater " in after.says
    assert "never trained on: greet" in after.says
    assert "lend" in find_cheat_exclusions(settings, library)
    assert {"greet", "lend"} <= find_exclusions(settings, library).keys()
    with App(settings) as app:
        ok, said = kinds(app)
    assert (ok, "the cheater" in said) == (False, True)


def test_cheaters_play_once_for_each_state_of_the_code(
    library: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    first = measure_cheats(settings, library)
    file = tmp_path / "home" / "environments" / "library.json"
    kept = file.stat().st_mtime_ns
    assert measure_cheats(settings, library) == first
    assert file.stat().st_mtime_ns == kept
    changed = open_place(str(write(tmp_path, broken="sure")))
    assert read_cheats(settings, changed) is None
    again = measure_cheats(settings, changed)
    assert "cheaters cannot play it: it raises ValueError" in again.winnable["sure"]
    file.write_text("{")
    assert read_cheats(settings, changed) is None


def test_a_kind_that_the_settings_allow_is_used_and_still_named(
    library: Environment, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, "library/lend")
    measure_cheats(settings, library)
    assert "lend" not in find_exclusions(settings, library)
    (agent,) = read_agent_kinds(settings)
    assert "lend" in agent.allowed
    assert "lend is used as allowed" in agent.says


def test_pools_keep_the_tasks_of_other_kinds() -> None:
    phone = ToolSandbox()
    constant, other = "no_clock", "add_contact"
    both = tuple(phone.task_id(kind, seed) for kind in (constant, other) for seed in range(2))
    pools = [
        TaskPool(name="mixed", tasks=both[:3], references=(both[3],)),
        TaskPool(name="lost", tasks=(both[0],)),
        TaskPool(name="elsewhere", tasks=(both[0],), environment="shop"),
    ]
    kept = drop_kinds(phone, pools, dict.fromkeys(phone.constant, "constant"))
    assert [(pool.name, pool.tasks) for pool in kept] == [
        ("mixed", (both[2],)), ("elsewhere", (both[0],)),
    ]  # fmt: skip
    assert drop_kinds(phone, pools, {}) == pools


def test_a_built_in_environment_is_proven_by_its_tests(tmp_path: Path) -> None:
    phone = ToolSandbox()
    assert kind_exclusions.is_built_in(phone)
    assert find_cheat_exclusions(Settings(home=tmp_path), phone) == {}
    assert find_exclusions(Settings(home=tmp_path), phone).keys() == phone.constant


def test_what_is_won_of_code_that_changes_meanwhile_is_no_result_of_the_new_code(
    tmp_path: Path,
) -> None:
    place = write(tmp_path)
    place.write_text(
        place.read_text().replace(
            "        task = SHOP",
            "        from pathlib import Path\n"
            "        file = Path(__file__)\n"
            "        file.write_text(file.read_text() + '#')\n"
            "        task = SHOP",
        )
    )
    settings = settings_of(tmp_path)
    measure_cheats(settings, open_place(str(place)))
    assert read_cheats(settings, open_place(str(place))) is None


def test_two_processes_measure_an_environment_at_the_same_time(
    library: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, played = settings_of(tmp_path), Barrier(2, timeout=60)

    def play_at_once(environment: Environment, kinds: Sequence[str]) -> BankReport:
        report = run_bank(environment, kinds)
        played.wait()
        return report

    monkeypatch.setattr(kind_exclusions, "run_bank", play_at_once)
    with ThreadPoolExecutor(2) as pool:
        records = list(pool.map(partial(measure_cheats, settings), [library] * 2))
    assert read_cheats(settings, library) == records[0] == records[1]
    assert [path.name for path in (tmp_path / "home" / "environments").iterdir()] == [
        "library.json"
    ]


RAISES: Final = """
from envs.shop.environment import Shop

class Odd(Shop):
    name = "odd"
    constant = property(lambda self: 1 / 0)
"""


def test_an_environment_whose_kinds_cannot_be_read_is_named_and_stops_no_command(
    tmp_path: Path,
) -> None:
    settings = settings_of(tmp_path)
    (missing,) = read_agent_kinds(settings)
    assert "library.py are unknown: UnknownEnvironment" in missing.says
    (tmp_path / "library.py").write_text(RAISES)
    (odd,) = read_agent_kinds(settings)
    assert odd.error == "ZeroDivisionError: division by zero"
    with App(settings) as app:
        ok, said = kinds(app)
    assert (ok, "ZeroDivisionError" in said) == (False, True)


def test_a_record_that_cannot_be_read_is_said(library: Environment, tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    (tmp_path / "home" / "environments" / "library.json").mkdir(parents=True)
    (agent,) = read_agent_kinds(settings)
    assert "IsADirectoryError" in agent.says


def test_a_name_in_allow_winnable_that_allows_nothing_is_said(
    library: Environment, tmp_path: Path
) -> None:
    measure_cheats(settings_of(tmp_path), library)
    for name in ("library/lendd", "libary/lend", "shop/cancel", "library/greet"):
        with App(settings_of(tmp_path, "library/lend", name)) as app:
            ok, said = kinds(app)
        assert (ok, f"allow_winnable names {name}, and" in said) == (False, True)
    with App(settings_of(tmp_path, "library/lend")) as app:
        assert kinds(app)[0]
