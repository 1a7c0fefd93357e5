"""Two sides compared in one run: who begins changes, and what the rounds' ratios come to.

    for number in range(rounds):
        found.append(alternate(number, with_it, without_it))
    ratio(found)                                     {"value": .97, "low": .95, "high": .99}

Both sides of a round meet the same of whatever else the machine does, so each round gives a ratio
of its own, and those are summed up: of each side's own sum, one might have had the quiet minutes.
A round that a pause of the machine fell into counts as one round and no more, however long the
pause was. The interval says how far the rounds agree; what disturbs every round alike is not in it.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from statistics import NormalDist, median
from typing import Final, TypeVar

_CONFIDENCE: Final = 0.95

Found = TypeVar("Found")


def alternate(
    number: int, left: Callable[[], Found], right: Callable[[], Found]
) -> tuple[Found, Found]:
    """Both, one after the other: `one` first in odd rounds. In the order of the arguments."""
    if number % 2:
        first = left()
        return first, right()
    first = right()
    return left(), first


def ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the ratio of the first to the second: the middle of the rounds' own ratios, and its 95
    % interval.

    Hodges and Lehmann's estimator on logarithms, and the interval that Wilcoxon's signed-rank test
    leaves (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3, for many
    rounds). With fewer than six rounds no interval is 95 % sure; then it is the whole range seen.
    """
    logs = sorted(math.log(numerator / denominator) for numerator, denominator in pairs)
    averages = sorted((a + b) / 2 for a, b in combinations_with_replacement(logs, 2))
    rounds, count = len(logs), len(averages)
    spread = math.sqrt(rounds * (rounds + 1) * (2 * rounds + 1) / 24)
    outside = count / 2 - NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) * spread
    left_out = max(0, math.floor(outside))
    estimate = {"value": median(averages), "low": averages[left_out], "high": averages[~left_out]}
    return {name: round(math.exp(value), 4) for name, value in estimate.items()}
