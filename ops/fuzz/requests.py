"""Hostile requests, made deterministically from ordinary ones (seed -> bytes, pure).

They are changed in three ways. Changed bytes are mostly refused by the HTTP parser. Changed headers
and paths in valid HTTP reach the gateway. Changed values in a body of right length reach the engine
and the log.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

Json = dict[str, Any]

_TOOL: Final[Json] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}},
    },
}
_CALLED: Final[Json] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    ],
}
_MESSAGES: Final[list[Json]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Where is it?"}]},
    _CALLED,
    {"role": "tool", "tool_call_id": "c1", "content": "There."},
    {"role": "user", "content": "Thank you."},
]

BODIES: Final[tuple[tuple[str, Json], ...]] = (
    (
        "/v1/chat/completions",
        {
            "model": "checkpoint",
            "messages": _MESSAGES,
            "tools": [_TOOL],
            "tool_choice": "auto",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 3,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 1,
            "n": 1,
            "stop": ["x"],
            "logprobs": True,
            "top_logprobs": 2,
            "return_token_ids": True,
        },
    ),
    ("/v1/chat/completions", {"messages": _MESSAGES[:1], "max_tokens": 2}),
    ("/v1/completions", {"prompt": ["Hello", "Bye"], "max_tokens": 2, "logprobs": 1}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True}),
    (
        "/v1/messages",
        {"model": "m", "max_tokens": 2, "system": "Be kind.", "messages": _MESSAGES[-1:]},
    ),
    ("/v1/messages/count_tokens", {"messages": _MESSAGES[-1:]}),
    (
        "/v1/feedback",
        {"session": "s", "score": 0.5, "success": True, "comment": "good", "tags": ["a"]},
    ),
    ("/v1/feedback", {"call": "01890000-0000-7000-8000-000000000000", "score": 1}),
    ("/v1/sessions/s/end", {}),
    ("/r/session/s/user/u/v1/chat/completions", {"messages": _MESSAGES[1:2], "max_tokens": 2}),
)

GETS: Final = (
    "/v1/models",
    "/livez",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/r/user/u/v1/models",
)

_HEADERS: Final = (
    ("content-type", "application/json"),
    ("accept", "*/*"),
    ("authorization", "Bearer none~talk"),
    ("x-api-key", "none"),
    ("x-kintsugi-session", "s1"),
    ("x-kintsugi-user", "u1"),
    ("x-kintsugi-task", "shop/lend/1"),
    ("x-kintsugi-purpose", "probe"),
    ("idempotency-key", "again"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("anthropic-version", "2023-06-01"),
    ("expect", "100-continue"),
    ("upgrade", "websocket"),
    ("content-encoding", "identity"),
    ("range", "bytes=0-0"),
)

_VALUES: Final[tuple[str, ...]] = (
    "null", "true", "0", "-1", "1.5", "1e308", "1e999", "-1e-999", "NaN", "Infinity", "1" * 400,
    "9" * 5000, "9223372036854775808", '""', '"\\u0000"', '"\\ud83d"', '"\\ud83d\\ude00"',
    '"\\uffff\\u202e"', '"' + "a" * 70_000 + '"', '"x\\r\\n\\r\\ny"', "[]", "{}", "[[]]",
    "[" * 90 + "]" * 90, "[" * 990 + "]" * 990, '{"a":' * 900 + "1" + "}" * 900, "[" * 6000,
    '{"a":1,"a":2}', '{"":{"":""}}', '[{"type":"text"}]', '[{"type":"image_url"}]', "[null]",
    '{"role":"assistant","tool_calls":[{}]}', '{"role":"tool"}', "[0,1,-1]", "[99999999999]",
    '{"type":"json_schema","json_schema":{}}', '"required"',
)  # fmt: skip

_TOKENS: Final = (
    b"\r\n", b"\n", b"\r\n\r\n", b"\x00", b"\xff\xfe", b"%00", b"%2e%2e%2f", b"/../", b"//", b"\\",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n", b"Content-Length: 99999\r\n",
    b"Host: x\r\n", b"Expect: 100-continue\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"0\r\n\r\n", b"fffffffffffffff\r\n", b"HTTP/1.0", b"HTTP/2", b"CONNECT ", b"OPTIONS * ",
    b"GET http://x/ ", b" ", b"\t", b"\x0b", b"A" * 70_000, b"?" , b"#", b";", b"\xc3\x28",
)  # fmt: skip


def requests(seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` requests."""
    chosen = random.Random(seed)
    ways: tuple[Callable[[random.Random], bytes], ...] = (
        _bytes,
        _heads,
        change_values,
        change_values,
    )
    for _ in range(count):
        yield chosen.choice(ways)(chosen)


