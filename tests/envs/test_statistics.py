"""pass^k, Repair@n and their intervals."""

from itertools import combinations
from math import comb
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.statistics import mean, most_trials, pass_hat, repair_at

VERDICTS = st.lists(st.booleans(), min_size=4, max_size=7)
SUITES = st.dictionaries(st.text(min_size=1, max_size=3), VERDICTS, min_size=1, max_size=6)


def shares(verdicts: list[bool], k: int) -> list[tuple[bool, bool]]:
    """Of every choice of k trials: whether all succeed, and whether one does."""
    return [(all(chosen), any(chosen)) for chosen in combinations(verdicts, k)]


@settings(max_examples=30)
@given(SUITES, st.integers(1, 4))
def test_both_estimators_are_the_mean_over_every_choice_of_trials(
    suite: dict[str, list[bool]], k: int
) -> None:
    every = {task: shares(verdicts, k) for task, verdicts in suite.items()}
    all_pass = [sum(a for a, _ in found) / len(found) for found in every.values()]
    one_passes = [sum(b for _, b in found) / len(found) for found in every.values()]
    assert pass_hat(suite, k, resamples=40).value == pytest.approx(sum(all_pass) / len(suite))
    assert repair_at(suite, k, resamples=40).value == pytest.approx(sum(one_passes) / len(suite))


@given(SUITES)
def test_an_interval_lies_between_none_and_all(suite: dict[str, list[bool]]) -> None:
    found = pass_hat(suite, 1, resamples=100)
    assert 0 <= found.low <= found.high <= 1


def test_unjudged_trials_do_not_count() -> None:
    outcomes = {"a": [True, None, True], "b": [False, False, None]}
    assert pass_hat(outcomes, 2).value == 0.5
    assert most_trials(outcomes) == 2


def test_a_task_with_too_few_judged_trials_is_named() -> None:
    with pytest.raises(ValueError, match="task b has 1 judged trials, fewer than the 2"):
        pass_hat({"a": [True, True], "b": [True, None]}, 2)


def test_nothing_to_estimate_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to estimate"):
        pass_hat({}, 1)
    assert most_trials({}) == 0


def test_no_trials_at_all_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="0 trials cannot be asked for"):
        pass_hat({"a": [True]}, 0)


def tail(tasks: int, at_least: int, rate: float) -> float:
    """The chance of so many successes of so many tasks, or more."""
    return sum(
        comb(tasks, c) * rate**c * (1 - rate) ** (tasks - c) for c in range(at_least, tasks + 1)
    )


@pytest.mark.parametrize(("passed", "tasks"), [(16, 16), (9, 20), (3, 50)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_with_one_trial_per_task_the_bounds_are_clopper_and_pearsons(
    passed: int, tasks: int, level: float
) -> None:
    """At the lower bound, so many successes or more have just the chance that is left to them."""
    found = mean([1.0] * passed + [0.0] * (tasks - passed), resamples=20_000, level=level)
    assert tail(tasks, passed, found.low) == pytest.approx((1 - level) / 2, rel=0.1)
    if passed < tasks:
        at_most = 1 - tail(tasks, passed + 1, found.high)
        assert at_most == pytest.approx((1 - level) / 2, rel=0.1)
    else:
        assert found.high == 1.0


def test_a_thousand_tasks_are_as_sure_as_the_normal_distribution_says() -> None:
    found = mean([0.0, 0.5, 1.0, 1.0] * 250)
    deviation = (0.171875 / 1000) ** 0.5  # the values' own variance, over the tasks
    assert found.low == pytest.approx(0.625 - 1.96 * deviation, abs=0.002)
    assert found.high == pytest.approx(0.625 + 1.96 * deviation, abs=0.002)


def test_more_trials_of_the_same_tasks_do_not_narrow_the_interval() -> None:
    """Ten copies of each trial are no more tasks."""
    one = {str(task): [task % 2 == 0] for task in range(40)}
    ten = {task: verdicts * 10 for task, verdicts in one.items()}
    assert pass_hat(one, 1) == pass_hat(ten, 1)


def test_the_same_seed_gives_the_same_interval_and_the_order_of_verdicts_means_nothing() -> None:
    chance = Random(5)
    suite = {str(task): [chance.random() < 0.6 for _ in range(4)] for task in range(30)}
    turned = {task: verdicts[::-1] for task, verdicts in suite.items()}
    assert pass_hat(suite, 2, seed=3) == pass_hat(turned, 2, seed=3)
    assert pass_hat(suite, 2, seed=3) != pass_hat(suite, 2, seed=4)


@pytest.mark.parametrize(("tasks", "trials"), [(60, 4), (16, 1)])
@pytest.mark.parametrize(("a", "b"), [(0.6, 0.6), (2, 0.1)])
def test_the_interval_holds_the_truth_at_least_as_often_as_it_says(
    tasks: int, trials: int, a: float, b: float
) -> None:
    """Tasks of their own difficulty, some of them nearly all easy: 95 % nominal, 200 suites.

    Of 200 suites at 95 %, fewer than 182 have a chance of 1 in 170.
    """
    chance, covered = Random(f"{tasks} {trials} {a}"), 0
    for _ in range(200):
        levels = [chance.betavariate(a, b) for _ in range(tasks)]
        suite = {
            str(task): [chance.random() < level for _ in range(trials)]
            for task, level in enumerate(levels)
        }
        found = pass_hat(suite, 1, resamples=400)
        covered += found.low <= a / (a + b) <= found.high
    assert covered >= 182


def test_a_perfect_or_hopeless_score_of_few_tasks_is_no_certainty() -> None:
    perfect, hopeless = mean([1.0] * 16), mean([0.0] * 16)
    assert (perfect.value, perfect.high) == (1.0, 1.0)
    assert perfect.low == pytest.approx(0.025 ** (1 / 16), abs=0.01)
    assert (hopeless.value, hopeless.low) == (0.0, 0.0)
    assert hopeless.high == pytest.approx(1 - 0.025 ** (1 / 16), abs=0.01)


def test_one_imperfect_task_does_not_make_the_rest_more_certain() -> None:
    assert mean([1.0] * 15 + [0.75]).low < mean([1.0] * 16).low
