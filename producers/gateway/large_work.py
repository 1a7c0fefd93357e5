"""Runs long work beside the loop that answers. A thread alone does not free the loop: one call of a
parser or an encoder keeps the interpreter until it returns, and an answer may wait for such a call
ten times. So the size of one call is bounded (http/request_limits.py), large pieces run one after
the other, and the loop gets the interpreter for a moment after each. Callers cut their work into
several pieces."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

LARGE_BYTES: Final = 1 << 20
"""Bytes, or characters, from which on work is done beside the loop: some ten milliseconds."""
HUGE_BYTES: Final = 4 << 20
"""Bytes or characters of huge work, which must not delay merely large work."""
CONTAINER_BYTES: Final = 256
"""Bytes of text that are as much work as an object or a list."""
_NO_OPENING: Final = bytes(set(range(256)) - set(b"[{"))
SMALL_BYTES: Final = LARGE_BYTES // (CONTAINER_BYTES + 1)
"""Bytes below which nothing is large."""
_LONG_SECONDS: Final = 0.02
_REST_SECONDS: Final = 0.02
"""Rest in seconds after work longer than `_LONG_SECONDS`; a short call passes all steps in it."""

TURN_SECONDS: Final = 0.005
"""Longest time, in seconds, for which one call keeps the loop while others wait."""
_BREAK_SECONDS: Final = 0.002
"""Time, in seconds, in which threads that append to the log get on as well."""

T = TypeVar("T")
P = ParamSpec("P")

Locks = tuple[asyncio.Lock, asyncio.Lock]

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, Locks] = WeakKeyDictionary()
"""Loop -> the locks for large and for huge work beside it."""


def measure_work(body: bytes) -> int:
    """Return bytes of plain text that are as much work as a JSON text; a huge one's own size."""
    if not SMALL_BYTES <= len(body) < HUGE_BYTES:
        return len(body)
    return len(body) + CONTAINER_BYTES * len(body.translate(None, _NO_OPENING))


async def run_in_thread_if_large(
    size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `work(...)` for input of this size without holding up the loop. A cancelled caller
    waits for its end, so no work goes on unseen."""
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
    """The time for which many small pieces of work may keep the loop."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + TURN_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether others should have the loop."""
        return time.monotonic() > self._ends

    async def give_way(self) -> None:
        """Let others have the loop, and begin another turn."""
        await asyncio.sleep(_BREAK_SECONDS)
        self._ends = time.monotonic() + TURN_SECONDS
