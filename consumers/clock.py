"""A clock for durations and silences on one machine.

    monotonic_seconds()    seconds that have passed; only differences are meaningful

No step of the wall clock moves it, and on Linux it counts on while the machine sleeps. It is the
same in every process of a machine until that is started again. What happened when, for people and
in events, is told by the wall clock.
"""

import sys
import time


def monotonic_seconds() -> float:
    """Seconds since some moment of the past."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
