"""A clock for durations on one machine. No step of the wall clock moves it, and on Linux it counts
on while the machine sleeps. It is the same in every process until the machine restarts."""

import sys
import time


def monotonic_seconds() -> float:
    """Return the seconds since some past moment; use only differences between two values."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
