"""pass^k, Repair@n and their intervals."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.statistics import mean, most_trials, pass_hat, repair_at

VERDICTS = st.lists(st.booleans(), min_size=4, max_size=7)
SUITES = st.dictionaries(st.text(min_size=1, max_size=3), VERDICTS, min_size=1, max_size=6)


def shares(verdicts: list[bool], k: int) -> list[tuple[bool, bool]]:
    """Of every choice of k trials: whether all succeed, and whether one does."""
    return [(all(chosen), any(chosen)) for chosen in combinations(verdicts, k)]


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


def test_an_interval_holds_its_estimate() -> None:
    chance = Random(2)
    suite = {str(task): [chance.random() < 0.5 for _ in range(4)] for task in range(50)}
    for k in range(1, 5):
        found = pass_hat(suite, k)
        assert found.low < found.value < found.high


def test_pass_hat_of_one_trial_is_the_share_of_passed_tasks() -> None:
    assert pass_hat({"a": [True], "b": [False], "c": [True], "d": [True]}, 1).value == 0.75


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


def test_a_perfect_score_of_few_tasks_is_no_certainty() -> None:
    perfect, hopeless = mean([1.0] * 16), mean([0.0] * 16)
    assert (perfect.value, perfect.high) == (1.0, 1.0)
    assert perfect.low == pytest.approx(0.025 ** (1 / 16))
    assert (hopeless.value, hopeless.low) == (0.0, 0.0)
    assert hopeless.high == pytest.approx(1 - 0.025 ** (1 / 16))


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


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Tasks of their own difficulty, four trials each: 95 % nominal, 300 suites."""
    chance = Random(11)
    covered = 0
    for _ in range(300):
        levels = [chance.betavariate(0.6, 0.6) for _ in range(60)]
        suite = {
            str(task): [chance.random() < level for _ in range(4)]
            for task, level in enumerate(levels)
        }
        found = pass_hat(suite, 1, resamples=300)
        covered += found.low <= 0.5 <= found.high
    assert 270 <= covered <= 297
