"""Requests with as many elements of one type as a gateway accepts. Each comes in two sizes: without
other content, and filled with a text up to the largest body.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from events.json_text.size import MAX_JSON
from ops.fuzz.flood import ANSWERS
from producers.gateway.http.request_limits import (
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_PROMPTS,
    MAX_STOPS,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
)
from producers.spans.conventions import CONVERSATION, INPUT, OPERATION, OUTPUT
from producers.spans.otlp import MAX_SPANS

BODY_BYTES: Final = 31 << 20

_FIELDS: Final = 20
"""Most values and brackets of a body besides the elements that are counted."""
_VALUES: Final = MAX_JSON.values - _FIELDS
_KEYS: Final = MAX_JSON.keys - _FIELDS
_CONTAINERS: Final = MAX_JSON.containers - _FIELDS
_SPAN_CALLS: Final = 5_000

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A request with many elements of one type, or one that asks for such an answer."""

    name: str
    path: str
    body: bytes
    answer: str = "short"
    """Name of the engine's answer (ops/fuzz/flood.py)."""


def make_shapes() -> Iterator[Shape]:
    """Yield all shapes."""
    for name, (path, document) in _requests().items():
        yield _shape(name, path, document, 0)
        yield _shape(f"{name}_filled", path, document, BODY_BYTES)
    for name in ANSWERS:
        document = {"messages": [_user("Hi")], "stream": name.startswith("stream")}
        yield _shape(f"answer_{name}", "/v1/chat/completions", document, 0, name)
    for name, spans in _traces().items():
        yield _trace_shape(name, spans, 0)
        yield _trace_shape(f"{name}_filled", spans, BODY_BYTES)
    yield Shape("feedback", "/v1/feedback", b'{"call":"c","tags":[%b""]}' % (b'"",' * 300_000))


def text_shape(size: int, answer: str = "short") -> Shape:
    """Return a request with a single text and `size` bytes in total."""
    path = "/v1/chat/completions"
    return _shape(f"text {answer} {size}", path, {"messages": [_user("Hi")]}, size, answer)


def _requests() -> dict[str, tuple[str, Json]]:
    chat, messages, prompt = "/v1/chat/completions", "/v1/messages", "/v1/completions"
    part, asks = {"type": "text", "text": "x"}, [_user("Hi")]
    bare = {"messages": asks}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    many_parts = {"messages": [_user([part] * (MAX_PARTS - 1))]}
    objects = {"messages": [_user([{"type": "x", "x": [{}] * (_CONTAINERS - 10)}])]}
    return {
        "messages": (chat, {"messages": [*asks * (MAX_MESSAGES // 2), *_turns()]}),
        "parts": (chat, many_parts),
        "calls": (chat, {"messages": [*asks, _calls(MAX_TOOL_CALLS, "{}")]}),
        "arguments": (
            chat,
            {"messages": [*asks, _calls(1, json.dumps([[]] * (_CONTAINERS - 10)))]},
        ),
        "tools": (chat, {**bare, "tools": [_tool(n) for n in range(MAX_TOOLS)]}),
        "stops": (chat, {**bare, "stop": ["x"] * MAX_STOPS, "stop_token_ids": [1] * MAX_STOPS}),
        "bias": (chat, {**bare, "logit_bias": {str(n): 1 for n in range(_KEYS)}}),
        "metadata": (chat, {**bare, "metadata": {str(n): "x" for n in range(_KEYS)}}),
        "numbers": (chat, {**bare, "metadata": [1.25] * (_VALUES - 20)}),
        "lists": (chat, {**bare, "metadata": [[]] * (_CONTAINERS - 20)}),
        "objects": (chat, objects),
        "choices": (chat, {**bare, "n": MAX_CHOICES}),
        "prompts": (prompt, {"prompt": ["x"] * (MAX_PROMPTS - 1)}),
        "token_ids": (prompt, {"prompt": [123_456] * (_VALUES - 20)}),
        "token_lists": (prompt, {"prompt": [[123_456] * 200] * (MAX_PROMPTS - 1)}),
        "blocks": (messages, {"max_tokens": 1, **many_parts}),
        "results": (
            messages,
            {"max_tokens": 1, "messages": [_user([result] * (MAX_MESSAGES - 2))]},
        ),
    }


def _traces() -> dict[str, list[Json]]:
    message = {"role": "user", "parts": [{"type": "text", "content": "x"}]}
    return {
        "spans": [_span(n) for n in range(MAX_SPANS - 1)],
        "span_calls": [_span(n, [message]) for n in range(_SPAN_CALLS)],
        "span_messages": [_span(1, [message] * MAX_MESSAGES)],
    }


def _trace_shape(name: str, spans: list[Json], size: int) -> Shape:
    def encode(spans: list[Json]) -> bytes:
        return _encode({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})

    body = encode(spans)
    if len(body) + 1000 < size:
        part = {"type": "text", "content": _text(int(0.98 * (size - len(body))))}
        body = encode([*spans, _span(MAX_SPANS, [{"role": "user", "parts": [part]}])])
    return Shape(name, "/v1/traces", body)


def _span(number: int, asked: list[Json] | None = None) -> Json:
    texts = {}
    if asked is not None:
        said = [{"role": "assistant", "parts": [{"type": "text", "content": "y"}]}]
        texts = {OPERATION: "chat", CONVERSATION: f"{number % 64}"}
        texts |= {INPUT: json.dumps(asked), OUTPUT: json.dumps(said)}
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]
    return {"traceId": f"{number + 1:032x}", "spanId": f"{1:016x}", "attributes": attributes}


def _shape(name: str, path: str, document: Json, size: int, answer: str = "short") -> Shape:
    body = _encode({"user": answer, **document})
    if len(body) + 1000 < size:
        fill = _text(size - len(body) - 100)
        if "prompt" in document:
            filled = {**document, "suffix": fill}
        else:
            filled = {**document, "messages": [_user(fill), *document["messages"][1:]]}
        body = _encode({"user": answer, **filled})
    return Shape(name, path, body, answer)


def _encode(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _text(length: int) -> str:
    return random.Random(0).randbytes(length // 2).hex() + ',[{"\\' * (length % 7)


def _user(content: Any) -> Json:
    return {"role": "user", "content": content}


def _turns() -> list[Json]:
    answer = {"role": "assistant", "content": "x"}
    return [answer, _user("y")] * (MAX_MESSAGES // 4)


def _calls(count: int, arguments: str) -> Json:
    function = {"name": "look_up", "arguments": arguments}
    call = {"id": "a", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call] * count}


def _tool(number: int) -> Json:
    properties = {"a": {"type": "string"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["a"]}
    return {"type": "function", "function": {"name": f"tool_{number}", "parameters": schema}}
