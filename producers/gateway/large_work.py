"""Runs long work in threads beside the event loop. A thread alone does not free the loop: a call of
a parser or encoder holds the interpreter until it returns, and an answer may wait for ten such
calls. So the size of one call is bounded (http/request_limits.py). Large pieces run one after
another, and the loop gets the interpreter after each. Callers split their work into pieces."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

LARGE_BYTES: Final = 1 << 20
"""Bytes or characters from which work runs in a thread: about ten milliseconds of work."""
HUGE_BYTES: Final = 4 << 20
"""Bytes or characters from which work is huge: it has its own lock, not to delay large work."""
CONTAINER_BYTES: Final = 256
"""An object or list is as much work as this many bytes of text."""
_NO_OPENING: Final = bytes(set(range(256)) - set(b"[{"))
SMALL_BYTES: Final = LARGE_BYTES // (CONTAINER_BYTES + 1)
"""Size in bytes below which no JSON text is large work."""
_LONG_SECONDS: Final = 0.02
_REST_SECONDS: Final = 0.02
"""Pause in seconds after work longer than `_LONG_SECONDS`, enough for a short call."""

TURN_SECONDS: Final = 0.005
"""Longest time, in seconds, for which one call keeps the loop while others wait."""
_BREAK_SECONDS: Final = 0.002
"""Pause in seconds, in which threads that append to the log can run, too."""

T = TypeVar("T")
P = ParamSpec("P")

Locks = tuple[asyncio.Lock, asyncio.Lock]

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, Locks] = WeakKeyDictionary()
"""Event loop -> its locks for large and for huge work."""


def measure_work(body: bytes) -> int:
    """Return the work for a JSON text as an equivalent number of text bytes; its size if huge."""
    if not SMALL_BYTES <= len(body) < HUGE_BYTES:
        return len(body)
    return len(body) + CONTAINER_BYTES * len(body.translate(None, _NO_OPENING))


async def run_in_thread_if_large(
    size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `work(...)` for input of `size`; large work runs in a thread. A cancelled caller waits
    for the work's end, so no work continues unnoticed."""
    if size < LARGE_BYTES:
        return work(*args, **kwargs)
    locks = _locks.setdefault(asyncio.get_running_loop(), (asyncio.Lock(), asyncio.Lock()))
    async with locks[size >= HUGE_BYTES]:
        began = time.monotonic()
        done = await _run_in_thread(lambda: work(*args, **kwargs))
        if time.monotonic() - began > _LONG_SECONDS:
            await asyncio.sleep(_REST_SECONDS)
        return done


async def _run_in_thread(work: Callable[[], T]) -> T:
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


class Turn:
    """A time slice of the event loop for many small pieces of work."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + TURN_SECONDS

    @property
    def is_over(self) -> bool:
        """Return whether the time slice is over."""
        return time.monotonic() > self._ends

    async def give_way(self) -> None:
        """Let other tasks run, and begin a new time slice."""
        await asyncio.sleep(_BREAK_SECONDS)
        self._ends = time.monotonic() + TURN_SECONDS
