"""Check that clients cannot see what the gateway adds to requests for a stream.

    python -m ops.fuzz.streams [--count 10000] [--seed 0]

Scripted engines of several dialects answer the same random request twice: as the client sent it,
and with the gateway's additions (token ids, log-probabilities, usage). The second answer goes
through the gateway's capture. OpenAI's own client reads both: each chunk and the complete answer
must be the same. The gateway knows of an engine only what its proof shows. Prints one line of JSON
with the number of streams of each dialect and the first differences; exit code 1 if any.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx2
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from ops.command_line import run_command
from producers.gateway.capture.answer import make_capture
from producers.gateway.http import sse
from producers.gateway.http.wire import Dialect, ModelRequest, encode_json
from producers.gateway.routing.engine_proof import Probes, run_probes

Json = dict[str, Any]

_MOST_REPORTED: Final = 5


@dataclass(frozen=True, slots=True)
class Style:
    """How an engine writes a stream."""

    name: str
    usage_in: str = "bare"
    """Chunk with the usage: `bare` (no choices), `silent` (an empty choice), `end`, or `each`."""
    usage_unasked: bool = False
    """Whether clients get usage without asking."""
    null_usage: bool = False
    """Whether the other chunks of a stream with usage have `usage: null`."""
    null_ids: bool = False
    """Whether token ids are null if they were not requested; otherwise they are absent."""
    null_words: bool = False
    """Whether a delta has all fields of a message, unused ones as null."""
    fingerprint: str | None = None
    """Fingerprint in the last chunk of a choice, or in the chunk with requested usage."""
    comments: bool = False
    line_end: bytes = b"\n"
    extra: Json = field(default_factory=dict)


STYLES: Final = (
    Style("vllm", null_ids=True, fingerprint="vllm-0.32.0-1a2b3c4d"),
    Style("kintsugi"),
    Style("openai", null_usage=True, fingerprint="fp_1"),
    Style("sglang", null_words=True, null_ids=True),
    Style("llama.cpp", extra={"timings": {"predicted_n": 3}}, comments=True),
    Style("litellm", usage_in="silent", null_words=True),
    Style("mistral", usage_in="end"),
    Style("ollama", usage_in="end", usage_unasked=True),
    Style("forced", usage_in="each", usage_unasked=True, fingerprint="vllm-forced"),
    Style("continuous", usage_in="each", line_end=b"\r\n", comments=True),
    Style("empty choice", usage_in="silent", usage_unasked=True, line_end=b"\r\n"),
)

Step = tuple[int, Json, int, str | None]
"""(index of the choice, delta, number of tokens, finish reason)."""


def make_script(chosen: random.Random, choices: int) -> list[Step]:
    """Return the steps of a random answer, in which the choices are interleaved at random."""
    steps = {number: [*_make_steps(chosen, number)] for number in range(choices)}
    order = [number for number in steps for _ in steps[number]]
    chosen.shuffle(order)
    return [steps[number].pop(0) for number in order]


def _make_steps(chosen: random.Random, number: int) -> Iterator[Step]:
    calls = 0
    for _ in range(chosen.randint(0, 6)):
        kind = chosen.choice(("text", "text", "empty", "reasoning", "silent", "call", "none"))
        tokens = 0 if kind == "none" else chosen.randint(1, 3)
        if kind in ("text", "empty"):
            yield number, {"content": "" if kind == "empty" else _word(chosen)}, tokens, None
        elif kind == "reasoning":
            yield number, {"reasoning": _word(chosen)}, tokens, None
        elif kind == "call":
            for piece in _make_call(chosen, calls):
                yield number, {"tool_calls": [piece]}, chosen.randint(0, 2), None
            calls += 1
        else:
            yield number, {}, tokens, None
    finish = "tool_calls" if calls else chosen.choice(("stop", "length"))
    last = chosen.choice(({}, {"content": ""}, {"content": _word(chosen)}))
    yield number, last, chosen.randint(0, 2), finish


def _word(chosen: random.Random) -> str:
    return chosen.choice(("Hi", " there", "é", "\n", "{", "<tool_call>", "\U0001f600"))


def _make_call(chosen: random.Random, index: int) -> Iterator[Json]:
    name = chosen.choice(("look_up", "list_orders"))
    head = {"name": name, "arguments": ""}
    yield {"index": index, "id": f"call_{index}", "type": "function", "function": head}
    for text in chosen.choice((("{}",), ('{"order": ', '"W1"}'), ())):
        yield {"index": index, "function": {"arguments": text}}


def answer(style: Style, script: Iterable[Step], body: Json) -> bytes:
    """Return the bytes of the stream that an engine of this style sends for `body`."""
    asked = (body.get("stream_options") or {}).get("include_usage") is True
    chunks = [*_write_chunks(style, script, body, asked or style.usage_unasked)]
    if style.null_usage and asked:
        chunks = [{"usage": None} | chunk for chunk in chunks]
    lines = [b"data: " + encode_json(chunk) for chunk in chunks] + [b"data: [DONE]"]
    if style.comments:
        lines = [line for event in lines for line in (b": keep-alive", event)]
    return b"".join(line + 2 * style.line_end for line in lines)


def _write_chunks(style: Style, script: Iterable[Step], body: Json, usage: bool) -> Iterator[Json]:
    chat, written, silent = "messages" in body, 0, {"index": 0, "delta": {}, "logprobs": None}
    if chat:
        for number in range(body.get("n") or 1):
            choice = _write_choice(style, body, number, {"role": "assistant"}, 0, None)
            asked = bool(body.get("return_token_ids"))
            ids = {"prompt_token_ids": [1, 2, 3] if asked else None}
            first = _chunk(body, choice) | (ids if asked or style.null_ids else {})
            yield first | ({"usage": _count(0)} if usage and style.usage_in == "each" else {})
    for number, delta, tokens, finish in script:
        written += tokens
        asked = body.get("return_token_ids") or body.get("logprobs") not in (None, False)
        if not (delta or finish or (asked and tokens)):
            continue
        chunk = _chunk(body, _write_choice(style, body, number, delta, tokens, finish))
        if usage and (style.usage_in == "each" or (finish and style.usage_in == "end")):
            chunk["usage"] = _count(written)
        if finish and style.fingerprint and not (usage and style.usage_in in ("bare", "silent")):
            chunk["system_fingerprint"] = style.fingerprint
        yield chunk
    if usage and style.usage_in in ("bare", "silent", "each"):
        choices = [silent | {"finish_reason": None}] if style.usage_in == "silent" else []
        last = _chunk(body, *choices) | {"usage": _count(written)} | style.extra
        yield last | ({"system_fingerprint": style.fingerprint} if style.fingerprint else {})


def _chunk(body: Json, *choices: Json) -> Json:
    kind = "chat.completion.chunk" if "messages" in body else "text_completion"
    return {"id": "1", "object": kind, "created": 1, "model": "m", "choices": [*choices]}


def _write_choice(
    style: Style, body: Json, number: int, delta: Json, tokens: int, finish: str | None
) -> Json:
    chat, scores = "messages" in body, None
    entries = [{"token": "t", "logprob": -0.5, "bytes": [116], "top_logprobs": []}] * tokens
    if body.get("logprobs") not in (None, False) and "role" not in delta:
        scores = {"content": entries} if chat else {"token_logprobs": [-0.5] * tokens}
    names = ("content", "reasoning", "tool_calls") if style.null_words else ()
    said = dict.fromkeys(names) | delta
    words = {"delta": said} if chat else {"text": delta.get("content") or ""}
    choice = {"index": number, **words, "logprobs": scores, "finish_reason": finish}
    asked = bool(body.get("return_token_ids"))
    if (asked or style.null_ids) and "role" not in delta:
        choice["token_ids"] = [7] * tokens if asked else None
    return choice


def _count(written: int) -> Json:
    return {"prompt_tokens": 3, "completion_tokens": written, "total_tokens": 3 + written}


def answer_probe(style: Style, body: Json) -> bytes:
    """Return the answer to a request of the gateway's proof. These engines have no guided chat."""
    if "messages" in body:
        return encode_json({"choices": []})
    if body.get("stream"):
        return answer(style, [(0, {"content": "a"}, 1, "stop")], body)
    drawn = 0.0 if body.get("top_k") == 1 else -0.5
    scores = {"token_logprobs": [drawn], "top_logprobs": [{"a": -0.5, "b": -1.0}]}
    choice = {"index": 0, "text": "a", "token_ids": [7], "logprobs": scores}
    choices = [choice] * len(body["prompt"])
    return encode_json({"choices": choices, "usage": _count(len(choices))})


