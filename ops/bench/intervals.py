"""Intervals of what a simulation counted."""

from math import sqrt
from typing import Final

_Z: Final = 1.96


def wilson(passed: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, square = passed / count, _Z**2 / count
    middle = (share + square / 2) / (1 + square)
    half = _Z * sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return middle - half, middle + half
