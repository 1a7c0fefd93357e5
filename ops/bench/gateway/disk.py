"""What the disk takes for the bytes of a call, with nothing around it (bytes -> seconds).

Appending to a file and fdatasync: less than this no gateway can take that answers when a call is
safe. Paced like calls, for a disk that rests between two syncs answers differently from a busy one.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def bare(folder: Path) -> Iterator[int]:
    """An empty file to append to."""
    path = folder / "bare"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def time_appends(descriptor: int, values: Sequence[bytes], gap_seconds: float) -> list[float]:
    """Seconds of each append and fdatasync, one every `gap_seconds`."""
    seconds: list[float] = []
    for value in values:
        time.sleep(gap_seconds)
        begin = time.perf_counter()
        os.write(descriptor, value)
        os.fdatasync(descriptor)
        seconds.append(time.perf_counter() - begin)
    return seconds
