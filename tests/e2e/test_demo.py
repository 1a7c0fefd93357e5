"""The demo does what it says, and does not depend on what the operator has configured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.shop.environment import Shop
from ops.demo.agent import attempts
from ops.demo.mistakes import CATEGORY, Mistake
from ops.demo.traffic import make_tasks

ROOT = Path(__file__).parents[2]


@pytest.mark.faults
def test_the_demo_survives_its_kills_and_ends_with_equal_tables(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "ops.demo", "--tasks", "300", "--home", str(home)],
        cwd=ROOT,
        env=os.environ | {"KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed after") == 3
    assert "finished after" in done.stdout
    assert "0 new, 1,200 duplicates" in done.stdout
    assert "EQUAL, row for row" in done.stdout


def test_the_same_seed_makes_the_same_rollouts_and_another_seed_others() -> None:
    def lines(seed: int) -> list[str]:
        shop = Shop()
        return [json.dumps(a.record) for a in attempts(shop, make_tasks(shop, seed, 20), 2, seed)]

    assert lines(1) == lines(1)
    assert lines(1) != lines(2)


def test_an_attempt_fails_only_by_a_mistake_and_every_mistake_is_made() -> None:
    shop = Shop()
    made = list(attempts(shop, make_tasks(shop, 3, 400), 2, 3))
    assert {attempt.mistake for attempt in made} == {None, *Mistake}
    assert all(attempt.mistake for attempt in made if not attempt.record["success"])
    assert all(attempt.record["success"] for attempt in made if attempt.mistake is None)
    # A mistake without consequences is possible, and rare.
    harmless = [attempt for attempt in made if attempt.mistake and attempt.record["success"]]
    assert len(harmless) < len(made) / 50


def test_every_mistake_has_a_category_of_its_own() -> None:
    assert set(CATEGORY) == set(Mistake)
    assert len(set(CATEGORY.values())) == len(Mistake)
