"""What each arm trains on."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.solver.reference.demonstrations import vocabulary
from daemon.solver.sampling.local import InProcess
from envs.shop.environment import Shop
from ops.learning.arms import Plan, plan_general, plan_targets, play_traffic, weigh_replay
from ops.learning.diagnosis import diagnose, generator
from ops.learning.evaluation import evaluate, generate_holdout, passive
from ops.learning.seeds import Seeds
from ops.learning.settings import SETTINGS, WEAK, Settings, WarmStartSettings, traffic
from ops.learning.targets import Target, Targets
from producers.simulation import Provenance
from tests.daemon.engine.random_model import checkpoint

SEEDS = Seeds.of(3, development=True)
TARGETS = Targets(
    targets=(
        Target(generator="shop/refund", pattern="over_cautious|*", failures=5, attempts=8),
        Target(generator="shop/all_but", pattern="wrong_item|*", failures=4, attempts=6),
    ),
    siblings={"shop/return": 3, "shop/cancel": 1},
    kept={"shop/return": 10, "shop/payment": 30, "shop/cancel": 0},
)
SETTINGS_ = Settings(
    replay=0.2, siblings=0.5, warm_start=WarmStartSettings(references=4, siblings=1.5)
)


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


def plan(shop: Shop, *, warm: bool) -> Plan:
    return plan_targets(shop, TARGETS, SETTINGS_, SEEDS, 3, 100, warm=warm)


def everything(made: Plan) -> list[str]:
    pools = [task for pool in made.pools for task in pool.all_tasks]
    return [*pools, *(made.warm_start.siblings if made.warm_start else ())]


def test_the_general_arm_trains_on_traffic(shop: Shop) -> None:
    made = plan_general(shop, traffic("main", 0.5), SEEDS, 3, 400)
    [pool] = made.pools
    kinds = Counter(generator(task).removeprefix("shop/") for task in pool.tasks)
    assert set(kinds) == set(traffic("main", 0.5))
    assert 160 < sum(kinds[kind] for kind in WEAK["main"]) < 240
    assert len(pool.tasks) == 400
    assert made.warm_start is None


def test_each_target_has_a_pool_of_fresh_tasks_of_its_generator(shop: Shop) -> None:
    made = plan(shop, warm=False)
    assert [(pool.name, pool.share) for pool in made.pools] == [
        ("over_cautious|* shop/refund", 0.4),
        ("wrong_item|* shop/all_but", 0.4),
        ("replay", 0.2),
    ]
    for pool, target in zip(made.pools, TARGETS.targets, strict=False):
        assert len(pool.tasks) == 100
        assert {generator(task) for task in pool.tasks} == {target.generator}
        assert not pool.references


def test_replay_is_half_of_siblings_and_half_of_what_passed(shop: Shop) -> None:
    weights = weigh_replay(TARGETS, SETTINGS_)
    assert weights == pytest.approx(
        {"shop/return": 0.5 * 3 / 4 + 0.5 / 4, "shop/payment": 0.5 * 3 / 4, "shop/cancel": 0.125}
    )
    [replay] = [pool for pool in plan(shop, warm=False).pools if pool.replay]
    assert set(map(generator, replay.tasks)) == set(TARGETS.kept)


def test_a_warm_start_adds_references_and_changes_nothing_else(shop: Shop) -> None:
    cold, warm = plan(shop, warm=False), plan(shop, warm=True)
    assert [pool.tasks for pool in warm.pools] == [pool.tasks for pool in cold.pools]
    for pool, target in zip(warm.pools, TARGETS.targets, strict=False):
        assert list(map(generator, pool.references)) == [target.generator] * 4
    assert warm.pools[-1].references == ()
    assert warm.warm_start is not None
    assert len(warm.warm_start.siblings) == 12
    assert set(map(generator, warm.warm_start.siblings)) <= set(TARGETS.siblings)


def test_no_task_is_used_twice_or_held_out(shop: Shop) -> None:
    tasks = everything(plan(shop, warm=True))
    tasks += plan_general(shop, traffic("main", 0.13), SEEDS, 3, 100).pools[0].tasks
    diagnosed = shop.mixture(traffic("main", 0.13), seed=3, first_task=SEEDS.traffic)
    tasks += [task.id for task in islice(diagnosed, 256)]
    seeds = {int(task.rpartition("/")[2]) for task in tasks}
    kept_back = {task.id for task in generate_holdout(shop, shop.capabilities, SEEDS.holdout, 64)}
    assert not seeds & {int(task.rpartition("/")[2]) for task in kept_back}
    trained = everything(plan(shop, warm=True))
    assert len(set(trained)) == len(trained)


def test_the_largest_budget_has_a_task_for_every_group(shop: Shop) -> None:
    groups = max(SETTINGS.budgets) // SETTINGS.size
    made = plan_targets(shop, TARGETS, SETTINGS, SEEDS, 3, groups, warm=True)
    assert all(len(pool.tasks) == groups for pool in made.pools)
    with pytest.raises(ValueError, match="lower the budget"):
        plan_targets(shop, TARGETS, SETTINGS, SEEDS, 3, 1251, warm=False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return checkpoint(
        tmp_path_factory.mktemp("model"),
        vocabulary(Shop()),
        max_position_embeddings=512,
        initializer_range=0.05,
    )


@pytest.fixture(scope="module")
def policy(directory: Path) -> Policy:
    return Policy.load(directory, "random")


@pytest.fixture
def player(policy: Policy, directory: Path) -> InProcess:
    return InProcess(Engine(policy, 8), Chat(directory), max_tokens=16)


def test_rollouts_of_a_policy_are_recorded_and_diagnosed(
    shop: Shop, player: InProcess, policy: Policy, tmp_path: Path
) -> None:
    mix = traffic("main", 0.13)
    attempts = play_traffic(player, shop, policy, mix, SEEDS, 3, 12)
    assert len({attempt.task.id for attempt in attempts}) == 12
    provenance = Provenance(alias="agent", base="random", policy="random", purpose="live")
    found = diagnose(tmp_path, shop, attempts, provenance)
    assert (found.rollouts, len(found.passed)) == (12, 0)
    assert len(found.failures) + found.unexplained == 12


def test_a_policy_is_evaluated_on_every_trial_of_every_task_and_the_same_again(
    shop: Shop, player: InProcess, policy: Policy
) -> None:
    tasks = generate_holdout(shop, ["cancel", "refund"], SEEDS.holdout, 3)
    found = evaluate(player, shop, policy, tasks, 2, 3)
    assert {name: list(rows) for name, rows in found.items()} == {
        kind: [f"shop/{kind}/{SEEDS.holdout + n}" for n in range(3)] for kind in found
    }
    assert all(len(trials) == 2 for rows in found.values() for trials in rows.values())
    assert evaluate(player, shop, policy, tasks, 2, 3) == found


def test_doing_nothing_earns_nothing(shop: Shop) -> None:
    found = passive(shop, generate_holdout(shop, shop.capabilities, SEEDS.holdout, 2), 3)
    assert set(found) == set(shop.capabilities)
    assert not any(any(trials) for rows in found.values() for trials in rows.values())
