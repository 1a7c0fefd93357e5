"""A clock for how long something took, or is silent, on one machine.

    elapsed()    seconds that have passed, of which only differences mean anything

No step of the wall clock moves it, and it counts on while the machine sleeps, where the system has
such a clock. It is the same in every process of a machine until that is started again. What
happened when, for people and in events, is told by the wall clock.
"""

import time
from collections.abc import Callable
from typing import Final

_BOOT: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)

elapsed: Final[Callable[[], float]] = (
    time.monotonic if _BOOT is None else lambda: time.clock_gettime(_BOOT)
)
"""Seconds since some moment of the past."""
