"""Engines that say what no engine says, and engines that never stop.

    python -m ops.faults.engine_liar --count 100

A gateway over an engine that answers each call with the next lie: an index that was not asked for,
a log-probability of 1e300, arrays of two lengths, statuses that HTTP does not have, two answers in
one segment, bodies and heads without end, gzip. Between them it tells the truth. It also streams
what engines of odd habits do: calls on one index, usage that is not the number of token ids, usage
beside an empty choice, contents in parts. Passes when a client got what the engine said first, or
an error of the gateway where that is no answer of HTTP or has no end; when every call ended in the
log, and only those of the truth may be trained on; when habits are recorded as what they mean; when
no stored number is infinite; and when the gateway's memory stays within BOUND_BYTES above its
start.
"""

import asyncio
import itertools
import json
import math
import random
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from events.log import read_stream
from events.rollouts import CallEnded
from events.streams import ROLLOUTS
from ops.command_line import run_command
from ops.faults.gateway_audit import open_log
from ops.faults.gateway_engine import Engine, Json
from ops.faults.gateway_scene import Gateway

BOUND_BYTES: Final = 512 << 20
"""Limit on the gateway's growth in memory: a call may hold 128 MiB of a stream, or 64 of a body."""

_MIB: Final = 1 << 20
_ENDLESS_MIB: Final = 400
"""MiB after which the engine ends an endless answer, if the gateway has not ended it before."""

_HUGE: Final = 10**400
_TRUTH: Final = "the truth"


def _choice(**changes: Any) -> Json:
    message = {"role": "assistant", "content": "ab"}
    scores = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]}
    honest = {"index": 0, "message": message, "token_ids": [5, 6], "logprobs": scores,
              "finish_reason": "stop"}  # fmt: skip
    return honest | changes


def _build_logprobs(*logprobs: Any) -> Json:
    return {"content": [{"token": "a", "logprob": logprob} for logprob in logprobs]}


def _build_call_message(**call: Any) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": [call]}


_DEEP: Final = '{"a":' * 900 + "1" + "}" * 900

LIES: Final[Mapping[str, list[Any]]] = {
    _TRUTH: [_choice()],
    "index -1": [_choice(index=-1)],
    "index 7": [_choice(index=7)],
    "index 10**400": [_choice(index=_HUGE)],
    "index true": [_choice(index=True)],
    "index text": [_choice(index="0")],
    "index list": [_choice(index=[])],
    "index missing": [_choice(index=None)],
    "index twice": [_choice(), _choice(token_ids=[7, 8])],
    "choice text": [_choice(), "x"],
    "logprob 1e300": [_choice(logprobs=_build_logprobs(1e300, -0.5))],
    "logprob -1e300": [_choice(logprobs=_build_logprobs(-1e300, -0.5))],
    "logprob 0.7": [_choice(logprobs=_build_logprobs(0.7, -0.5))],
    "logprob 10**400": [_choice(logprobs=_build_logprobs(_HUGE, -0.5))],
    "logprob infinite": [_choice(logprobs=_build_logprobs(float("-inf"), -0.5))],
    "logprob nan": [_choice(logprobs=_build_logprobs(float("nan"), -0.5))],
    "logprob true": [_choice(logprobs=_build_logprobs(True, -0.5))],
    "logprob text": [_choice(logprobs=_build_logprobs("-0.5", -0.5))],
    "logprobs short": [_choice(logprobs=_build_logprobs(-0.5))],
    "logprobs long": [_choice(logprobs=_build_logprobs(-0.5, -0.5, -0.5))],
    "logprobs list": [_choice(logprobs=[-0.5, -0.5])],
    "id -1": [_choice(token_ids=[5, -1])],
    "id 2**31": [_choice(token_ids=[5, 2**31])],
    "id 10**400": [_choice(token_ids=[5, _HUGE])],
    "id fraction": [_choice(token_ids=[5, 6.0])],
    "id true": [_choice(token_ids=[5, True])],
    "ids text": [_choice(token_ids="56")],
    "call index -1": [_choice(message=_build_call_message(index=-1, function={"name": "a"}))],
    "call text": [_choice(message={"role": "assistant", "tool_calls": ["x"]})],
    "call name list": [_choice(message=_build_call_message(index=0, function={"name": []}))],
    "arguments deep": [
        _choice(message=_build_call_message(index="x", function={"name": "a", "arguments": _DEEP}))
    ],
    "content list": [_choice(message={"role": "assistant", "content": [1]})],
    "message text": [_choice(message="ab")],
    "finish number": [_choice(finish_reason=1)],
    "no choices": [],
}


