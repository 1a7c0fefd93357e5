"""The demo's home: what is frozen, what follows from the machine, and what is left alone."""

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from consumers.reads.scheduling import Scheduling
from daemon.config.settings import Settings
from daemon.cycle.scheduler import Due, NotDue, decide
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from ops.demo import crowd, general, heldout
from ops.demo.mixture import MIX
from ops.demo.place import _HERE, SEEDS, SIZES, PlaceConflict, check_request, make

FROZEN = "cd5b2dcc583a04ca77031793751c67b4f86bcb36498f5497b490150d8f68db02"


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """What `Place.settings` puts into the environment is taken out again."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_the_mix_is_the_frozen_one() -> None:
    """Whoever changes it changes every figure that was reported."""
    assert hashlib.sha256((_HERE / "mix.json").read_bytes()).hexdigest() == FROZEN
    assert sum(MIX.values()) == pytest.approx(1)
    assert set(MIX) <= set(Shop().capabilities)
    assert sum(MIX[kind] for kind in PLAIN) > 0.8


def test_a_home_is_configured_by_the_mix_and_by_nothing_of_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_GATEWAY__PORT", "1")
    monkeypatch.setenv("KINTSUGI_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    place = make(tmp_path / "home", SIZES["whole"])
    settings = place.settings()
    assert (settings.home, settings.kafka_bootstrap_servers) == (place.home, "")
    (agent,) = settings.agents
    assert agent.traffic == MIX
    assert settings.training.rollouts == SIZES["whole"].rollouts
    assert settings.gateway.port > 1024
    assert settings.gateway.port != settings.engine.port
    assert settings.canary.shares == (0.5,)


def test_a_home_that_is_there_stays_as_it_is_and_another_folder_is_not_touched(
    tmp_path: Path,
) -> None:
    made = make(tmp_path / "home", SIZES["small"])
    before = made.config.read_text()
    (made.home / "customers").write_text("17")
    again = make(tmp_path / "home", SIZES["whole"])
    assert (again.config.read_text(), again.size) == (before, SIZES["small"])
    anew = make(tmp_path / "home", SIZES["whole"], fresh=True)
    assert not (anew.home / "customers").exists()
    assert anew.config.read_text() != before

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    for fresh in (False, True):
        with pytest.raises(PlaceConflict, match="home of a demo"):
            make(tmp_path / "mine", SIZES["small"], fresh=fresh)
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


def test_a_home_whose_removal_was_cut_short_is_removed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    make(home, SIZES["whole"])
    (home / "adapters").mkdir()

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt(path)

    with monkeypatch.context() as patch:
        patch.setattr("ops.demo.place.shutil.rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make(home, SIZES["whole"], fresh=True)
    with pytest.raises(PlaceConflict, match="is not empty and no home of a demo"):
        make(home, SIZES["whole"])
    assert make(home, SIZES["small"], fresh=True).size == SIZES["small"]
    assert not (home / "adapters").exists()


def test_a_home_keeps_its_mixture_and_number_of_cycles(tmp_path: Path) -> None:
    mix = {"question": 0.25, "cancel": 0.75}
    size = replace(SIZES["least"], cycles=3)
    place = make(tmp_path / "home", size, mix=mix)
    assert (list(place.mix.items()), place.size.cycles) == (list(mix.items()), 3)
    assert place.settings().agents[0].traffic == mix
    again = make(tmp_path / "home", SIZES["least"])
    assert (again.mix, again.size) == (mix, size)
    check_request(again, None, None, 5)
    check_request(again, mix, 3, 0)
    with pytest.raises(PlaceConflict, match=r"question = 0.25.*--fresh"):
        check_request(again, MIX, 3, 0)
    with pytest.raises(PlaceConflict, match=r"--cycles 3, not 8; .*--fresh"):
        check_request(again, mix, 8, 0)
    with pytest.raises(PlaceConflict, match=r"--seed 0, not 22; .*--fresh"):
        check_request(again, mix, 3, 22)


def test_a_home_of_an_older_demo_has_the_mixture_of_the_demo_and_one_cycle(tmp_path: Path) -> None:
    home = make(tmp_path / "home", SIZES["least"]).home
    (home / "mix.json").unlink()
    size = json.loads((home / "size.json").read_text())
    del size["cycles"]
    (home / "size.json").write_text(json.dumps(size))
    place = make(home, SIZES["whole"])
    check_request(place, MIX, 1, 0)
    assert (place.mix, place.size) == (MIX, SIZES["least"])


def test_a_home_whose_making_was_cut_short_is_made_again(tmp_path: Path) -> None:
    home = make(tmp_path / "home", SIZES["least"]).home
    (home / "kintsugi.toml").rename(home / "tmp-kintsugi.toml")
    (home / "mix.json").write_text('{"cancel": ')
    place = make(home, SIZES["small"])
    assert (place.mix, place.size) == (MIX, SIZES["small"])
    assert place.settings().agents[0].traffic == MIX


def test_one_cycle_has_the_daemons_own_pace_and_several_have_one_that_goes_on(
    tmp_path: Path,
) -> None:
    first = make(tmp_path / "one", SIZES["least"]).settings()
    daemon = Settings()
    assert first.scheduler.cooldown_seconds == daemon.scheduler.cooldown_seconds
    assert first.scheduler.backoff == daemon.scheduler.backoff
    assert first.canary.max_age_seconds == daemon.canary.max_age_seconds
    several = make(tmp_path / "several", replace(SIZES["least"], cycles=2)).settings()
    assert several.scheduler.backoff == 1
    assert several.scheduler.cooldown_seconds <= 20
    assert several.canary.max_age_seconds <= 1800


def test_the_scheduler_goes_on_after_cycles_that_changed_nothing(tmp_path: Path) -> None:
    """By itself: after any number of them, the same customers make the next cycle due."""
    size = replace(SIZES["whole"], cycles=8)
    settings = make(tmp_path / "home", size).settings().scheduler
    now = datetime(2026, 1, 1, tzinfo=UTC)
    facts = Scheduling(
        alias="agent", base="reference", position={}, number=8, is_open=False,
        rollouts=size.min_rollouts, judged=size.min_rollouts, failed=size.min_failures,
        priority=3.0, first_seen=now - timedelta(hours=1), last_started=now - timedelta(minutes=9),
        last_ended=now - timedelta(seconds=21), fruitless=7, job_seconds=3600.0,
    )  # fmt: skip
    assert isinstance(decide(facts, settings, now), Due)
    early = replace(facts, last_ended=now - timedelta(seconds=5))
    assert isinstance(decide(early, settings, now), NotDue), "the last end is seen before"


def test_customers_training_and_held_out_tasks_never_meet() -> None:
    """Beside those that the Proposer (from 2**28) and the gate (from 2**32) draw."""
    whole, seeds = SIZES["whole"], SEEDS
    customers = range(crowd.FIRST_TASK, crowd.FIRST_TASK + seeds * crowd.PER_SEED)
    held_out = range(heldout.FIRST_TASK, heldout.FIRST_TASK + seeds * heldout.PER_SEED)
    assert whole.held_out <= heldout.PER_SEED
    compared = range(general.FIRST_TASK, general.FIRST_TASK + whole.rollouts)
    bounds = sorted((one.start, one.stop) for one in (customers, held_out, compared))
    assert all(end <= start for (_, end), (start, _) in pairwise(bounds))
    assert bounds[-1][1] <= 1 << 28


def test_customers_come_each_once_whoever_was_killed(tmp_path: Path) -> None:
    (tmp_path / crowd.PACE).write_text("600000")

    async def come(number: int) -> list[str]:
        queue = crowd.Queue(Shop(), tmp_path)
        return [(await queue.next()).id for _ in range(number)]

    first, second = asyncio.run(come(5)), asyncio.run(come(4))
    assert asyncio.run(come(1)) != second[-1:]
    assert len({*first, *second}) == 9
    (tmp_path / "customers").unlink()
    assert asyncio.run(come(9)) == first + second
