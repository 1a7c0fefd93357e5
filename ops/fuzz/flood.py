"""An engine process that answers at once, with the answer that the request names.

    python -m ops.fuzz.flood PORT

Its answers are never trained on, because the engine passes no proof. A request's first field `user`
names one of ANSWERS; any other gets a short answer. The rest is not parsed, so that it takes no
time.
"""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

BYTES: Final = 30 << 20

_USER: Final = re.compile(rb'"user": ?"([a-z_]+)"')
_MANY: Final = 90_000
"""Number of choices or tool calls in an answer; each has three brackets."""
_EVENTS: Final = 100_000
_DONE: Final = b"data: [DONE]\n\n"
_PIECE: Final = 64 << 10

Answer = tuple[bool, list[bytes]]
"""(whether the answer is a stream, its pieces)."""


def _whole(document: Any) -> Answer:
    return False, [json.dumps(document, separators=(",", ":")).encode()]


def _say(**message: Any) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return _whole({"id": "1", "object": "chat.completion", "choices": [choice]})


def _calls(count: int, arguments: str) -> list[Any]:
    function = {"name": "look_up", "arguments": arguments}
    return [{"id": f"{n}", "type": "function", "function": function} for n in range(count)]


def _choices(count: int) -> list[Any]:
    message = {"role": "assistant", "content": "x"}
    return [{"index": n, "message": message, "finish_reason": "stop"} for n in range(count)]


def _delta(**delta: Any) -> bytes:
    document = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _stream(event: bytes, count: int) -> Answer:
    many = max(1, _PIECE // len(event))
    return True, [*[event * many] * (count // many), event * (count % many), _DONE]


ANSWERS: Final[Mapping[str, Callable[[], Answer]]] = {
    "text": lambda: _say(content="x" * BYTES),
    "choices": lambda: _whole({"choices": _choices(_MANY)}),
    "calls": lambda: _say(content="x" * (BYTES - 80 * _MANY), tool_calls=_calls(_MANY, "{}")),
    "arguments": lambda: _say(tool_calls=_calls(1, f"[{'[],' * (BYTES // 3)}[]]")),
    "values": lambda: _say(content=None, numbers=[1.5] * 1_400_000),
    "too_many": lambda: _whole({"choices": [{}] * 1_000_000}),
    "stream_text": lambda: _stream(_delta(content="x" * 16_000), BYTES // 16_000),
    "stream_words": lambda: _stream(_delta(content="x"), _EVENTS),
    "stream_empty": lambda: _stream(b"data:{}\n\n", _EVENTS),
    "stream_comments": lambda: _stream(b":\n\n", _EVENTS),
    "stream_calls": lambda: _stream(_delta(tool_calls=_calls(250, "{}")), _MANY // 250),
    "stream_event": lambda: _stream(_delta(content="x" * BYTES), 1),
    "stream_values": lambda: _stream(_delta(numbers=[1.5] * 1_400_000), 1),
    "stream_too_many": lambda: _stream(_delta(numbers=[[]] * 500_000), 1),
    "stream_endless": lambda: (True, [b"data: ", *[b"x" * _PIECE] * ((100 << 20) // _PIECE)]),
    "stream_lines": lambda: (
        True,
        [*[b"data:\n" * (_PIECE // 6)] * (BYTES // _PIECE), b"\n", _DONE],
    ),
}


async def _serve(port: int) -> None:
    # Make the answers before the first request, so that other calls do not wait for them.
    answers = {name: make() for name, make in ANSWERS.items()}

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _answer(reader, writer, answers):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # the gateway closed the connection
        finally:
            writer.close()

    server = await asyncio.start_server(on_connect, "127.0.0.1", port)
    await server.serve_forever()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Mapping[str, Answer]
) -> bool:
    """Answer a request; return whether the connection is reusable."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = re.search(r"content-length: (\d+)", head)
    left, begin = int(length[1]) if length else 0, b""
    while left:
        data = await reader.read(min(left, 1 << 20))
        if not data:
            return False
        begin, left = begin or data[:200], left - len(data)
    named = _USER.search(begin)
    answer = answers.get(named[1].decode() if named else "")
    if " /v1/models" in head:
        card = {"id": "flood", "object": "model", "owned_by": "kintsugi"}
        streamed, pieces = _whole({"object": "list", "data": [card]})
    else:
        streamed, pieces = _say(content="Hello.") if answer is None else answer
    kind = b"text/event-stream" if streamed else b"application/json"
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: " + kind)
    writer.write(b"\r\n\r\n")
    for piece in filter(None, pieces):
        writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
