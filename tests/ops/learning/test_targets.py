"""From recorded failures to generators of tasks."""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from envs.environment import UnknownTask
from envs.evaluation import Attempt
from envs.shop.environment import Shop
from ops.learning.diagnosis import Diagnosis, Failure, diagnose, generator
from ops.learning.seeds import PART, REPORTED, TUNED, Seeds
from ops.learning.targets import NothingToTarget, Rule, Targets, choose, fresh
from producers.simulation import Provenance
from tests.ops.learning.recorded import STRONG, WEAK, attempts, traffic

PROVENANCE = Provenance(alias="agent", base="scripted", policy="scripted", purpose="live")
RULE = Rule(neighbours=3)


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


@pytest.fixture(scope="module")
def played(shop: Shop) -> list[Attempt]:
    return attempts(shop, traffic(shop))


@pytest.fixture(scope="module")
def diagnosis(
    shop: Shop, played: list[Attempt], tmp_path_factory: pytest.TempPathFactory
) -> Diagnosis:
    return diagnose(tmp_path_factory.mktemp("home"), shop, played, PROVENANCE)


@pytest.fixture(scope="module")
def targets(shop: Shop, diagnosis: Diagnosis) -> Targets:
    return choose(diagnosis, shop, RULE)


def test_a_round_over_recorded_rollouts_finds_who_failed(diagnosis: Diagnosis) -> None:
    assert diagnosis.rollouts == sum(WEAK.values()) + sum(STRONG.values())
    assert diagnosis.failure_counts == {
        "shop/two_writes": 8,
        "shop/fallback": 6,
        "shop/exchange": 1,
    }
    assert diagnosis.attempts["shop/two_writes"] == 12
    assert diagnosis.unexplained == 0
    assert {failure.pattern for failure in diagnosis.failures} == set(diagnosis.patterns)


def test_generators_that_fail_often_are_targets_and_one_slip_makes_none(targets: Targets) -> None:
    assert {target.generator: target.failures for target in targets.targets} == {
        "shop/two_writes": 8,
        "shop/fallback": 6,
    }
    assert set(targets.kept) == {f"shop/{kind}" for kind in STRONG}
    assert targets.kept["shop/exchange"] == 19


def test_siblings_are_what_is_asked_for_in_nearly_the_words_of_failed_tasks(
    targets: Targets,
) -> None:
    by_share = sorted(targets.siblings, key=lambda name: -targets.siblings[name])
    assert sum(targets.siblings.values()) == 6 * (8 + 6)
    assert set(by_share[:3]) == {"shop/payment", "shop/address", "shop/exchange"}
    assert not set(targets.siblings) & {target.generator for target in targets.targets}


def test_permuting_all_capability_labels_changes_no_training_task(
    shop: Shop, played: list[Attempt], targets: Targets, tmp_path: Path
) -> None:
    labels = sorted({attempt.task.capability for attempt in played})
    shuffled = labels.copy()
    Random(1).shuffle(shuffled)
    renamed = dict(zip(labels, shuffled, strict=True))
    assert renamed != dict(zip(labels, labels, strict=True))
    relabelled = attempts(
        shop,
        [
            attempt.task.model_copy(update={"capability": renamed[attempt.task.capability]})
            for attempt in played
        ],
    )
    found = choose(diagnose(tmp_path, shop, relabelled, PROVENANCE), shop, RULE)
    assert found == targets
    weights = {target.generator: target.failures for target in targets.targets}
    again = {target.generator: target.failures for target in found.targets}
    assert fresh(shop, weights, 7, 40, seed=3) == fresh(shop, again, 7, 40, seed=3)


def test_the_same_rollouts_in_another_order_give_the_same_targets(
    shop: Shop, played: list[Attempt], targets: Targets, tmp_path: Path
) -> None:
    backwards = diagnose(tmp_path, shop, played[::-1], PROVENANCE)
    assert choose(backwards, shop, RULE) == targets


def test_targets_come_in_the_order_of_their_patterns() -> None:
    diagnosis = Diagnosis(
        rollouts=12,
        patterns=("first", "second"),
        failures=(
            *(Failure(pattern="second", task=f"shop/cancel/{n}") for n in range(5)),
            Failure(pattern="first", task="shop/cancel/5"),
            *(Failure(pattern="first", task=f"shop/return/{n}") for n in range(3)),
        ),
        unexplained=0,
        passed=("shop/return/9", "shop/address/1", "shop/address/2"),
    )
    found = choose(diagnosis, Shop(), Rule()).targets
    assert [(one.generator, one.pattern) for one in found] == [
        ("shop/return", "first"),
        ("shop/cancel", "second"),
    ]
    assert len(choose(diagnosis, Shop(), Rule(most=1)).targets) == 1
    assert [one.generator for one in choose(diagnosis, Shop(), Rule(failed=0.8)).targets] == [
        "shop/cancel"
    ]


def test_traffic_without_failures_has_no_target(shop: Shop, tmp_path: Path) -> None:
    tasks = [shop.generate("payment", seed) for seed in range(4)]
    found = diagnose(tmp_path, shop, attempts(shop, tasks), PROVENANCE)
    assert found.patterns == ()
    with pytest.raises(NothingToTarget, match="of 4 recorded rollouts"):
        choose(found, shop, RULE)


def test_a_home_with_other_rollouts_is_refused(shop: Shop, tmp_path: Path) -> None:
    some = attempts(shop, [shop.generate("payment", 1)])
    diagnose(tmp_path, shop, some, PROVENANCE)
    more = attempts(shop, [shop.generate("payment", seed) for seed in (2, 3)])
    with pytest.raises(ValueError, match="not empty"):
        diagnose(tmp_path, shop, [*some, *more], PROVENANCE)


def test_fresh_tasks_have_seeds_of_their_own_in_the_asked_proportions(shop: Shop) -> None:
    tasks = fresh(shop, {"shop/cancel": 3, "shop/return": 1}, 1_000, 200, seed=1)
    assert [int(task.rpartition("/")[2]) for task in tasks] == list(range(1_000, 1_200))
    assert 120 < sum(generator(task) == "shop/cancel" for task in tasks) < 180
    with pytest.raises(UnknownTask, match="shop/nothing"):
        fresh(shop, {"shop/nothing": 1}, 1_000, 1, seed=1)


def test_no_two_runs_and_no_two_uses_share_a_seed() -> None:
    assert not set(REPORTED) & set(TUNED)
    blocks = [Seeds.of(run, development=False) for run in range(16)]
    blocks += [Seeds.of(run, development=True) for run in range(8)]
    firsts = sorted(
        first
        for seeds in blocks
        for first in (
            seeds.traffic,
            seeds.training,
            seeds.replay,
            seeds.references,
            seeds.siblings,
            seeds.holdout,
        )
    )
    assert all(b - a >= PART for a, b in pairwise(firsts))
    with pytest.raises(ValueError, match="below 16"):
        Seeds.of(16, development=False)