def prove(style: Style) -> Probes:
    """Return the result of the gateway's proof of an engine."""

    async def complete(body: Json) -> tuple[int, bytes]:
        return 200, answer_probe(style, body)

    probes = asyncio.run(run_probes(complete))
    assert isinstance(probes, Probes), probes
    return probes


def make_dialects() -> dict[str, Dialect]:
    """Return style -> dialect, as a gateway knows it after its proof of the engine."""
    dialects = {}
    for style in STYLES:
        usage = prove(style).usage
        assert usage is not None, "every style streams"
        dialect = Dialect(style.name, null_fields=style.null_ids, silent_text=True)
        dialects[style.name] = replace(dialect, usage=usage)
    return dialects


def make_request(chosen: random.Random) -> ModelRequest:
    """Return a random request for a stream."""
    body: Json = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "model": "m"}
    fields: dict[str, tuple[Any, ...]] = {
        "n": (1, 1, 2, 3),
        "logprobs": (None, False, True),
        "return_token_ids": (None, False, True),
        "stream_options": (None, {}, {"include_usage": False}, {"include_usage": True}),
    }
    picked = {name: chosen.choice(values) for name, values in fields.items()}
    return ModelRequest("chat", body | {k: v for k, v in picked.items() if v is not None})


def relay(request: ModelRequest, dialect: Dialect, style: Style, script: list[Step]) -> bytes:
    """Return the stream that a client of the gateway gets."""
    extras = request.choose_extras(dialect)
    sent = answer(style, script, json.loads(request.encode_for_engine(extras)))
    capture, passed = make_capture(request, extras, dialect), []
    for event in sse.Splitter().feed(sent):
        payload = sse.data(event)
        if payload is None or payload == sse.DONE:
            passed.append(event)
            continue
        document = json.loads(payload)
        restored = capture.chunk(document)
        if restored is not None:
            passed.append(event if restored is document else request.encode_event(restored))
    why = capture.build_record().untrainable_because
    assert why is None or "no tokens" in why or not extras.token_ids, why
    return b"".join(passed)


