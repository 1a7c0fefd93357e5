"""Two sides compared in one run: who begins changes, and what the rounds' ratios come to.

    for number in range(rounds):
        found.append(alternating(number, with_it, without_it))
    ratio(found)                                     {"value": .97, "low": .95, "high": .99}

Both sides of a round meet the same of whatever else the machine does, so each round gives a ratio
of its own, and those are summed up: of each side's own sum, one might have had the quiet minutes.
The interval says how far the rounds agree; it does not see what disturbs every round alike.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

_DRAWS: Final = 10_000
"""Of rounds with replacement, for the interval."""

Found = TypeVar("Found")


def alternating(
    number: int, one: Callable[[], Found], other: Callable[[], Found]
) -> tuple[Found, Found]:
    """Both, one after the other: `one` first in odd rounds. In the order of the arguments."""
    if number % 2:
        first = one()
        return first, other()
    first = other()
    return one(), first


def interval(
    ratios: Sequence[float], middle: Callable[[Sequence[float]], float]
) -> tuple[float, float]:
    """That holds 95 of 100 of the `middle` of rounds drawn again from these (bootstrap)."""
    chance = random.Random(0)
    drawn = sorted(middle(chance.choices(ratios, k=len(ratios))) for _ in range(_DRAWS))
    return drawn[_DRAWS * 25 // 1000], drawn[_DRAWS * 975 // 1000]


def ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Of the first over the second: geometric mean of the rounds' own ratios, and its interval."""
    ratios = [one / other for one, other in pairs]
    low, high = interval(ratios, statistics.geometric_mean)
    found = {"value": statistics.geometric_mean(ratios), "low": low, "high": high}
    return {name: round(value, 4) for name, value in found.items()}
