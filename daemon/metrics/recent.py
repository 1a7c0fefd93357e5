"""A reading that costs too much for every scrape, reused for a minute."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import Connection

KEPT_SECONDS: Final = 60.0
"""Seconds for which a reading is reused."""

T = TypeVar("T")


class Recent(Generic[T]):
    """The last result of a function, kept until it is too old."""

    def __init__(
        self, read: "Callable[[Connection], T]", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._function, self._clock = read, clock
        self._last: tuple[float, T] | None = None

    def read(self, connection: "Connection") -> T:
        """Return the function's last result, computed anew after `KEPT_SECONDS`."""
        now = self._clock()
        if self._last is None or now >= self._last[0] + KEPT_SECONDS:
            self._last = now, self._function(connection)
        return self._last[1]
