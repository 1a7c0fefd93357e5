"""The lock that a process holds while it stages, routes or unloads adapters in a home."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from events import private
from events.errors import KintsugiError

if TYPE_CHECKING:
    pass


PATIENCE: Final = 120.0
"""Seconds that a command waits for the lock; loading takes less."""


_LOOK_SECONDS: Final = 0.05


class HomeLockBusy(KintsugiError):
    """Another process of this home is loading, unloading or routing."""


@contextmanager
def hold_serving_lock(home: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a home's lock; a dead holder frees it. Raises HomeLockBusy after `patience` seconds."""
    path = home / "serving.lock"
    with private.open_lock(path) as lock:
        _lock(lock.fileno(), path, time.monotonic() + patience)
        yield


def _lock(descriptor: int, path: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise HomeLockBusy(
                    f"another process of this home loads or routes adapters (it holds {path}); "
                    "run the same command again when it is done"
                ) from error
            time.sleep(_LOOK_SECONDS)
        else:
            return
