"""Rates by the size of the base: the measured one below 10 M, falling to those of publications."""

import pytest

from daemon.jobs.learning_rate import (
    compute_training_rate,
    compute_warm_start_epochs,
    compute_warm_start_rate,
    interpolate,
)
from daemon.methods.synthesis.users.spec import compute_user_dialogues, compute_user_rate


def test_below_ten_million_parameters_rates_are_those_measured_here() -> None:
    for count in (1, 3 * 10**6, 10**7):
        assert compute_training_rate(count) == pytest.approx(2e-3)
        assert compute_warm_start_rate(count) == pytest.approx(4e-3)
        assert compute_warm_start_epochs(count) == 4
        assert compute_user_rate(count) == pytest.approx(3e-3)
        assert compute_user_dialogues(count) == 8192
        assert compute_user_rate(count, manners=True) == pytest.approx(2e-3)
        assert compute_user_dialogues(count, manners=True) == 16_384


def test_rates_fall_with_the_size_and_stay_beyond_the_last_point() -> None:
    sizes = [10**7, 10**8, 5 * 10**8, 10**9, 4 * 10**9, 10**10]
    for rule in (compute_training_rate, compute_user_rate, compute_warm_start_rate):
        rates = [rule(count) for count in sizes]
        assert rates == sorted(rates, reverse=True)
        assert rule(7 * 10**10) == rule(10**12)
    assert compute_training_rate(4 * 10**9) == pytest.approx(1e-5)
    assert compute_warm_start_rate(10**9) == pytest.approx(1e-4)
    assert compute_warm_start_rate(10**10) == pytest.approx(2e-5)
    assert [compute_warm_start_epochs(count) for count in sizes] == [4, 3, 2, 2, 2, 2]
    assert [compute_user_dialogues(count) for count in sizes] == [8192, 2048, 777, 512, 512, 512]
    in_manners = [compute_user_dialogues(count, manners=True) for count in sizes]
    assert in_manners == [16_384, 4096, 1554, 1024, 1024, 1024]


def test_between_two_points_equal_factors_of_size_are_equal_factors_of_rate() -> None:
    points = ((10.0, 1.0), (1000.0, 0.01))
    assert interpolate(points, 100) == pytest.approx(0.1)
    assert interpolate(points, 10) == 1.0
    assert interpolate(points, 1000) == pytest.approx(0.01)


def test_a_base_without_parameters_is_an_error() -> None:
    with pytest.raises(ValueError, match="not 0"):
        interpolate(((1e7, 1.0),), 0)
