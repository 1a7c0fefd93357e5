"""Whole runs of the shipped policy, as short as they can be."""

from pathlib import Path

import pytest

from daemon.engine.reference.weights import CHECKPOINT
from envs.shop.environment import Shop
from ops.learning import results
from ops.learning.evaluation import generate_holdout
from ops.learning.results import Key, Run
from ops.learning.run import run
from ops.learning.seeds import Seeds
from ops.learning.settings import Arm, Settings, WarmStartSettings, traffic

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

BUDGET = 320
SETTINGS = Settings(
    checkpoint=CHECKPOINT,
    diagnosis=96,
    budgets=(240, BUDGET),
    groups=4,
    size=4,
    warm_start=WarmStartSettings(references=4),
    tasks=2,
    trials=2,
)


def made(folder: Path, arm: Arm, settings: Settings = SETTINGS) -> Run:
    key = Key(arm=arm, capabilities="main", share=0.5, seed=7, development=True)
    return run(key, settings, BUDGET, folder)


@pytest.mark.parametrize("arm", ["a", "b", "d"])
def test_an_arm_spends_its_budget_and_is_evaluated_within_it(tmp_path: Path, arm: Arm) -> None:
    found = made(tmp_path, arm)
    assert BUDGET - 16 < found.spent.total <= BUDGET
    assert found.spent.diagnosis == (0 if arm == "a" else 96)
    assert (found.spent.references > 0) == (arm == "b")
    assert [e.budget for e in found.evaluations] == [240, BUDGET]
    assert all(e.budget - 16 < e.spent <= e.budget for e in found.evaluations)
    assert sum(sum(step.groups.values()) for step in found.steps) * 4 == found.spent.training
    assert found.steps[-1].spent == found.spent.total
    results.write(tmp_path, found)
    assert results.read(tmp_path) == [found]


def test_a_warm_start_alone_leaves_the_rest_of_the_budget(tmp_path: Path) -> None:
    found = made(tmp_path, "c")
    assert found.targets is not None
    assert found.spent.references == 8 * len(found.targets.targets)
    assert found.spent.total == 96 + found.spent.references
    assert [e.spent for e in found.evaluations] == [found.spent.total]
    assert "left unused" in found.ended


def test_a_budget_within_the_warm_start_has_the_untrained_policy(tmp_path: Path) -> None:
    found = made(tmp_path, "b", SETTINGS.model_copy(update={"budgets": (100, BUDGET)}))
    assert [e.budget for e in found.evaluations] == [100, BUDGET]
    assert found.evaluations[0].spent == 96 < found.spent.total


@pytest.mark.long
def test_the_same_run_is_the_same_again_and_trains_on_no_held_out_task(tmp_path: Path) -> None:
    one, two = made(tmp_path / "one", "d"), made(tmp_path / "two", "d")
    assert one.model_copy(update={"seconds": two.seconds}) == two
    seeds = Seeds.of(7, development=True)
    kept_back = {t.id for t in generate_holdout(Shop(), traffic("main", 0.5), seeds.holdout, 2)}
    assert {t for e in one.evaluations for rows in e.outcomes.values() for t in rows} == kept_back
    journal = (tmp_path / "one" / one.key.name / "rollouts.jsonl").read_text()
    assert one.targets is not None
    assert all(target.generator in journal for target in one.targets.targets)
    assert not any(f'"{task}"' in journal for task in kept_back)


def test_a_base_run_says_what_doing_nothing_earns(tmp_path: Path) -> None:
    found = made(tmp_path, "base")
    assert found.spent.total == 0
    assert set(found.passive) == set(found.evaluations[0].outcomes)
    assert not any(any(v) for rows in found.passive.values() for v in rows.values())
    assert any(any(v) for rows in found.evaluations[0].outcomes.values() for v in rows.values())