def _bytes(chosen: random.Random) -> bytes:
    raw = bytearray(write_request(chosen, *_proper(chosen)))
    for _ in range(chosen.randint(1, 6)):
        at, size = chosen.randrange(len(raw) + 1), chosen.randint(0, 40)
        change = chosen.randrange(6)
        if change == 0:
            raw[at : at + 1] = bytes([chosen.randrange(256)])
        elif change == 1:
            del raw[at : at + size]
        elif change == 2:
            raw[at:at] = chosen.choice(_TOKENS)
        elif change == 3:
            raw[at:at] = raw[at : at + size]
        elif change == 4:
            raw[at:at] = chosen.randbytes(size)
        else:
            raw += write_request(chosen, *_proper(chosen))
    return bytes(raw)


def _heads(chosen: random.Random) -> bytes:
    method, path, body = _proper(chosen)
    method = chosen.choice((method, "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "X"))
    cut = chosen.randrange(len(path) + 1)
    piece = chosen.choice(_TOKENS[5:10]).decode("latin-1").replace("\x00", "%00")
    path = chosen.choice((path, path[:cut] + piece + path[cut:], f"{path}/", f"{path}?{piece}"))
    headers = [
        (name, chosen.choice((value, _text(chosen), "", value * 200)))
        for name, value in chosen.sample(_HEADERS, chosen.randint(0, 6))
    ]
    return write_request(chosen, method, path, body, headers)


def change_values(chosen: random.Random, bodies: Sequence[tuple[str, Json]] = BODIES) -> bytes:
    """Return a request of right length with changed values in its body."""
    path, template = chosen.choice(bodies)
    # Odd texts are mostly accepted, other odd values mostly refused.
    values = chosen.choice((_VALUES, [value for value in _VALUES if value.startswith('"')]))
    text = json.dumps(template)
    places = [str(number) for number in range(chosen.randint(1, 3))]
    marked = json.loads(text)
    for place in places:
        _mark(chosen, marked, f"@@{place}@@")
    text = json.dumps(marked)
    for place in places:
        text = text.replace(f'"@@{place}@@"', chosen.choice(values))
    if chosen.random() < 0.05:
        text = chosen.choice(_VALUES)
    body = text.encode("utf-8", "surrogatepass")
    if chosen.random() < 0.05:
        body = chosen.choice((text.encode("utf-16"), b"\xef\xbb\xbf" + body, body[:-1]))
    # The engine refuses commands without this header.
    headers = [_HEADERS[0], *chosen.sample(_HEADERS[4:10], chosen.randint(0, 2))]
    return write_request(chosen, "POST", path, body, headers)


def _mark(chosen: random.Random, document: Any, mark: str) -> None:
    while True:
        if isinstance(document, list):
            if not document or chosen.random() < 0.1:
                document.append(mark)
                return
            key: Any = chosen.randrange(len(document))
        else:
            if not document or chosen.random() < 0.1:
                document[chosen.choice(("logit_bias", "response_format", "stop", "x"))] = mark
                return
            key = chosen.choice(list(document))
        if not isinstance(document[key], list | dict) or chosen.random() < 0.2:
            document[key] = mark
            return
        document = document[key]


def _text(chosen: random.Random) -> str:
    return "".join(chr(chosen.randrange(0x20, 0x100)) for _ in range(chosen.randint(1, 60)))


def _proper(chosen: random.Random) -> tuple[str, str, bytes]:
    if chosen.random() < 0.15:
        return "GET", chosen.choice(GETS), b""
    path, body = chosen.choice(BODIES)
    return "POST", path, json.dumps(body).encode()


def write_request(
    chosen: random.Random,
    method: str,
    path: str,
    body: bytes,
    headers: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Return a request's bytes. One in ten has a chunked body."""
    fields = [("host", "localhost"), *headers]
    chunked = chosen.random() < 0.1
    fields.append(
        ("transfer-encoding", "chunked") if chunked else ("content-length", str(len(body)))
    )
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked and body else body
    if chunked and not body:
        sent = b"0\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + sent
