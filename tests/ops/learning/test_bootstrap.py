"""Intervals over seeds and tasks."""

from random import Random

import numpy as np
import pytest

from ops.learning.bootstrap import TaskRates, compute_task_rates, interval, replicates

EVEN = {"easy": 0.5, "hard": 0.5}


def outcomes(rate: float, chance: Random, tasks: int = 16) -> dict[str, list[bool]]:
    return {str(n): [chance.random() < rate for _ in range(3)] for n in range(tasks)}


def test_pass_k_is_the_chance_that_k_of_the_trials_all_pass() -> None:
    seed = {"easy": {"a": [True, True, True], "b": [True, True, False], "c": [False] * 3}}
    assert compute_task_rates([seed], 1).by_seed({"easy": 1}) == [pytest.approx((1 + 2 / 3) / 3)]
    assert compute_task_rates([seed], 2).by_seed({"easy": 1}) == [pytest.approx((1 + 1 / 3) / 3)]
    assert compute_task_rates([seed], 3).by_seed({"easy": 1}) == [pytest.approx(1 / 3)]


def test_weights_are_scaled_and_capabilities_without_weight_do_not_count() -> None:
    found = TaskRates({"easy": np.ones((2, 4)), "hard": np.zeros((2, 4)), "none": np.ones((2, 4))})
    assert found.by_seed({"easy": 87, "hard": 13}) == [pytest.approx(0.87)] * 2
    assert interval(found, {"easy": 3, "hard": 1}).value == pytest.approx(0.75)


def test_equal_values_leave_no_doubt() -> None:
    found = interval(TaskRates({"easy": np.full((5, 8), 0.5)}), {"easy": 1})
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)


def test_its_spread_is_that_of_seeds_and_of_tasks_within_seeds() -> None:
    chance = np.random.default_rng(1)
    values = chance.random((400, 50)) + chance.normal(0, 0.3, (400, 1))
    drawn = replicates(TaskRates({"easy": values}), {"easy": 1})
    within = values.var(axis=1).mean() / 50
    expected = (values.mean(axis=1).var() + within) / 400
    assert drawn.var() == pytest.approx(expected, rel=0.12)


def test_a_difference_on_the_same_tasks_is_narrower_than_its_two_parts() -> None:
    chance = Random("pairs")
    base = [{"easy": outcomes(0.5, chance)} for _ in range(4)]
    better = [
        {"easy": {task: [True, *trials[1:]] for task, trials in seed["easy"].items()}}
        for seed in base
    ]
    before, after = compute_task_rates(base, 1), compute_task_rates(better, 1)
    gain = interval(after - before, {"easy": 1})
    apart = [interval(found, {"easy": 1}) for found in (before, after)]
    assert gain.value == pytest.approx(apart[1].value - apart[0].value)
    assert gain.low > 0
    assert gain.high - gain.low < min(found.high - found.low for found in apart)


def test_most_of_its_intervals_hold_the_truth() -> None:
    held = 0
    for number in range(40):
        chance = Random(f"coverage {number}")
        seeds = []
        for _ in range(8):
            rate = min(1, max(0, chance.gauss(0.6, 0.1)))
            seeds.append({name: outcomes(rate, chance) for name in EVEN})
        found = interval(compute_task_rates(seeds, 1), EVEN)
        held += found.low <= 0.6 <= found.high
    assert held >= 32


def test_seeds_with_different_tasks_are_refused() -> None:
    chance = Random(0)
    uneven = [{"easy": outcomes(0.5, chance)}, {"easy": outcomes(0.5, chance, tasks=3)}]
    with pytest.raises(ValueError, match="same capabilities"):
        compute_task_rates(uneven, 1)
    with pytest.raises(ValueError, match="same capabilities"):
        compute_task_rates([], 1)
