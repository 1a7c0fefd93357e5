"""What rounds of pairs come to, and who begins."""

import random
import statistics

import pytest

from ops.bench.gateway.pairs import alternating, interval, ratio


def test_who_begins_changes_and_the_order_of_the_answers_does_not() -> None:
    begun: list[str] = []

    def run(name: str) -> str:
        begun.append(name)
        return name

    for number in (1, 2, 3):
        assert alternating(number, lambda: run("a"), lambda: run("b")) == ("a", "b")
    assert begun == ["a", "b", "b", "a", "a", "b"]


def test_rounds_are_compared_each_with_itself() -> None:
    """Quiet rounds and busy ones that agree leave no doubt."""
    pairs = [(0.9 * speed, speed) for speed in (1.0, 40.0, 3.0, 900.0)]
    assert ratio(pairs) == {"value": 0.9, "low": 0.9, "high": 0.9}
    swapped = ratio([(other, one) for one, other in pairs])
    assert swapped["value"] == pytest.approx(1 / 0.9, abs=1e-4)


def test_the_interval_of_means_is_that_of_the_normal_distribution() -> None:
    chance = random.Random(3)
    drawn = [chance.gauss(1.0, 0.1) for _ in range(40)]
    middle, half = statistics.fmean(drawn), 1.96 * statistics.stdev(drawn) / 40**0.5
    low, high = interval(drawn, statistics.fmean)
    assert low == pytest.approx(middle - half, abs=half / 5)
    assert high == pytest.approx(middle + half, abs=half / 5)
