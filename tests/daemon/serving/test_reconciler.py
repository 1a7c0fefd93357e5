"""Replicas come to hold what they should, and let go what nobody uses, whatever happened."""

import gc
import shutil
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from consumers import database
from consumers.tables import METADATA
from daemon.adapters.directory import WEIGHTS
from daemon.core.app import App
from daemon.engine.policy import Policy
from daemon.serving.desired_state import PROBATION
from daemon.serving.publisher import Publisher
from daemon.serving.replica import Replica
from events.files import UNFINISHED
from events.serving import AdapterStaged
from ops.random_adapters import Adapters
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home

HOUR = timedelta(hours=1)


def three_served(home: Home, adapters: Adapters) -> tuple[str, str, str]:
    """Three that answered one after the other: the first is nobody's way back."""
    names = [home.serve(adapters[name]) for name in ("v1", "v2", "v3")]
    return names[0], names[1], names[2]


def test_where_everything_is_as_it_should_be_nothing_is_done(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    home.serve(adapters["v1"])
    before = home.decided()
    assert not any(done_by(home))
    assert home.decided() == before


def done_by(home: Home) -> list[list[str]]:
    """Everything that a tick did."""
    done = home.tick()
    return [done.loaded, done.unloaded, done.collected, done.troubles]


def test_a_replica_that_was_restarted_gets_its_adapters_back(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    first = home.serve(adapters["v1"])
    second = home.push(adapters["v2"])
    home.publisher.promote(second, ADA, share=0.5, override=True)
    home.engines[0].restart()
    before = home.decided()
    assert sorted(home.tick().loaded) == sorted([first, second])
    assert home.loaded() == [sorted([first, second])] * 2, "and nothing under another name"
    assert home.decided() == before, "it had been proven there, and is again"
    assert not any(done_by(home))


def test_while_a_replica_is_down_the_others_are_looked_after(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    name = home.serve(adapters["v1"])
    home.engines[0].stop()
    home.engines[1].restart()
    done = home.tick()
    assert done.loaded == [name]
    assert len(done.troubles) == 1
    assert "cannot be reached" in done.troubles[0]
    assert not any(done_by(home)), "what is known is not said again"
    home.engines[0].start()
    assert home.tick().loaded == [name]
    assert home.loaded() == [[name], [name]]


def joined(make_home: MakeHome, adapters: Adapters) -> tuple[str, Home]:
    """An adapter that answered on another replica, and its home with two that do not know it."""
    home = make_home(1)
    name = home.serve(adapters["v1"])
    home.close()
    return name, make_home(2, folder=home.app.settings.home.name)


def test_a_replica_that_joins_gets_everything_and_an_event_says_so(
    make_home: MakeHome, adapters: Adapters
) -> None:
    name, both = joined(make_home, adapters)
    assert both.tick().loaded == [name, name]
    assert both.loaded() == [[name], [name]]
    last = both.decided()[-1].data
    assert isinstance(last, AdapterStaged)
    assert {engine.url for engine in both.engines} <= set(both.row(name).replicas)
    assert both.state(name) == "promoted"


def test_a_rollback_while_a_replica_gets_an_adapter_disturbs_nobody(
    make_home: MakeHome, adapters: Adapters
) -> None:
    name, both = joined(make_home, adapters)

    def take_back() -> None:
        """Begun once the first of both tries the adapter: what was seen before says it serves."""
        with Replica(both.engines[0].url) as replica, App(both.app.settings) as app:
            while not replica.list_models().adapters:
                time.sleep(0.001)
            Publisher(app, both.fleet).rollback("agent", ADA)

    thread = threading.Thread(target=take_back)
    thread.start()
    both.tick()
    thread.join()
    assert (both.state(name), both.shares()) == ("rolled_back", {None: 1.0})
    both.tick()
    assert both.loaded() == [[], []]


def test_a_restarted_replica_does_not_get_an_adapter_whose_files_are_damaged(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    damaged = home.serve(adapters["v1"])
    whole = home.push(adapters["v2"])
    home.publisher.stage(whole, ADA)
    weights = Path(home.row(damaged).path) / WEIGHTS
    good = weights.read_bytes()
    weights.write_bytes(good[:-100])
    home.engines[0].restart()
    done = home.tick()
    assert done.loaded == [whole]
    assert WEIGHTS in done.troubles[0]
    assert home.loaded() == [[whole], sorted([damaged, whole])]
    weights.write_bytes(good)
    home.later = HOUR
    assert home.tick().loaded == [damaged]


def test_of_steps_that_nobody_wants_any_more_no_failure_is_kept(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    damaged = home.serve(adapters["v1"])
    weights = Path(home.row(damaged).path) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])
    home.engines[0].restart()
    assert WEIGHTS in home.tick().troubles[0]
    assert len(home.reconciler.backoff) == 1
    home.engines[0].stop()
    home.tick()
    assert len(home.reconciler.backoff) == 1, "it is not known what that replica lacks"
    home.engines[0].start()
    home.publisher.rollback("agent", ADA)
    home.tick()
    assert len(home.reconciler.backoff) == 0


def test_a_replica_that_came_back_with_another_base_is_not_admitted(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """Its name is the same; what it computes is not."""
    home = make_home(2)
    name = home.serve(adapters["v1"])
    home.engines[0].stop()
    other = Policy.load(other_checkpoint(adapters), "reference")
    home.engines[0].policy = other
    home.engines[0].start()
    done = home.tick()
    assert done.loaded == []
    assert "serve the base it was trained on" in done.troubles[0]
    assert home.loaded() == [[], [name]]


def other_checkpoint(adapters: Adapters) -> Path:
    """The checkpoint of another base, with everything that an engine needs."""
    folder = adapters.folder / "whole-base"
    if not folder.exists():
        shutil.copytree(adapters.base, folder)
        for file in (adapters.folder / "base").iterdir():
            shutil.copy(file, folder / file.name)
    return folder


def test_what_a_killed_command_left_loaded_is_unloaded(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    name = home.push(adapters["v1"])
    folder = Path(home.row(name).path)
    with Replica(home.engines[0].url) as replica:
        replica.load(name, folder)
        replica.load(name + PROBATION, folder)
    assert sorted(home.tick().unloaded) == [name, name + PROBATION]
    assert home.loaded() == [[], []]


def test_what_others_loaded_is_left_alone(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1)
    with Replica(home.engines[0].url) as replica:
        replica.load("theirs", adapters["v1"])
    name = home.push(adapters["v2"])
    home.publisher.stage(name, ADA)
    home.tick()
    assert home.loaded() == [sorted(["theirs", name])]


def test_an_adapter_stays_until_no_live_gateway_holds_it(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    home.gateway("idle")
    names = three_served(home, adapters)
    home.gateway("busy", **{names[0]: 1})
    assert not any(done_by(home))
    assert home.loaded() == [sorted(names)]
    home.gateway("busy")
    assert home.tick().unloaded == [names[0]]
    assert home.loaded() == [sorted(names[1:])]
    assert home.state(names[0]) == "unloaded"


def test_an_adapter_stays_until_every_live_gateway_has_followed_its_route(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    names = three_served(home, adapters)
    left = home.row(names[0]).offset
    home.gateway("behind", position=left)
    assert not any(done_by(home))
    home.gateway("behind", position=left + 1)
    assert home.tick().unloaded == [names[0]]


def test_a_gateway_that_fell_silent_is_waited_for_no_longer(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    names = three_served(home, adapters)
    home.gateway("stopped", position=0, **{names[0]: 3})
    assert not any(done_by(home))
    table = METADATA.tables["gateways"]
    with database.write_transaction(home.app.engine) as connection:
        connection.execute(update(table).values(seen=table.c.seen - 31))
    assert home.tick().unloaded == [names[0]]


def test_a_session_that_never_ends_holds_nothing_for_ever(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    names = three_served(home, adapters)
    home.gateway("g", **{names[0]: 1})
    home.later = 3 * HOUR
    assert not any(done_by(home))
    home.later = 4 * HOUR + timedelta(minutes=1)
    assert home.tick().unloaded == [names[0]]


def test_files_go_when_the_grace_has_passed_and_no_rollback_wants_them(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, serving={"kept_versions": 1})
    names = three_served(home, adapters)
    folder = Path(home.row(names[0]).path)
    home.tick()
    home.later = HOUR - timedelta(minutes=1)
    assert not any(done_by(home))
    assert folder.exists()
    home.later = HOUR + timedelta(minutes=1)
    assert home.tick().collected == [names[0]]
    assert home.state(names[0]) == "collected"
    kept = Path(home.row(names[1]).path)
    assert sorted(path.name for path in folder.parent.iterdir() if path.is_dir()) == sorted(
        Path(home.row(name).path).name for name in names[1:]
    )
    assert kept.exists(), "it is the way back"


def test_of_adapters_whose_files_went_nothing_is_kept(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """Whoever works for months sees a new one with every cycle."""
    home = make_home(1, serving={"kept_versions": 0})
    names = three_served(home, adapters)
    home.tick()
    known = weakref.ref(home.fleet.read_expectation(home.row(names[0])))
    home.later = 2 * HOUR
    assert names[0] in home.tick().collected
    home.serve(adapters["strong"])
    gc.collect()
    assert known() is None


def test_files_stay_while_a_replica_gives_no_answer(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2, serving={"kept_versions": 0})
    names = three_served(home, adapters)
    home.tick()
    home.later = 2 * HOUR
    home.engines[1].stop()
    assert home.tick().collected == []
    assert Path(home.row(names[0]).path).exists()
    home.engines[1].start()
    home.tick()
    assert home.state(names[0]) == "collected"


def test_a_deletion_that_was_cut_short_is_finished(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1, serving={"kept_versions": 0})
    names = three_served(home, adapters)
    home.tick()
    folder = Path(home.row(names[0]).path)
    folder.rename(folder.with_name(UNFINISHED + folder.name))
    home.later = 2 * HOUR
    assert home.tick().collected == [names[0]]
    assert not list(folder.parent.glob(f"*{names[0]}*"))


def test_without_a_known_engine_nothing_is_touched(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1, serving={"kept_versions": 0})
    names = three_served(home, adapters)
    folder = home.app.settings.home
    home.close()
    alone = make_home(0, folder=folder.name)
    alone.later = 9 * HOUR
    before = alone.decided()
    assert not any(done_by(alone))
    assert alone.decided() == before
    assert all(Path(alone.row(name).path).exists() for name in names)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_rolled_back_adapter_is_unloaded_when_nobody_holds_it(
    share: float, make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    first = home.serve(adapters["v1"])
    second = home.push(adapters["v2"])
    home.publisher.promote(second, ADA, share=share, override=True)
    home.publisher.rollback("agent", ADA)
    assert home.state(second) == "rolled_back"
    assert home.tick().unloaded == [second]
    assert home.loaded() == [[first]]