class Reader:
    """OpenAI's client as a parser of streams."""

    def __init__(self) -> None:
        self._stream = b""
        transport = httpx2.MockTransport(self._respond)
        self._client = openai.OpenAI(
            api_key="none",
            base_url="http://engine.invalid/v1",
            http_client=httpx2.Client(transport=transport),
        )

    def _respond(self, _: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=self._stream)

    def read(self, stream: bytes) -> list[Json]:
        """Return the chunks of a stream, and last the complete answer."""
        self._stream = stream
        state, chunks = ChatCompletionStreamState(), []
        for chunk in self._client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
        ):
            chunks.append(chunk.to_dict())
            state.handle_chunk(chunk)
        return [*chunks, state.current_completion_snapshot.to_dict()]


def check(seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """Return the number of streams per style, and the first differences."""
    dialects, reader, streams = make_dialects(), Reader(), Counter[str]()
    differences: list[str] = []
    for number in range(count):
        chosen = random.Random(f"{seed} {number}")
        style, request = chosen.choice(STYLES), make_request(chosen)
        script = make_script(chosen, request.document.get("n") or 1)
        streams[style.name] += 1
        plain = reader.read(answer(style, script, request.document))
        through = reader.read(relay(request, dialects[style.name], style, script))
        if plain != through and len(differences) < _MOST_REPORTED:
            differences.append(f"{style.name}, stream {number}: {plain} became {through}")
    return streams, differences


def run(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Check streams; return their number per style, and the first differences."""
    streams, differences = check(seed, count)
    return {"streams": dict(streams), "differences": differences, "passed": not differences}


if __name__ == "__main__":
    run_command(__doc__, run, count=10_000, seed=0)
