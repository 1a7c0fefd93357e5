"""What rounds of pairs come to, and who begins."""

import math
import random

import pytest

from ops.bench.gateway.pairs import alternate, ratio


def test_who_begins_changes_and_the_order_of_the_answers_does_not() -> None:
    begun: list[str] = []

    def run(name: str) -> str:
        begun.append(name)
        return name

    for number in (1, 2, 3):
        assert alternate(number, lambda: run("a"), lambda: run("b")) == ("a", "b")
    assert begun == ["a", "b", "b", "a", "a", "b"]


def test_rounds_are_compared_each_with_itself() -> None:
    """Quiet rounds and busy ones that agree leave no doubt."""
    pairs = [(0.9 * speed, speed) for speed in (1.0, 40.0, 3.0, 900.0)]
    assert ratio(pairs) == {"value": 0.9, "low": 0.9, "high": 0.9}
    swapped = ratio([(other, one) for one, other in pairs])
    assert swapped["value"] == pytest.approx(1 / 0.9, abs=1e-4)


def test_a_round_with_a_pause_hardly_moves_the_others() -> None:
    agreed = [(0.97 + n / 1000, 1.0) for n in range(-10, 11)]
    paused = ratio([*agreed, (0.01, 1.0)])
    assert paused["value"] == pytest.approx(ratio(agreed)["value"], abs=0.001)
    assert paused["low"] > 0.95


@pytest.mark.parametrize("rounds", [6, 12, 40])
def test_of_twenty_intervals_nineteen_hold_the_ratio(rounds: int) -> None:
    """Of rounds with pauses: one in ten takes up to three times as long."""
    chance = random.Random(rounds)

    def side() -> float:
        return chance.gauss(1.0, 0.05) / (chance.uniform(1, 3) if chance.random() < 0.1 else 1)

    found = [ratio([(0.96 * side(), side()) for _ in range(rounds)]) for _ in range(400)]
    held = sum(one["low"] <= 0.96 <= one["high"] for one in found)
    assert held == pytest.approx(380, abs=4 * math.sqrt(400 * 0.95 * 0.05))


def test_few_rounds_are_told_as_all_that_was_seen() -> None:
    found = ratio([(0.9, 1.0), (1.0, 1.0), (1.1, 1.0)])
    assert (found["low"], found["high"]) == (0.9, 1.1)
