"""Clients that stream answers in sessions of one call, as a process of its own.

    python -m ops.bench.serving.clients URL [--clients 8] [--tokens 48]

They print BEGUN when each has its first answer, ask until stdin ends, finish what they began, and
print what they saw since then as one JSON document. In a process of their own, so that nothing but
engine and gateway delays what they time. Every call has a known length (`ignore_eos`), so one that
came short is seen:

    failed      no status 200, a broken connection, no JSON, an error within the stream; or the
                session could not be ended
    blocked     no token within BLOCKED_SECONDS
    aborted     it began and has no [DONE], or ended for another reason than its length
    truncated   it ended in order, with fewer tokens than were asked for

A gap is the time between two chunks with text of one answer.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from uuid import uuid4

import httpx2

BLOCKED_SECONDS: Final = 5.0

BEGUN: Final = "begun"

_READ_SECONDS: Final = 120.0
_SHOWN: Final = 5
_QUESTIONS: Final = ("Where is my order?", "Cancel order #W4711.", "What can I return?")

Json = dict[str, Any]


@dataclass(slots=True)
class Call:
    """What a client saw of one call."""

    begun: float
    adapter: str | None = None
    recorded: bool = False
    texts: list[float] = field(default_factory=list)
    """When each chunk with text came."""
    finish: str | None = None
    tokens: int | None = None
    done: bool = False
    error: str | None = None

    @property
    def first(self) -> float | None:
        """Seconds to the first token."""
        return self.texts[0] - self.begun if self.texts else None

    @property
    def gaps(self) -> list[float]:
        """Between chunks, in seconds."""
        return [b - a for a, b in zip(self.texts, self.texts[1:], strict=False)]

    def verdict(self, asked: int) -> str:
        """`ok`, or what went wrong."""
        if self.error is not None:
            return "failed"
        if self.first is None or self.first > BLOCKED_SECONDS:
            return "blocked"
        if not self.done or self.finish != "length":
            return "aborted"
        return "ok" if self.tokens == asked else "truncated"


def summary(calls: Sequence[Call], asked: int, seconds: float) -> Json:
    """What all clients saw. Times in milliseconds."""
    verdicts = Counter(call.verdict(asked) for call in calls)
    gaps = sorted(gap for call in calls for gap in call.gaps)
    firsts = sorted(call.first for call in calls if call.first is not None)
    adapters = Counter(call.adapter or "" for call in calls)
    return {
        "seconds": round(seconds, 2),
        "calls": len(calls),
        **{name: verdicts[name] for name in ("failed", "blocked", "aborted", "truncated")},
        "unrecorded": sum(not call.recorded for call in calls),
        "tokens": sum(call.tokens or 0 for call in calls),
        "longest_gap_ms": _ms(gaps, 1.0),
        "gap_p999_ms": _ms(gaps, 0.999),
        "gap_p50_ms": _ms(gaps, 0.5),
        "longest_first_ms": _ms(firsts, 1.0),
        "first_p50_ms": _ms(firsts, 0.5),
        "adapters": dict(adapters),
        "wrong": [
            {"verdict": call.verdict(asked), "error": call.error, "adapter": call.adapter}
            for call in calls
            if call.verdict(asked) != "ok"
        ][:_SHOWN],
    }


def _ms(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    return round(values[min(len(values) - 1, int(share * len(values)))] * 1000, 1)


async def ask(client: httpx2.AsyncClient, session: str, question: str, tokens: int) -> Call:
    """One call, whatever becomes of it."""
    call = Call(time.perf_counter())
    body = {
        "model": "agent", "messages": [{"role": "user", "content": question}], "stream": True,
        "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = {"x-kintsugi-session": session}
    try:
        async with client.stream("POST", "/chat/completions", json=body, headers=headers) as answer:
            call.adapter = answer.headers.get("x-kintsugi-adapter")
            call.recorded = answer.headers.get("x-kintsugi-recorded") == "yes"
            if answer.status_code != 200:
                call.error = f"{answer.status_code}: {(await answer.aread())[:300]!r}"
                return call
            async for chunk in _chunks(answer, call):
                _take(call, chunk)
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        call.error = f"{type(error).__name__}: {error}"
    return call


async def _end(client: httpx2.AsyncClient, session: str, call: Call) -> None:
    """End the session at the gateway, so that no other call of it is waited for."""
    try:
        (await client.post(f"/sessions/{session}/end")).raise_for_status()
    except httpx2.HTTPError as error:
        call.error = call.error or f"its session does not end: {type(error).__name__}: {error}"


async def _chunks(answer: httpx2.Response, call: Call) -> AsyncIterator[Json]:
    async for line in answer.aiter_lines():
        if line == "data: [DONE]":
            call.done = True
        elif line.startswith(": x-kintsugi-recorded: no"):
            call.recorded = False
        elif line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _take(call: Call, chunk: Json) -> None:
    if "error" in chunk:
        call.error = json.dumps(chunk["error"])[:300]
        return
    if chunk.get("usage"):
        call.tokens = chunk["usage"]["completion_tokens"]
    for choice in chunk["choices"]:
        if choice["delta"].get("content"):
            call.texts.append(time.perf_counter())
        call.finish = choice.get("finish_reason") or call.finish


async def _talk(
    url: str, number: int, tokens: int, begun: asyncio.Barrier, stop: asyncio.Event
) -> list[Call]:
    calls: list[Call] = []
    async with httpx2.AsyncClient(base_url=url, timeout=_READ_SECONDS, trust_env=False) as client:
        for turn in count():
            if stop.is_set():
                break
            question = _QUESTIONS[(number + turn) % len(_QUESTIONS)]
            session = uuid4().hex
            calls.append(await ask(client, session, question, tokens))
            await _end(client, session, calls[-1])
            if turn == 0:
                await begun.wait()
    return calls


async def _all(url: str, clients: int, tokens: int) -> Json:
    stop, begun = asyncio.Event(), asyncio.Barrier(clients + 1)
    reader = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    reader.add_done_callback(lambda _: stop.set())
    talks = [
        asyncio.create_task(_talk(url, number, tokens, begun, stop)) for number in range(clients)
    ]
    await begun.wait()
    print(BEGUN, flush=True)
    since = time.perf_counter()
    calls = [
        call for batch in await asyncio.gather(*talks) for call in batch if call.begun >= since
    ]
    return summary(calls, tokens, time.perf_counter() - since)


def main() -> None:
    """Ask until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", metavar="URL", help="of the gateway; ends in /v1")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(_all(options.url, options.clients, options.tokens))))


if __name__ == "__main__":
    main()
