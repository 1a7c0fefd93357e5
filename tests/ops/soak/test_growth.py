"""Whether growth is seen where it was planted, and nowhere else."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from ops.soak.growth import Growth, Life, Rule, growth

EVERY = 10.0
RULE = Rule(bound=12.0, warm_up=120.0)

Figure = Callable[[float, float], float]
"""Of the time of the run and the age, in seconds."""


def lives(figure: Figure, ends: list[float]) -> list[Life]:
    """Processes that follow one another, each read every ten seconds until it is killed."""
    found = []
    for begin, end in zip([0.0, *ends], ends, strict=False):
        life, age = Life(), 0.0
        while begin + age < end:
            life.readings.append((begin + age, age, figure(begin + age, age)))
            age += EVERY
        found.append(life)
    return found


def judged(figure: Figure, ends: list[float]) -> Growth:
    return growth(lives(figure, ends), RULE, ends[-1])


def noise(seed: int, size: float) -> Callable[[], float]:
    chance = Random(seed)
    return lambda: chance.gauss(0, size)


def leaking(said: Callable[[], float], _: float, age: float) -> float:
    """Five an hour."""
    return 5 * age / 3600 + said()


OFTEN = [900.0 * number for number in range(1, 9)]
"""Two hours, killed every quarter of an hour."""
NEVER = [7200.0]


@pytest.mark.parametrize("ends", [OFTEN, NEVER])
def test_a_leak_is_found_whether_its_process_is_killed_or_not(ends: list[float]) -> None:
    said = noise(1, 1.0)
    found = judged(lambda _, age: 300 + 30 * age / 3600 + said(), ends)
    assert found.grows
    assert found.by_age is not None
    assert found.by_age.low < 30 < found.by_age.high


@pytest.mark.parametrize("seed", range(5))
def test_a_flat_figure_with_jumps_from_restarts_is_flat(seed: int) -> None:
    """Each life ends and begins at a level of its own, and the last is the highest."""
    said, chance = noise(seed, 2.0), Random(seed)
    levels = sorted(chance.uniform(200, 210) for _ in OFTEN)
    chance.shuffle(levels)
    found = judged(lambda at, _: levels[min(int(at // 900), 7)] + said(), OFTEN)
    assert found.verdict == "flat"
    assert found.lives == len(OFTEN)


def test_what_fills_up_is_flat_and_what_is_read_of_the_warm_up_counts_for_nothing() -> None:
    """A cache of 40 MiB: nearly a leak's rate in the first minutes, and then nothing."""
    said = noise(3, 0.5)

    def filling(_: float, age: float) -> float:
        return 300 + 40 * min(1.0, age / 1200) + said()

    assert judged(filling, NEVER).verdict == "flat"
    assert judged(lambda _, age: 300 + (50 if age >= 120 else 0) + said(), OFTEN).verdict == "flat"


def test_what_a_process_needs_from_its_start_and_grows_with_the_data_is_found() -> None:
    """Flat as long as it lives, and 20 MiB more with every hour of data that it finds."""
    said = noise(4, 0.5)
    found = judged(lambda at, age: 300 + 20 * (at - age) / 3600 + said(), OFTEN)
    assert found.grows
    assert found.by_age is not None
    assert found.by_age.low < RULE.bound
    assert found.by_data is not None
    assert found.by_data.low > RULE.bound


def test_a_handle_that_leaks_now_and_then_is_found_among_whole_numbers() -> None:
    rule = Rule(bound=4.0)
    assert growth(lives(lambda _, age: 40 + age // 120, OFTEN), rule, 7200).grows
    assert growth(lives(lambda _, age: 40 + age // 400, NEVER), rule, 7200).grows
    busy = lives(lambda _, age: 40 + age // 120 % 2, OFTEN)
    assert growth(busy, rule, 7200).verdict == "flat"


@pytest.mark.parametrize("ends", [OFTEN, NEVER])
def test_the_interval_holds_the_rate_as_often_as_it_says(ends: list[float]) -> None:
    held = 0
    for seed in range(100):
        said = noise(seed, 3.0)
        by_age = judged(partial(leaking, said), ends).by_age
        assert by_age is not None
        held += by_age.low <= 5 <= by_age.high
    assert held >= 96


def test_a_short_life_that_grows_in_all_and_may_have_slowed_down_decides_nothing() -> None:
    """Thirteen minutes of 90 MiB an hour among steps of 3: the later half alone shows nothing."""
    said = noise(2, 3.0)
    found = judged(lambda _, age: 300 + 90 * age / 3600 + said(), [900.0])
    assert found.by_age is not None
    assert found.by_age.low > RULE.bound
    assert found.verdict == "unknown"


def test_too_little_decides_nothing() -> None:
    found = judged(lambda _, age: 300 + age, [400.0])
    assert found.verdict == "unknown"
    assert judged(lambda _, age: 300 + age, [100.0, 200.0]).minutes == 0


def test_the_thirds_of_the_run_are_told() -> None:
    found = judged(lambda at, _: at, NEVER)
    assert (found.first, found.last) == (1255.0, 5995.0)
    assert found.most == 7190.0
