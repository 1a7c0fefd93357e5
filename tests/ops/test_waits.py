"""Waiting, and threads that work meanwhile."""

import time
from threading import Event

import pytest

from ops.waits import Worker, repeat, until


def test_a_wait_ends_when_it_holds_or_names_what_does_not() -> None:
    looks = iter([False, False, True])
    assert until(lambda: next(looks), "it holds", every=0.001) < 10
    with pytest.raises(TimeoutError, match=r"it holds: not within 0\.01 s"):
        until(lambda: False, "it holds", patience=0.01, every=0.001)


def test_something_is_repeated_until_the_end_of_the_block() -> None:
    seen: list[float] = []
    with repeat(lambda: seen.append(time.monotonic()), every=0.001):
        until(lambda: len(seen) > 2, "it was done three times")
    count = len(seen)
    time.sleep(0.02)
    assert len(seen) == count


class Failing(Worker):
    """Fails once it is told to stop."""

    def work(self) -> None:
        self.stop_asked.wait()
        raise ValueError("it failed")


def test_a_worker_hands_over_what_ended_it() -> None:
    stop = Event()
    worker = Failing("failing", stop)
    worker.start()
    assert worker.is_alive()
    with pytest.raises(ValueError, match="it failed"):
        worker.finish()
    assert stop.is_set()
