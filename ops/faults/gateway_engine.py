"""A scripted engine: a real HTTP server that answers as the request tells it, even wrongly. It
speaks the embedded engine's dialect and passes the gateway's proof. Its text follows from the last
message alone. The field `script` of a request holds:

    mark      key of the engine's counts
    words     number of words of the answer
    pace_ms   milliseconds between two pieces
    bytes     filler per word
    tool      whether it calls `look_up`
    held      whether the stream waits in its middle for `Engine.released`
    fault     one of FAULTS, which strikes in the middle of a stream or instead of a whole answer
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Self

Json = dict[str, Any]

FAULTS: Final = ("cut", "reset", "garbage", "stall", "nonsense")
"""An end without the last chunk; a connection reset; bytes that are not HTTP; no more bytes; a
piece that is not JSON."""

MODEL: Final = "scripted"
_PROMPT: Final = [1, 2, 3]


@dataclass(slots=True)
class EngineCounts:
    """Counts of the engine's requests by their mark."""

    asked: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)
    """Mark -> answers whose reader left before the end."""


class Engine:
    """A server in a thread of this process."""

    def __init__(self, model: str = MODEL) -> None:
        """`model` is the served name. Calls for another name are refused, as real engines do."""
        self.heard = EngineCounts()
        self.released = threading.Event()
        self.released.set()
        self.listed = threading.Event()
        """Requests for the list of models wait until this event is set."""
        self.listed.set()
        self._model = model
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def url(self) -> str:
        """Return the URL for `--upstream`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _request(reader)) is not None:
                if not await self._answer(*request, reader, writer):
                    return
        except (OSError, asyncio.IncompleteReadError):
            return  # the client is gone
        finally:
            writer.close()

    async def _answer(
        self, path: str, body: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request; return whether the connection is reusable."""
        if path == "/v1/models":
            while not self.listed.is_set():
                await asyncio.sleep(0.01)
            card = {"id": self._model, "object": "model", "owned_by": "kintsugi"}
            return await _whole(writer, {"object": "list", "data": [card]})
        if body.get("model") not in (None, self._model):
            error = {"message": f"the model {body['model']!r} does not exist"}
            return await _whole(writer, {"error": error}, "404 Not Found")
        if path == "/v1/completions":
            return await _whole(writer, answer_proof(body))
        if "structured_outputs" in body:
            error = {"message": "this engine has no grammars"}
            return await _whole(writer, {"error": error}, "400 Bad Request")
        script = body.get("script") or {}
        mark = str(script.get("mark"))
        self.heard.asked[mark] += 1
        work = asyncio.create_task(self._send_answer(writer, body, script))
        # Clients do not pipeline, so data or an end here means that the client has left.
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not isinstance(work.exception(), OSError):
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            self.heard.finished[mark] += 1
            return work.result()
        self.heard.cancelled[mark] += 1
        work.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
        return False

    async def _send_answer(self, writer: asyncio.StreamWriter, body: Json, script: Json) -> bool:
        """Answer a call; return whether the connection is reusable."""
        fault = script.get("fault")
        if not body.get("stream"):
            await asyncio.sleep(script.get("pace_ms", 0) * script.get("words", 1) / 1000)
            if fault:
                return await _inject_fault(writer, fault)
            return await _whole(writer, _document(body, script))
        writer.write(_head("content-type: text/event-stream", "transfer-encoding: chunked"))
        pieces = list(_pieces(body, script))
        async for number, piece in _pace(pieces, script.get("pace_ms", 0)):
            if number == len(pieces) // 2:
                if fault == "nonsense":
                    await _piece(writer, b'{"choices": [')
                elif fault:
                    return await _inject_fault(writer, fault)
                await self._wait_for_release(script)
            await _piece(writer, json.dumps(piece).encode())
        # One write: a client may close after [DONE], and must not count as cancelled.
        await _piece(writer, b"[DONE]", b"0\r\n\r\n")
        return True

    async def _wait_for_release(self, script: Json) -> None:
        while script.get("held") and not self.released.is_set():
            await asyncio.sleep(0.01)


def answer_to(messages: list[Any], choice: int, words: int, filler: int = 0) -> str:
    """Return the engine's text for these messages."""
    seed = json.dumps([messages[-1:], choice])
    return "".join(_word(seed, number) + "." * filler for number in range(words))


def build_tool_call(messages: list[Any], choice: int) -> Json:
    """Return the engine's tool call for these messages."""
    name = _word(json.dumps([messages[-1:], choice]), 0).strip()
    return {"id": f"call-{name}", "name": "look_up", "arguments": json.dumps({"word": name})}


def _word(seed: str, number: int) -> str:
    return blake2b(f"{seed} {number}".encode(), digest_size=3).hexdigest() + " "


async def _request(reader: asyncio.StreamReader) -> tuple[str, Json] | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return first.split()[1], json.loads(body or b"{}")


