"""The engine of the benchmark: it answers in vLLM's format at fixed times and almost without cost.

    python -m ops.bench.gateway.upstream        prints its port

The first token comes FIRST_SECONDS after the request, each other NEXT_SECONDS later; headers of a
stream come at once. Token ids and log probabilities come on request. It passes the gateway's
probes.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from ops.faults.gateway_engine import answer_proof

MODEL: Final = "bench"
FIRST_SECONDS: Final = 0.020
NEXT_SECONDS: Final = 0.002

WORDS: Final = (
    "The", " order", " was", " found", ",", " and", " the", " refund", " of", " 12", " dollars",
    " is", " on", " its", " way", ".",
)  # fmt: skip
ANSWER: Final = "".join(WORDS)

_BYTES_PER_TOKEN: Final = 4

_HEAD: Final = "HTTP/1.1 200 OK\r\ncontent-type: {}\r\n{}\r\n\r\n"
_STREAM_HEAD: Final = _HEAD.format(
    "text/event-stream; charset=utf-8", "transfer-encoding: chunked"
).encode()
_END: Final = b"0\r\n\r\n"

Json = dict[str, Any]


def _scores(words: Sequence[str]) -> Json:
    return {
        "content": [
            {"token": word, "logprob": -0.25, "bytes": list(word.encode()), "top_logprobs": []}
            for word in words
        ]
    }


def _usage(prompt_bytes: int) -> Json:
    prompt = prompt_bytes // _BYTES_PER_TOKEN
    return {
        "prompt_tokens": prompt, "total_tokens": prompt + len(WORDS),
        "completion_tokens": len(WORDS),
    }  # fmt: skip


def _prompt_ids(ids: bool, prompt_bytes: int) -> list[int] | None:
    return list(range(1000, 1000 + prompt_bytes // _BYTES_PER_TOKEN)) if ids else None


@cache
def whole(ids: bool, logprobs: bool, prompt_bytes: int) -> bytes:
    """Return a whole answer of the chat endpoint."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": ANSWER, "refusal": None, "tool_calls": []},
        "logprobs": _scores(WORDS) if logprobs else None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": list(range(len(WORDS))) if ids else None,
    }
    document = {
        "id": "chatcmpl-bench", "object": "chat.completion", "created": 1_767_225_600,
        "model": MODEL, "choices": [choice], "usage": _usage(prompt_bytes),
        "prompt_token_ids": _prompt_ids(ids, prompt_bytes),
    }  # fmt: skip
    return _response(document)


@cache
def chunks(ids: bool, logprobs: bool, prompt_bytes: int) -> tuple[bytes, ...]:
    """Return the pieces of a streamed answer, one for each token."""
    opening = {"prompt_token_ids": _prompt_ids(ids, prompt_bytes)} if ids else {}
    first = _chunk({"role": "assistant", "content": ""}, None, None, None, opening)
    tokens = [
        _chunk(
            {"content": word},
            _scores([word]) if logprobs else None,
            "stop" if place == len(WORDS) - 1 else None,
            [place] if ids else None,
            {},
        )
        for place, word in enumerate(WORDS)
    ]
    return (first + tokens[0], *tokens[1:-1], tokens[-1] + _frame(b"data: [DONE]\n\n") + _END)


def _chunk(
    delta: Json, scores: Json | None, finish: str | None, ids: list[int] | None, more: Json
) -> bytes:
    choice = {
        "index": 0, "delta": delta, "logprobs": scores, "finish_reason": finish, "token_ids": ids,
    }  # fmt: skip
    document = {
        "id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_767_225_600,
        "model": MODEL, "choices": [choice], **more,
    }  # fmt: skip
    return _frame(b"data: " + _encode(document) + b"\n\n")


def models() -> bytes:
    """Return the list of models."""
    card = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "parent": None}
    return _response({"object": "list", "data": [card]})


def _response(document: Json) -> bytes:
    body = _encode(document)
    return _HEAD.format("application/json", f"content-length: {len(body)}").encode() + body


def _encode(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _frame(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Connection(asyncio.Protocol):
    """A client connection; each request has a content-length."""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a TCP connection"
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = _content_length(head)
        if len(rest) < length:
            return
        self._received = rest[length:]
        self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        line = head.partition(b"\r\n")[0]
        if line.startswith(b"GET /v1/models"):
            return self._write(models())
        request = json.loads(body)
        if line.startswith(b"POST /v1/completions"):
            return self._write(_response(answer_proof(request)))
        asked = (bool(request.get("return_token_ids")), bool(request.get("logprobs")))
        prompt = len(request["messages"]) * 256
        if request.get("stream"):
            self._stream(chunks(*asked, prompt))
        else:
            last = FIRST_SECONDS + NEXT_SECONDS * (len(WORDS) - 1)
            self._after(last, whole(*asked, prompt))
        return None

    def _stream(self, pieces: Sequence[bytes]) -> None:
        self._write(_STREAM_HEAD)
        for place, piece in enumerate(pieces):
            self._after(FIRST_SECONDS + NEXT_SECONDS * place, piece)

    def _after(self, seconds: float, data: bytes) -> None:
        asyncio.get_running_loop().call_later(seconds, self._write, data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