def _stream_calls(*calls: Json) -> Json:
    return _choice(
        message={"tool_calls": list(calls)}, token_ids=[5] * len(calls), finish_reason=None,
        logprobs=_build_logprobs(*[-0.5] * len(calls)),
    )  # fmt: skip


def _build_call(arguments: str | None, name: str | None = None, id: str | None = None) -> Json:
    return {"index": 0, "id": id, "function": {"name": name, "arguments": arguments}}


_END: Final = _choice(message={}, finish_reason="tool_calls")
_TWO_CALLS: Final = [
    {"name": "a", "arguments": {"x": 1}, "id": "A"},
    {"name": "b", "arguments": {"y": 2}, "id": "B"},
]


@dataclass(frozen=True, slots=True)
class Habit:
    """An unusual stream that some engine writes, and the record that it must become."""

    choices: list[Json]
    message: Json
    """Fields of the recorded message."""
    tokens: int
    usage_beside: Json | None = None
    """Choice in the chunk with the usage; None for a chunk without choices."""
    trainable: bool = True

    def chunks(self) -> list[Json]:
        """Return the chunks of the stream."""
        usage = {"prompt_tokens": 3, "completion_tokens": self.tokens}
        beside = [] if self.usage_beside is None else [self.usage_beside]
        return [
            *(_document([choice], True) for choice in self.choices),
            {"id": "liar", "choices": beside, "usage": usage},
        ]


HABITS: Final[Mapping[str, Habit]] = {
    "two calls on one index": Habit(
        [_stream_calls(_build_call('{"x":1}', "a", "A"), _build_call('{"y":2}', "b", "B")), _END],
        {"tool_calls": _TWO_CALLS}, 4,
    ),
    "two calls on one index in pieces": Habit(
        [*map(_stream_calls, (
            _build_call("", "a", "A"), _build_call('{"x":', None, ""), _build_call("1}"),
            _build_call("", "b", "B"), _build_call('{"y":', None, ""), _build_call("2}"),
        )), _END],
        {"tool_calls": _TWO_CALLS}, 8,
    ),
    "pieces of two calls in turns": Habit(
        [*map(_stream_calls, (
            _build_call('{"x":', "a", "A"), _build_call('{"y":', "b", "B"),
            _build_call("1}", None, "A"), _build_call("2}", None, "B"),
        )), _END],
        {"tool_calls": _TWO_CALLS}, 6,
    ),
    "name and id in each piece": Habit(
        [*map(_stream_calls, (_build_call('{"x":', "a", "A"), _build_call("1}", "a", "A"))), _END],
        {"tool_calls": _TWO_CALLS[:1]}, 4,
    ),
    "an empty id before the real one": Habit(
        [*map(_stream_calls, (_build_call('{"x":', "a", ""), _build_call("1}", "", "A"))), _END],
        {"tool_calls": _TWO_CALLS[:1]}, 4,
    ),
    "arguments of nothing": Habit(
        [_stream_calls(_build_call("", "a", "A")), _END],
        {"tool_calls": [{"name": "a", "arguments": {}, "id": "A"}]}, 3,
    ),
    "a custom tool": Habit(
        [_stream_calls({"index": 0, "id": "A", "type": "custom",
                        "custom": {"name": "a", "input": "ls"}}), _END],
        {"tool_calls": [{"name": "a", "arguments": {"input": "ls"}, "id": "A"}]}, 3,
    ),
    "content in parts": Habit(
        [_choice(message={"content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
            {"type": "text", "text": "Hello."},
        ]})],
        {"content": "Hello.", "reasoning": "Hm."}, 2,
    ),
    "usage beside an empty choice": Habit(
        [_choice()], {"content": "ab"}, 2,
        {"index": 0, "delta": {}, "finish_reason": None, "logprobs": None},
    ),
    "more tokens than ids": Habit([_choice()], {"content": "ab"}, 7, trainable=False),
    "fewer tokens than ids": Habit([_choice()], {"content": "ab"}, 1, trainable=False),
}  # fmt: skip

