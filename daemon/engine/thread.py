"""Run the engine in a thread of its own, for the requests of one event loop.

    thread = EngineThread(engine)
    thread.start()                                  in the event loop
    call = await thread.submit(policy, requests)    raises BadRequest, EngineFailure
    async for parts in call: ...                    lists of (request's number, emission)
    thread.cancel(call)                             does nothing if the call has ended

Only this thread uses the engine. The event loop puts commands into an inbox, and gets the tokens
once per tick. Guarantee: every call ends, with its answers or an exception. A fault of one request
ends only its call. If the engine cannot answer a plain request either, it fails for good: all open
and all later calls end with EngineFailure.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

from daemon.engine.generation import BadRequest, Emission, Engine, Request, RequestFailure
from daemon.engine.policy import Policy
from events.errors import KintsugiError

Part = tuple[int, Emission]
"""Index of a request in its call, and one token of its answer."""

_STOP_SECONDS: Final = 10.0
"""Longest wait for the thread's end; a tick takes only a fraction of a second."""

_logger = logging.getLogger(__name__)


class EngineFailure(KintsugiError):
    """The engine has failed and answers no more calls."""


class Call:
    """Requests that are submitted together, and their answers; only the event loop uses it."""

    def __init__(self, policy: Policy, requests: Sequence[Request]) -> None:
        self.policy = policy
        self.requests = tuple(requests)
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts: asyncio.Queue[list[Part] | KintsugiError] = asyncio.Queue()
        self._open = set(range(len(self.requests)))

    @property
    def is_over(self) -> bool:
        """Whether every request has been answered or dropped."""
        return not self._open

    def give(self, parts: list[Part]) -> None:
        """Add tokens of the answers, for the iteration over the call."""
        self._parts.put_nowait(parts)

    def fail(self, error: KintsugiError) -> None:
        """End the call with an error, which `accepted` or the iteration raises."""
        if not self.accepted.done():
            self.accepted.set_exception(error)
        self._parts.put_nowait(error)

    def drop(self, numbers: Sequence[int] | None) -> frozenset[int]:
        """Give up requests by their indices (default: all). Return those that were still open."""
        dropped = self._open.intersection(self._open if numbers is None else numbers)
        self._open -= dropped
        return frozenset(dropped)

    async def __aiter__(self) -> AsyncIterator[list[Part]]:
        """Yield tokens as they come, until all open requests ended. Raise the call's error."""
        while self._open:
            parts = await self._parts.get()
            if isinstance(parts, KintsugiError):
                raise parts
            wanted = [part for part in parts if part[0] in self._open]
            self._open -= {number for number, emission in wanted if emission.finish}
            if wanted:
                yield wanted


class EngineThread:
    """A thread that runs one engine for one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.failure: EngineFailure | None = None
        """Error that ended the engine, else None. Then `on_failure` is called in the event loop."""
        self.on_failure: Callable[[], None] = _ignore
        self.length = engine.length
        self._engine = engine
        self._inbox: queue.SimpleQueue[Callable[[], bool]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[Call] = set()
        """Open calls. Only the event loop uses this field."""
        self._tickets: dict[int, tuple[Call, int]] = {}
        """Engine's ticket -> call and index of the request. Only the thread uses this field."""

    def start(self) -> None:
        """Start the thread, for the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after the current tick; requests that still run are dropped."""
        self._inbox.put(lambda: False)
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    async def submit(self, policy: Policy, requests: Sequence[Request]) -> Call:
        """Submit requests, return their call. Raise BadRequest, RequestFailure, EngineFailure."""
        if self.failure is not None:
            raise self.failure
        call = Call(policy, requests)
        self._calls.add(call)
        self._inbox.put(partial(self._take, call))
        try:
            await call.accepted
        except BaseException:
            self.cancel(call)
            raise
        return call

    def cancel(self, call: Call, numbers: Sequence[int] | None = None) -> None:
        """Cancel these requests of a call (default: all)."""
        dropped = call.drop(numbers)
        if call.is_over:
            self._calls.discard(call)
        if dropped:
            self._inbox.put(partial(self._forget, call, dropped))

    def _run(self) -> None:
        try:
            while self._obey():
                if self._engine.busy:
                    self._tick()
        # Any error that reaches this point becomes the failure of every call.
        except BaseException as error:
            failure = EngineFailure(f"the engine failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._tell(partial(self._fail, failure))

    def _obey(self) -> bool:
        waiting = not self._engine.busy
        while True:
            try:
                command = self._inbox.get(block=waiting)
            except queue.Empty:
                return True
            if not command():
                return False
            waiting = not self._engine.busy

    def _take(self, call: Call) -> bool:
        taken: list[int] = []
        try:
            for request in call.requests:
                taken.append(self._engine.submit(call.policy, request))
        # Any error here concerns this call alone, since nothing was computed yet.
        except Exception as error:
            for ticket in taken:
                self._engine.cancel(ticket)
            failure = error if isinstance(error, BadRequest) else _as_failure(error)
            self._tell(partial(call.fail, failure))
            return True
        self._tickets |= {ticket: (call, number) for number, ticket in enumerate(taken)}
        self._tell(partial(_accept, call))
        return True

    def _forget(self, call: Call, numbers: frozenset[int]) -> bool:
        wanted = [
            ticket
            for ticket, (owner, number) in self._tickets.items()
            if owner is call and number in numbers
        ]
        for ticket in wanted:
            del self._tickets[ticket]
            self._engine.cancel(ticket)
        return True

    def _tick(self) -> None:
        dropped: list[tuple[int, Exception]] = []
        self._hand_out(self._engine.tick(lambda ticket, error: dropped.append((ticket, error))))
        for ticket, error in dropped:
            # One failed request ends the whole call, even if it has others.
            if ticket in self._tickets:
                call, _ = self._tickets[ticket]
                self._forget(call, frozenset(range(len(call.requests))))
                self._tell(partial(call.fail, _as_failure(error)))

    def _hand_out(self, emissions: Sequence[Emission]) -> None:
        parts: dict[Call, list[Part]] = {}
        for emission in emissions:
            call, number = self._tickets[emission.ticket]
            parts.setdefault(call, []).append((number, emission))
            if emission.finish is not None:
                del self._tickets[emission.ticket]
        if parts:
            self._tell(partial(_give, parts))

    def _tell(self, what: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(what)

    def _fail(self, failure: EngineFailure) -> None:
        self.failure = failure
        for call in self._calls:
            call.fail(failure)
        self._calls.clear()
        self.on_failure()


def _as_failure(error: Exception) -> RequestFailure:
    """Return the error for the client, and log its cause, which is a defect of the engine."""
    failure = RequestFailure(
        f"the engine cannot answer this request: {type(error).__name__}: {error}; other requests "
        "go on: please report it"
    )
    failure.__cause__ = error
    _logger.error("%s", failure, exc_info=error)
    return failure


def _ignore() -> None:
    """Do nothing: the default of `on_failure`."""


def _accept(call: Call) -> None:
    if not call.accepted.done():
        call.accepted.set_result(None)


def _give(parts: dict[Call, list[Part]]) -> None:
    for call, own in parts.items():
        call.give(own)
