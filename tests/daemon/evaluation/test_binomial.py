"""The conditional binomial test: exact, also for large counts."""

from math import comb
from random import Random

import pytest

from daemon.evaluation.binomial import conditional_binomial


@pytest.mark.parametrize("seed", range(20))
def test_the_p_value_is_the_sum_of_the_binomial_tail(seed: int) -> None:
    chance = Random(seed)
    after, before, share = chance.randint(0, 40), chance.randint(0, 40), chance.uniform(0.01, 0.99)
    total = after + before
    tail = sum(
        comb(total, count) * share**count * (1 - share) ** (total - count)
        for count in range(after, total + 1)
    )
    assert conditional_binomial(after, before, share) == pytest.approx(tail, abs=1e-12)


def test_no_events_are_no_evidence() -> None:
    assert conditional_binomial(0, 0, 0.5) == 1
    assert conditional_binomial(0, 7, 0.5) == 1


def test_large_counts_are_near_the_normal_distribution() -> None:
    assert conditional_binomial(100_500, 100_000, 0.5) == pytest.approx(0.1326, abs=1e-4)
    assert conditional_binomial(100_000, 100_500, 0.5) == pytest.approx(0.8684, abs=1e-4)
    assert conditional_binomial(100_000, 0, 0.3) == 0
    assert conditional_binomial(0, 100_000, 0.3) == 1


@pytest.mark.parametrize(
    ("after", "before", "share", "said"),
    [(-1, 0, 0.5, "not -1 and 0"), (1, 1, 0, "share is 0"), (1, 1, 1, "share is 1")],
)
def test_what_has_no_p_value_is_refused(after: int, before: int, share: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        conditional_binomial(after, before, share)
