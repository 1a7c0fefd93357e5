"""Cheap load clients: they send prepared requests and record times.

Requests are built before the clock starts, and an answer is parsed only enough to see that it is
complete. Conversations have TURNS calls; each sends back the earlier answers, as agents do. An
answer that is incomplete, or not recorded where it should be, ends the bench.
"""

import asyncio
import json
import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final

from ops.bench.gateway.upstream import ANSWER, MODEL

TURNS: Final = 8

_SYSTEM: Final = "You are the support agent of a shop. Follow its policy to the letter. " * 28
_USER: Final = "My order 4711 came broken and I would like to know what became of my refund. " * 3
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Reads or changes an order of the person who asks, once they agreed.",
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "string"}, "reason": {"type": "string"}},
                "required": ["order"],
            },
        },
    }
    for name in ("get_order", "refund_order", "cancel_order")
]

KEY: Final = f"sk-{secrets.token_hex(32)}"

_sessions = count()


@dataclass(frozen=True, slots=True)
class Sample:
    """Times of one call, in seconds after the moment when it should begin."""

    first: float
    """Seconds until the first byte of the body."""
    last: float
    """Seconds until the end of the body."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server to call."""

    port: int
    recorded: bool
    """Whether its answers must say that the call was recorded."""


@cache
def _body(turn: int, stream: bool) -> bytes:
    messages: list[Any] = [{"role": "system", "content": _SYSTEM}]
    for _ in range(turn):
        messages += [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": ANSWER},
        ]
    messages.append({"role": "user", "content": _USER})
    document = {
        "model": MODEL, "messages": messages, "tools": _TOOLS, "max_tokens": 64,
        "temperature": 0.7, "stream": stream,
    }  # fmt: skip
    return json.dumps(document).encode()


def requests(stream: bool | None) -> Iterator[bytes]:
    """Yield one client's requests; with `stream` None, sessions alternate between both types."""
    while True:
        session = next(_sessions)
        streamed = session % 2 == 0 if stream is None else stream
        for turn in range(TURNS):
            body = _body(turn, streamed)
            yield (
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n"
                b"authorization: Bearer %b\r\ncontent-type: application/json\r\n"
                b"x-kintsugi-session: session-%d\r\ncontent-length: %d\r\n\r\n%b"
                % (KEY.encode(), session, len(body), body)
            )


class Connection(asyncio.Protocol):
    """A connection with one call at a time."""

    def __init__(self, recorded: bool) -> None:
        self._recorded = recorded
        self._transport: asyncio.Transport | None = None
        self._done: Callable[[Connection, Sample], None] | None = None
        self._failed: Callable[[str], None] | None = None
        self._due = 0.0
        self._first: float | None = None
        self._head: bytes | None = None
        self._received = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a TCP connection"
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._failed is not None:
            self._failed(f"the connection ended within an answer: {self._received[-500:]!r}")

    def ask(
        self,
        request: bytes,
        due: float,
        done: "Callable[[Connection, Sample], None]",
        failed: Callable[[str], None],
    ) -> None:
        """Send `request`. Call `done` at the end of the answer, or `failed` with a reason."""
        self._due, self._done, self._failed = due, done, failed
        self._head, self._first, self._received = None, None, b""
        if self._transport is None:
            failed("the connection was closed between two calls")
            return
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection."""
        self._failed = None
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._head is None:
            head, separator, rest = self._received.partition(b"\r\n\r\n")
            if not separator:
                return
            self._head, self._received = head.lower(), rest
        if self._received and self._first is None:
            self._first = time.perf_counter()
        if self._is_whole():
            self._finish()

    def _is_whole(self) -> bool:
        assert self._head is not None, "headers come first"
        if b"transfer-encoding: chunked" in self._head:
            return self._received.endswith(b"0\r\n\r\n")
        _, _, length = self._head.partition(b"content-length:")
        return len(self._received) >= int(length.partition(b"\r\n")[0])

    def _finish(self) -> None:
        now = time.perf_counter()
        done, failed = self._done, self._failed
        assert self._first is not None, "an answer has a body"
        assert done is not None, "nothing comes unasked"
        assert failed is not None, "nothing comes unasked"
        self._done = self._failed = None
        if (why := self._wrong()) is not None:
            failed(why)
            return
        done(self, Sample(self._first - self._due, now - self._due))

    def _wrong(self) -> str | None:
        assert self._head is not None, "headers come first"
        if not self._head.startswith(b"http/1.1 200"):
            return f"{self._head[:200]!r} {self._received[:500]!r}"
        if self._recorded and b"x-kintsugi-recorded: yes" not in self._head:
            return f"a call was not recorded: {self._head!r}"
        if b"text/event-stream" in self._head and b"data: [DONE]" not in self._received:
            return f"a stream ended without [DONE]: {self._received[-500:]!r}"
        if b": x-kintsugi-recorded: no" in self._received:
            return "a stream was not recorded"
        return None


class Load:
    """The load on one side: its connections and the samples of its calls."""

    def __init__(self, target: Target, stream: bool | None) -> None:
        self._target = target
        self._stream = stream
        self._samples: list[Sample] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._busy = 0
        self._stopped = False

    async def run_clients(self, clients: int, until: Callable[[int], bool]) -> list[Sample]:
        """Run `clients` that call again after each answer until `until(number of calls)`."""
        sources: dict[Connection, Iterator[bytes]] = {}

        def again(connection: Connection, sample: Sample) -> None:
            self._samples.append(sample)
            self._stopped = self._stopped or until(len(self._samples))
            if self._stopped:
                self._release()
            else:
                connection.ask(next(sources[connection]), time.perf_counter(), again, self._fail)

        for connection in await self._connect(clients):
            sources[connection] = requests(self._stream)
        self._busy = clients
        for connection, source in sources.items():
            connection.ask(next(source), time.perf_counter(), again, self._fail)
        return await self._await_samples(list(sources))

    async def run_at_rate(self, rate: float, seconds: float, seed: int) -> list[Sample]:
        """Make `rate` calls per second at random moments, without waiting for earlier calls."""
        idle = await self._connect(max(8, int(rate)))
        everyone = list(idle)
        source = requests(self._stream)
        chance = random.Random(seed)
        begin = due = time.perf_counter() + 0.05

        def take_sample(connection: Connection, sample: Sample) -> None:
            self._samples.append(sample)
            idle.append(connection)
            self._release()

        self._busy = 1
        while (due := due + chance.expovariate(rate)) < begin + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if not idle:
                idle += (late := await self._connect(1))
                everyone += late
            self._busy += 1
            # The wait counts from the moment at which the call was due.
            idle.pop().ask(next(source), due, take_sample, self._fail)
        self._release()
        return await self._await_samples(everyone)

    async def _connect(self, number: int) -> list[Connection]:
        loop = asyncio.get_running_loop()
        connections: list[Connection] = []
        for _ in range(number):
            _, connection = await loop.create_connection(
                lambda: Connection(self._target.recorded), "127.0.0.1", self._target.port
            )
            connections.append(connection)
        return connections

    async def _await_samples(self, connections: list[Connection]) -> list[Sample]:
        try:
            await self._over
        finally:
            for connection in connections:
                connection.close()
        return self._samples

    def _release(self) -> None:
        self._busy -= 1
        if self._busy == 0 and not self._over.done():
            self._over.set_result(None)

    def _fail(self, why: str) -> None:
        if not self._over.done():
            self._over.set_exception(RuntimeError(f"port {self._target.port}: {why}"))