async def _pace(pieces: list[Json], pace_ms: float) -> AsyncIterator[tuple[int, Json]]:
    for number, piece in enumerate(pieces):
        await asyncio.sleep(pace_ms / 1000)
        yield number, piece


async def _inject_fault(writer: asyncio.StreamWriter, fault: str) -> bool:
    if fault == "reset":
        writer.transport.abort()
    elif fault == "stall":
        await asyncio.Event().wait()
    elif fault == "nonsense":
        writer.write(
            _head("content-type: application/json", "content-length: 13") + b'{"choices": ['
        )
        await writer.drain()
    elif fault == "garbage":
        writer.write(b"\x00\xffno protocol of anybody's\r\n\r\n" * 3)
        await writer.drain()
    else:
        # End a stream cleanly one chunk early; a whole answer has no valid end.
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    return False


async def _piece(writer: asyncio.StreamWriter, data: bytes, end: bytes = b"") -> None:
    event = b"data: " + data + b"\n\n"
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n" + end)
    await writer.drain()


async def _whole(writer: asyncio.StreamWriter, document: Json, status: str = "200 OK") -> bool:
    body = json.dumps(document).encode()
    length = f"content-length: {len(body)}"
    writer.write(_head("content-type: application/json", length, status=status) + body)
    await writer.drain()
    return True


def _head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode()


def _document(body: Json, script: Json) -> Json:
    choices = []
    for number in range(body.get("n") or 1):
        text, call = _content(body, script, number)
        message: Json = {"role": "assistant", "content": text or None}
        if call is not None:
            message["tool_calls"] = [_tool_call(call)]
        finish = "tool_calls" if call else "stop"
        choice = {"index": number, "message": message, "finish_reason": finish}
        choices.append(choice | _exact(body, script.get("words", 1)))
    written = len(choices) * script.get("words", 1)
    usage = {"prompt_tokens": len(_PROMPT), "completion_tokens": written}
    usage["total_tokens"] = sum(usage.values())
    return _common(body, "chat.completion") | {"choices": choices, "usage": usage}


def _pieces(body: Json, script: Json) -> Iterator[Json]:
    for number in range(body.get("n") or 1):
        text, call = _content(body, script, number)
        yield _chunk(body, number, {"role": "assistant", "content": ""})
        if call is not None:
            head, rest = call["arguments"][:5], call["arguments"][5:]
            yield _chunk(body, number, {"tool_calls": [_tool_call(call | {"arguments": head})]})
            more = {"index": 0, "function": {"arguments": rest}}
            yield _chunk(body, number, {"tool_calls": [more]})
        # Each word ends with a blank, then filler.
        for word in text.replace(" ", " \x00").split("\x00"):
            if word:
                yield _chunk(body, number, {"content": word}, words=1)
        yield _chunk(body, number, {}, finish="tool_calls" if call else "stop", words=1)


def _content(body: Json, script: Json, number: int) -> tuple[str, Json | None]:
    if script.get("tool"):
        return "", build_tool_call(body["messages"], number)
    words, filler = script.get("words", 1), script.get("bytes", 0)
    return answer_to(body["messages"], number, words, filler), None


def _tool_call(call: Json) -> Json:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"index": 0, "id": call["id"], "type": "function", "function": function}


def _chunk(body: Json, number: int, delta: Json, finish: str | None = None, words: int = 0) -> Json:
    choice: Json = {"index": number, "delta": delta, "finish_reason": finish}
    if words:
        choice |= _exact(body, words)
    return _common(body, "chat.completion.chunk") | {"choices": [choice]}


def _exact(body: Json, words: int) -> Json:
    fields: Json = {}
    if body.get("return_token_ids"):
        fields["token_ids"] = list(range(words))
    if body.get("logprobs"):
        entry = {"token": "w", "logprob": -0.5, "bytes": None, "top_logprobs": []}
        fields["logprobs"] = {"content": [entry] * words}
    return fields


def _common(body: Json, kind: str) -> Json:
    common: Json = {"id": "scripted", "object": kind, "created": 0, "model": MODEL}
    return common | ({"prompt_token_ids": _PROMPT} if body.get("return_token_ids") else {})


def answer_proof(body: Json) -> Json:
    """Return the answer to the gateway's proof of an engine."""
    drawn = 0.0 if body.get("top_k") == 1 else -0.5
    logprobs = {
        "tokens": ["a"],
        "token_logprobs": [drawn],
        "top_logprobs": [{"a": -0.5, "b": -1.0}],
        "text_offset": [0],
    }
    choices = [
        {"index": n, "text": "a", "finish_reason": "length", "token_ids": [7], "logprobs": logprobs}
        for n, _ in enumerate(body["prompt"])
    ]
    return _common(body, "text_completion") | {"choices": choices}
