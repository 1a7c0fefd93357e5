"""The adapter that plays users on real engines: staged, kept, replaced, retired, never routed."""

from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from daemon.adapters.adoption import adopt
from daemon.adapters.directory import WEIGHTS
from daemon.config.settings import Agent, Improve
from daemon.core.isolation import Breaks
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.skills.panels import Composition, CompositionRefusal, compose
from daemon.methods.synthesis.users.players import find_user
from daemon.methods.synthesis.users.practice import read_user_practices
from daemon.methods.synthesis.users.worker import UserWorker, user_trials_of
from daemon.serving.merging import MergeRefusal, merge_adapters
from daemon.serving.publisher import PromotionRefusal
from events.lifecycle import State
from events.serving import AdapterProduced
from ops.random_adapters import Adapters, Maker
from tests.consumers.folding import at, ended
from tests.consumers.playing_users import user_evaluated
from tests.daemon.methods.synthesis.users.conftest import decide
from tests.daemon.serving.conftest import MakeHome, make_home, reference
from tests.daemon.serving.homes import ADA, Home

__all__ = ["make_home", "reference"]

SETTINGS: Final = {
    "agents": (Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
    "improve": Improve(users="trained"),
}


def see(home: Home, base: str = "reference", second: int = 1) -> None:
    """Record traffic of the agent on a base."""
    home.app.append([ended(f"on {base} {second}", at(second), base=base)])
    home.app.settle()


def who_plays(home: Home, base: str) -> str | None:
    """The model that plays the agent's users on a base."""
    with home.app.reading() as connection:
        user = find_user(connection, home.app.settings, "agent", base)
    return None if user is None else user.simulator


def bring(home: Home, folder: Path, *, passed: bool | None = True) -> str:
    """Bring an adapter that plays users into the home, and measure it unless `passed` is None."""
    adopted = adopt(folder, home.app.settings.adapters, CHECKPOINT, kind="agent-user")
    produced = AdapterProduced(
        adapter=adopted.name, alias="agent", base="reference", sha256=adopted.sha256,
        path=str(adopted.folder), job="j", origin="job", role="user",
    )  # fmt: skip
    decide(home.app, produced)
    if passed is not None:
        decide(home.app, user_evaluated(adopted.name, passed=passed))
    return adopted.name


def work(home: Home) -> list[str]:
    """One round of what is done for adapters that play users; another worker each time."""
    worker = UserWorker(home.app, home.fleet, user_trials_of(home.app.settings), home.clock)
    breaks = Breaks()
    notes = worker.advance(breaks)
    assert breaks.troubles == []
    return notes


def test_what_passed_is_staged_once_and_comes_back_after_a_restart(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2, **SETTINGS)
    see(home)
    name = bring(home, adapters["v1"])
    assert home.tick().loaded == [], "it is staged first"
    assert work(home) == [f"{name} plays the users of agent"]
    assert work(home) == []
    assert home.loaded() == [[name], [name]]
    assert home.state(name) == State.GATED
    home.engines[0].restart()
    assert home.tick().loaded == [name]
    assert home.loaded() == [[name], [name]]


def test_the_next_one_takes_its_place_and_the_files_go_later(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, **SETTINGS)
    see(home)
    first = bring(home, adapters["v1"])
    work(home)
    failed = bring(home, adapters["v2"], passed=False)
    assert (home.state(first), home.state(failed)) == (State.GATED, State.REJECTED)
    assert home.loaded() == [[first]]
    second = bring(home, adapters["v3"])
    assert home.state(first) == State.DRAINING
    work(home)
    home.tick()
    assert home.loaded() == [[second]]
    assert home.state(first) == State.UNLOADED
    folder = Path(home.row(first).path)
    assert folder.is_dir()
    home.later = timedelta(days=30)
    home.tick()
    assert not folder.exists()
    assert Path(home.row(second).path).is_dir()


def test_it_has_a_slot_of_its_own_beside_that_of_the_next_candidate(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_loras": 2}, **SETTINGS)
    see(home)
    home.serve(adapters["v1"])
    name = bring(home, adapters["v2"])
    (note,) = work(home)
    assert "no slot for" in note
    assert "3 are needed (1 stable, 1 user" in note
    assert home.state(name) == State.GATED


def test_one_whose_rank_the_engines_do_not_take_waits_for_other_engines(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_lora_rank": 1}, **SETTINGS)
    see(home)
    name = bring(home, Maker(CHECKPOINT).write(home.app.home / "large", 0.3, rank=32))
    for _ in range(2):
        (note,) = work(home)
        assert "has rank 32, and the engines take 1 at most: start them with a higher" in note
        assert "upstreams[].max_lora_rank" in note
    assert home.state(name) == State.GATED
    with home.app.reading() as connection:
        (practice,) = read_user_practices(connection, home.app.settings)
    assert practice.plays == "script"
    assert "its rank is 32, and upstreams[].max_lora_rank is 1: start the engine" in practice.says
    upstream = home.app.settings.upstreams[0]
    for limit, sentence in ((None, "vLLM takes 16 at most unless it is started"), (64, "")):
        update = {"upstreams": (upstream.model_copy(update={"max_lora_rank": limit}),)}
        with home.app.reading() as connection:
            (practice,) = read_user_practices(
                connection, home.app.settings.model_copy(update=update)
            )
        assert sentence in practice.says
        assert ("rank" in practice.says) == bool(sentence)


def test_it_is_unloaded_with_its_base_and_plays_again_when_that_is_back(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, **SETTINGS)
    see(home)
    name = bring(home, adapters["v1"])
    work(home)
    see(home, "another", second=5)
    assert who_plays(home, "another") is None
    assert work(home) == []
    home.tick()
    assert home.loaded() == [[]]
    home.later = timedelta(days=30)
    home.tick()
    assert Path(home.row(name).path).is_dir(), "its files stay"
    see(home, "reference", second=9)
    assert home.tick().loaded == [name]
    assert home.loaded() == [[name]]
    assert who_plays(home, "reference") == name
    assert work(home) == []


def test_one_whose_files_are_damaged_leaves_the_part_to_the_script(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, **SETTINGS)
    see(home)
    name = bring(home, adapters["v1"])
    worker = UserWorker(home.app, home.fleet, user_trials_of(home.app.settings), home.clock)
    assert worker.advance(Breaks()) == [f"{name} plays the users of agent"]
    assert worker.advance(Breaks()) == []
    folder = Path(home.row(name).path)
    away = folder.parent.rename(folder.parent.with_name("away"))
    assert worker.advance(Breaks()) == [], "a folder that is not mounted is no damage"
    away.rename(folder.parent)
    weights = folder / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (note,) = worker.advance(Breaks())
    assert note.startswith(f"{name} is draining: its files are damaged: ")
    assert who_plays(home, "reference") is None
    with home.app.reading() as connection:
        (practice,) = read_user_practices(connection, home.app.settings)
    assert practice.plays == "script"


def test_one_that_was_not_measured_is_retired_with_its_base(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, **SETTINGS)
    see(home)
    name = bring(home, adapters["v1"], passed=None)
    see(home, "another", second=5)
    (note,) = work(home)
    assert note == (
        f"{name} is rejected: it plays users on reference, and agent runs on another now"
    )


def test_no_command_has_it_answer_clients(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1, **SETTINGS)
    see(home)
    name = bring(home, adapters["v1"])
    other = home.push(adapters["v2"])
    words = f"{name} plays users of agent, and answers no client"
    with pytest.raises(PromotionRefusal, match=words):
        home.publisher.promote(name, ADA, override=True)
    with pytest.raises(PromotionRefusal, match=words):
        home.publisher.set_route("agent", {name: 1.0}, ADA)
    with pytest.raises(PromotionRefusal, match=words):
        home.publisher.set_route("agent", {None: 1.0}, ADA, shadow=name)
    with pytest.raises(MergeRefusal, match=words):
        merge_adapters(home.app, home.fleet, [(name, 1.0), (other, 1.0)], ADA)
    composition = Composition({"refunds": name}, descriptions={"refunds": "helps"})
    with pytest.raises(CompositionRefusal, match=words):
        compose(home.app, home.fleet, composition, ADA)
