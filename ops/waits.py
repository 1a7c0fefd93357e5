"""Wait for conditions, and run threads meanwhile."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

PATIENCE_SECONDS: Final = 120.0


def until(
    holds: Callable[[], object], what: str, patience: float = PATIENCE_SECONDS, every: float = 0.02
) -> float:
    """Call `holds` every `every` seconds until it is true; return the seconds. Raise
    TimeoutError."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + patience:
            raise TimeoutError(f"{what}: not within {patience:g} s")
        time.sleep(every)
    return time.monotonic() - began


@contextmanager
def run_threads(threads: Iterable[Thread]) -> Iterator[None]:
    """Start threads, and join them when the block ends."""
    threads = list(threads)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


class Worker(Thread, ABC):
    """A thread that works until it is stopped. `finish` raises an error that ended it earlier."""

    def __init__(self, name: str, stop: Event | None = None) -> None:
        """`stop` may be shared by several workers; the default is a new event."""
        super().__init__(name=name, daemon=True)
        self.stop_asked = stop or Event()
        self._error: Exception | None = None

    @abstractmethod
    def work(self) -> None:
        """Work until `stop_asked` is set."""

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # `finish` raises it in the thread that stops this one
            self._error = error

    def finish(self) -> None:
        """Stop and join the thread; raise the error that ended it earlier."""
        self.stop_asked.set()
        self.join()
        if self._error is not None:
            raise self._error


@contextmanager
def repeat(action: Callable[[], object], every: float) -> Iterator[None]:
    """Call `action` every `every` seconds in a thread until the block ends."""
    over = Event()

    def run() -> None:
        while not over.wait(every):
            action()

    with run_threads([Thread(target=run, name="repeat", daemon=True)]):
        try:
            yield
        finally:
            over.set()
