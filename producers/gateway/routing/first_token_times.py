"""How long an engine took to its first token, over its last answers (pure)."""

from collections import deque
from statistics import median
from typing import Final

MOST: Final = 64
"""Answers that are remembered, the last ones."""


class FirstTokenTimes:
    """The last times to the first token of one engine, in seconds."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=MOST)

    def add(self, seconds: float) -> None:
        """Remember how long an answer took to its first token."""
        self._seconds.append(seconds)

    @property
    def median(self) -> float | None:
        """Return the median in seconds; None before the first answer."""
        return median(self._seconds) if self._seconds else None