ABORTED: Final = "aborted"
"""Name of an unended stream of Anthropic's protocol that begins with an uncounted token."""

ENDLESS: Final = ("body", "head", "line", "events", "trailer", "gzip")


STATUSES: Final = ("000", "099", "600", "999")

SPLICED: Final = (b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nspliced", b"HTTP/1.1 1", b"spliced")
"""Bytes that the engine sends after a true answer, in the same TCP segment."""


class Liar(Engine):
    """A scripted engine that answers a call with the lie that its request names."""

    async def _answer(
        self, path: str, body: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if path not in ("/v1/chat/completions", "/v1/messages") or "metadata" not in body:
            return await super()._answer(path, body, reader, writer)
        lie, streamed = body["metadata"]["lie"], bool(body.get("stream"))
        with suppress(ConnectionError):
            async for piece in _tell(lie, streamed):
                writer.write(piece)
                await writer.drain()
        return isinstance(lie, int)


async def _tell(lie: str | int, streamed: bool) -> AsyncIterator[bytes]:
    if isinstance(lie, int):
        yield answer(_TRUTH, streamed).replace(b"connection: close\r\n", b"") + SPLICED[lie]
    elif lie in HABITS:
        yield _encode_stream(*HABITS[lie].chunks())
    elif lie == ABORTED:
        yield _abort()
    elif lie in ENDLESS:
        async for piece in _endless(lie):
            yield piece
    elif lie in STATUSES:
        yield answer(_TRUTH, streamed).replace(b"200 OK", lie.encode())
    else:
        yield answer(lie, streamed)


def document(lie: str, streamed: bool) -> Json:
    """Return the JSON document that the engine answers for a lie."""
    return _document(LIES[lie], streamed)


def _document(told: list[Any], streamed: bool) -> Json:
    choices = [_to_stream_choice(choice) if streamed else choice for choice in told]
    return {"id": "liar", "choices": choices, "prompt_token_ids": [1, 2, 3]}


def _to_stream_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    return {("delta" if name == "message" else name): value for name, value in choice.items()}


def strip_tokens(body: Json) -> Json:
    """Return the body for a client that did not ask for tokens."""
    choices = [
        {name: None if name == "logprobs" else value
         for name, value in choice.items() if name != "token_ids"}
        if isinstance(choice, dict) else choice
        for choice in body["choices"]
    ]  # fmt: skip
    return {"id": body["id"], "choices": choices} | (
        {"usage": body["usage"]} if "usage" in body else {}
    )


def answer(lie: str, streamed: bool) -> bytes:
    """Return the HTTP response of the engine for a lie."""
    told = document(lie, streamed)
    return _encode_stream(told) if streamed else _encode(json.dumps(told).encode())


def _encode_stream(*chunks: Json) -> bytes:
    events = (f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return _encode(f"{''.join(events)}data: [DONE]\n\n".encode(), "text/event-stream")


def _encode(body: bytes, kind: str = "application/json", missing: int = 0) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body) + missing}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


def _abort() -> bytes:
    begun = {"role": "assistant", "content": [], "usage": {"input_tokens": 3, "output_tokens": 1}}
    events = (
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ab"}},
    )
    told = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return _encode("".join(told).encode(), "text/event-stream", missing=1)


async def _endless(lie: str) -> AsyncIterator[bytes]:
    head = "HTTP/1.1 200 OK\r\n"
    kind = "text/event-stream" if lie in ("line", "events") else "application/json"
    rest = f"content-type: {kind}\r\ntransfer-encoding: chunked\r\n"
    if lie == "head":
        yield head.encode()
        for _ in range(_ENDLESS_MIB):
            yield b"a: b\r\n" * (_MIB // 6)
        return
    yield f"{head}{rest}{'content-encoding: gzip' if lie == 'gzip' else 'a: b'}\r\n\r\n".encode()
    if lie == "trailer":
        yield b"2\r\n{}\r\n0\r\n"
        for _ in range(_ENDLESS_MIB):
            yield b"a: b\r\n" * (_MIB // 6)
        return
    piece = b"x" * _MIB
    if lie == "events":
        chunk = {"index": 0, "delta": {"content": "word "}, "token_ids": [70_000] * 20,
                 "logprobs": _build_logprobs(*[-0.123456] * 20), "finish_reason": None}  # fmt: skip
        event = b"data: " + json.dumps({"choices": [chunk]}).encode() + b"\n\n"
        piece = event * (_MIB // len(event))
    for _ in range(_ENDLESS_MIB):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Tell `count` lies, each once before one repeats, and then each endless answer once."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    wrong: list[str] = []
    honest: set[str] = set()
    with ExitStack() as stack:
        engine = stack.enter_context(Liar())
        settings = {"KINTSUGI_GATEWAY__TIMEOUT_SECONDS": "60"}
        gateway = Gateway(folder, [engine.url], settings)
        stack.callback(gateway.kill)
        gateway.start()
        began = gateway.resident_bytes()
        client = stack.enter_context(httpx2.Client(timeout=120))
        ask = Asker(client, gateway.url)
        for lie in _draw_lies(count, chance):
            for streamed in (False, True):
                call, why = ask.ask_lie(lie, streamed)
                wrong += [f"{lie}, streamed {streamed}: {why}"] if why else []
                if lie == _TRUTH:
                    honest.add(call)
        for lie, streamed in itertools.product(STATUSES, (False, True)):
            why = ask.ask_status(lie, streamed)
            wrong += [f"status {lie}, streamed {streamed}: {why}"] if why else []
        for number, streamed in itertools.product(range(len(SPLICED)), (False, True)):
            for told in (number, _TRUTH):
                call, why = ask.ask_lie(told, streamed)
                honest.add(call)
                wrong += [f"splice {number}, streamed {streamed}: {why}"] if why else []
        habits = dict[str, str]()
        for name in HABITS:
            call, why = ask.ask_habit(name)
            habits[call] = name
            wrong += [f"{name}: {why}"] if why else []
        aborted = ask.ask_aborted()
        for lie in ENDLESS:
            why = ask.ask_endless(lie)
            wrong += [f"{lie}: {why}"] if why else []
            call, why = ask.ask_lie(_TRUTH, False)
            honest.add(call)
            wrong += [f"after {lie}: {why}"] if why else []
        grown = gateway.peak_bytes() - began
        status = gateway.stop()
    ended, problems = _read_log(gateway.home)
    trained = {call for call, end in ended.items() if end.trainable}
    honest |= {call for call, name in habits.items() if HABITS[name].trainable}
    wrong += [*problems, *_check_habits(ended, habits)]
    if ended[aborted].completion_tokens is not None:
        wrong.append(f"{ABORTED}: {ended[aborted].completion_tokens} tokens, which nobody counted")
    passed = (
        not wrong and status == 0 and trained == honest and len(ended) == ask.asked
        and grown < BOUND_BYTES
    )  # fmt: skip
    return {
        "fault": "engine that lies", "lies": count, "habits": len(HABITS), "endless": len(ENDLESS),
        "calls": len(ended),
        "trainable": len(trained), "honest": len(honest), "wrong": wrong[:20],
        "grown_mib": grown // _MIB, "seeds": [seed], "passed": passed,
    }  # fmt: skip


def _draw_lies(count: int, chance: random.Random) -> list[str]:
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += chance.sample(sorted(LIES), len(LIES))
    return drawn[:count]


class Asker:
    """A client that asks for lies and checks the gateway's answers."""

    def __init__(self, client: httpx2.Client, url: str) -> None:
        self._client = client
        self._url = f"{url}/chat/completions"
        self.asked = 0

    def _body(self, lie: str | int, streamed: bool) -> Json:
        self.asked += 1
        messages = [{"role": "user", "content": f"{self.asked}"}]
        return {"messages": messages, "stream": streamed, "metadata": {"lie": lie}}

    def ask_lie(self, lie: str | int, streamed: bool) -> tuple[str, str]:
        """Return (call, error); the error is "" for a right answer. A number in `lie` asks for a
        true answer with that splice."""
        reply = self._client.post(self._url, json=self._body(lie, streamed))
        call = reply.headers.get("x-kintsugi-call", "")
        if reply.status_code != 200 or reply.headers.get("x-kintsugi-recorded") != "yes":
            return call, f"{reply.status_code} {reply.text[:200]}"
        text = reply.text
        if streamed:
            events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
            if events[-1] != "[DONE]" or len(events) > 2:
                return call, f"events {events[1:]!r}"[:200]
            text = events[0] if len(events) == 2 else ""
        # Compare as JSON text, because NaN differs from itself.
        said = document(_TRUTH if isinstance(lie, int) else lie, streamed)
        expected = json.dumps(strip_tokens(said))
        got = json.dumps(json.loads(text)) if text else ""
        return call, "" if got == expected else f"the client got {got[:200]}"

    def ask_status(self, lie: str, streamed: bool) -> str:
        """Ask for a status that HTTP does not define. Return an error, or "" for a right answer."""
        reply = self._client.post(self._url, json=self._body(lie, streamed))
        right = reply.status_code == 502 and "error" in reply.json()
        return "" if right else f"{reply.status_code} {reply.text[:200]}"

    def ask_habit(self, name: str) -> tuple[str, str]:
        """Ask for a habit's stream. Return (call, error); the error is "" for a right stream."""
        reply = self._client.post(self._url, json=self._body(name, True))
        *chunks, told = HABITS[name].chunks()
        expected = [*chunks, told] if told["choices"] else chunks
        events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        got = [json.loads(event) for event in events if event != "[DONE]"]
        right = got == list(map(strip_tokens, expected)) and events[-1] == "[DONE]"
        return reply.headers["x-kintsugi-call"], "" if right else f"the client got {events!r}"[:200]

    def ask_aborted(self) -> str:
        """Ask for a stream in Anthropic's protocol that does not end. Return its call."""
        url = self._url.replace("chat/completions", "messages")
        body = self._body(ABORTED, True) | {"max_tokens": 8}
        with self._client.stream("POST", url, json=body) as reply, suppress(httpx2.ProtocolError):
            reply.read()
        return reply.headers["x-kintsugi-call"]

    def ask_endless(self, lie: str) -> str:
        """Ask for an endless answer. Return an error, or "" if it ends correctly for the client."""
        streamed = lie in ("line", "events")
        with self._client.stream("POST", self._url, json=self._body(lie, streamed)) as reply:
            read = bytearray()
            size = 0
            for piece in reply.iter_raw():
                size += len(piece)
                read = (read + piece)[-2000:]
        # Every stream is cut off: the client must get an error and no [DONE].
        if reply.status_code == 200 and (not streamed or b"[DONE]" in read):
            return f"200 and {bytes(read[-200:])!r} after {size:,} bytes"
        if reply.status_code == 200 and b'"error"' not in read:
            return f"no error after {size:,} bytes"
        return "" if reply.status_code in (200, 502, 503) else f"status {reply.status_code}"


def _check_habits(ended: Mapping[str, CallEnded], habits: Mapping[str, str]) -> Iterator[str]:
    for call, name in habits.items():
        content = ended[call].content
        assert content is not None, "bodies are whole"
        message = content.messages[0].model_dump(mode="json", exclude_none=True)
        habit = {"role": "assistant", **HABITS[name].message}
        recorded = {field: value for field, value in message.items() if value not in ("", [])}
        if recorded != habit or ended[call].completion_tokens != HABITS[name].tokens:
            yield f"{name}: {recorded} of {ended[call].completion_tokens} tokens"


def _read_log(home: Path) -> tuple[dict[str, CallEnded], list[str]]:
    ended, wrong = dict[str, CallEnded](), list[str]()
    with open_log(home) as (log, bodies):
        for record in read_stream(log, ROLLOUTS.name):
            whole = bodies.whole(record)
            event, arrays = whole.event, whole.arrays
            if not isinstance(event.data, CallEnded):
                continue
            ended[event.data.call] = event.data
            if not event.data.trainable and arrays:
                wrong.append(f"{event.data.call} is untrainable and has arrays")
            if not all(map(_is_finite, arrays.values())):
                wrong.append(f"{event.data.call} holds what is no number")
    return ended, wrong


def _is_finite(values: "array[Any]") -> bool:
    return all(map(math.isfinite, values))


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
