"""The conditional binomial test: exact, one-sided, and of no use for a rate that is guessed."""

from fractions import Fraction
from math import comb

import pytest

from daemon.serving.binomial import conditional_binomial


@pytest.mark.parametrize(("after", "before"), [(0, 0), (1, 0), (3, 5), (9, 8), (40, 2)])
@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(1, 9), Fraction(9, 10)])
def test_it_is_the_tail_of_a_binomial_variable(after: int, before: int, share: Fraction) -> None:
    total = after + before
    exact = sum(
        comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(after, total + 1)
    )
    assert conditional_binomial(after, before, float(share)) == pytest.approx(float(exact))


def test_large_counts_neither_overflow_nor_vanish() -> None:
    assert conditional_binomial(50_000, 50_000, 0.5) == pytest.approx(0.5, abs=0.01)
    assert 0 < conditional_binomial(1_200, 1_000, 0.5) < 1e-4


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        conditional_binomial(1, 1, share)


def test_a_count_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative: -1 and 2"):
        conditional_binomial(-1, 2, 0.5)
