"""Bounds of a mean success probability: wrong at any look as seldom as they say, drift or not."""

from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.serving.confidence_sequence import bound_mean

ERROR = 0.025
LOOKS = 70

counts = st.integers(1, 100_000).flatmap(
    lambda trials: st.tuples(st.integers(0, trials), st.just(trials))
)


@given(counts, st.sampled_from((0.001, 0.025, 0.2)))
def test_bounds_hold_the_observed_mean_and_are_mirrored_by_failures(
    observed: tuple[int, int], error: float
) -> None:
    successes, trials = observed
    low, high = bound_mean(successes, trials, error)
    assert 0 <= low <= successes / trials <= high <= 1
    mirrored = bound_mean(trials - successes, trials, error)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-6)


@given(counts)
def test_bounds_narrow_with_sessions_and_widen_with_certainty(observed: tuple[int, int]) -> None:
    successes, trials = observed
    low, high = bound_mean(successes, trials, ERROR)
    more = bound_mean(16 * successes, 16 * trials, ERROR)
    assert more[1] - more[0] <= high - low + 1e-6
    wider = bound_mean(successes, trials, ERROR / 10)
    assert wider[0] <= low + 1e-6
    assert wider[1] >= high - 1e-6


def test_a_hundred_times_the_sessions_give_a_tenth_of_the_width() -> None:
    widths = [
        high - low
        for low, high in (bound_mean(trials * 4 // 5, trials, ERROR) for trials in (1_000, 100_000))
    ]
    assert widths[0] == pytest.approx(0.0913, abs=0.005)
    assert widths[1] == pytest.approx(widths[0] / 10, rel=0.1)


@pytest.mark.parametrize(
    "probability",
    [
        lambda number, successes: 0.5,
        lambda number, successes: 0.97,
        lambda number, successes: 0.95 if number < LOOKS // 2 else 0.3,
        lambda number, successes: 0.2 if number % 2 else 0.9,
        lambda number, successes: 0.9 if 2 * successes > number else 0.2,
    ],
    ids=["even", "rarely fails", "drops", "alternates", "follows what was seen"],
)
def test_over_all_looks_the_mean_is_outside_as_seldom_as_the_error(
    probability: Callable[[int, int], float],
) -> None:
    """Exact: every path of outcomes is followed with its probability, until it is miscovered."""
    paths = {(0, 0.0): 1.0}  # successes and the sum of the probabilities so far
    missed = 0.0
    for number in range(LOOKS):
        following: dict[tuple[int, float], float] = {}
        for (successes, total), chance in paths.items():
            p = probability(number, successes)
            for outcome, part in ((1, p), (0, 1 - p)):
                state = (successes + outcome, round(total + p, 9))
                following[state] = following.get(state, 0.0) + chance * part
        bounds = [bound_mean(successes, number + 1, ERROR) for successes in range(number + 2)]
        outside = {
            state
            for state in following
            if not bounds[state[0]][0] <= state[1] / (number + 1) <= bounds[state[0]][1]
        }
        missed += sum(following.pop(state) for state in outside)
        paths = following
    assert missed + sum(paths.values()) == pytest.approx(1)
    assert missed <= ERROR


def test_at_every_look_an_arm_that_never_fails_is_bounded_from_below() -> None:
    lows = [bound_mean(trials, trials, ERROR)[0] for trials in range(1, 200)]
    assert lows == list(accumulate(lows, max))
    assert lows[0] == 0
    assert lows[-1] > 0.95


def test_without_sessions_nothing_is_known() -> None:
    assert bound_mean(0, 0, ERROR) == (0, 1)


@pytest.mark.parametrize(
    ("successes", "trials", "error", "why"),
    [
        (3, 2, 0.05, "3 successes of 2 trials"),
        (-1, 2, 0.05, "-1 successes"),
        (1, 2, 0.0, "above 0 and below 1, not 0"),
        (1, 2, 1.0, "above 0 and below 1, not 1"),
    ],
)
def test_counts_and_errors_that_cannot_be_are_refused(
    successes: int, trials: int, error: float, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        bound_mean(successes, trials, error)
