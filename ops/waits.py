"""Waiting for something, and doing something meanwhile."""

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
    """Wait until something holds, looking `every` so many seconds; return the seconds. Raises
    TimeoutError, which names `what`, after `patience` seconds."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + patience:
            raise TimeoutError(f"{what}: not within {patience:g} s")
        time.sleep(every)
    return time.monotonic() - began


@contextmanager
def run_threads(threads: Iterable[Thread]) -> Iterator[None]:
    """Start threads, and wait for their ends at the end of the block."""
    threads = list(threads)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


class Worker(Thread, ABC):
    """A thread that works until it is told to stop, and hands over what ended it before."""

    def __init__(self, name: str, stop: Event | None = None) -> None:
        """`stop`: an event of several workers; else one of its own."""
        super().__init__(name=name, daemon=True)
        self.stop_asked = stop or Event()
        self._error: Exception | None = None

    @abstractmethod
    def work(self) -> None:
        """Work until the stop."""

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # handed over to the thread that stops it
            self._error = error

    def finish(self) -> None:
        """Stop, wait for the end, and raise what ended it before."""
        self.stop_asked.set()
        self.join()
        if self._error is not None:
            raise self._error


@contextmanager
def repeat(action: Callable[[], object], every: float) -> Iterator[None]:
    """Do something `every` so many seconds, in a thread, until the end of the block."""
    over = Event()

    def run() -> None:
        while not over.wait(every):
            action()

    with run_threads([Thread(target=run, name="repeat", daemon=True)]):
        try:
            yield
        finally:
            over.set()
