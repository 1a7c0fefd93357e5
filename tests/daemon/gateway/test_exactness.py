"""What a client gets through the gateway is what the engine sends it directly, piece by piece."""

import json
import math
from typing import Any

import httpx2
import pytest

from tests.daemon.engine.conftest import Live, Recite
from tests.daemon.gateway.conftest import Front, Fronted, post

Json = dict[str, Any]
HELLO = [{"role": "user", "content": "Hello, I am Rosa."}]
TOOLS = [{"type": "function", "function": {"name": "get_user", "parameters": {"type": "object"}}}]
CALL = 'L<tool_call>\n{"name": "get_user", "arguments": {"user_id": "U12"}}\n</tool_call>'
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

REQUESTS: list[tuple[str, Json]] = [
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "n": 3}),
    (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": HELLO, "return_token_ids": True}),
    (CHAT, {"messages": HELLO, "return_token_ids": True, "logprobs": True}),
    (CHAT, {"messages": HELLO, "tools": TOOLS, "temperature": 0.7, "top_k": 5}),
    (CHAT, {"messages": HELLO, "stop": ["e"]}),
    (CHAT, {"messages": HELLO, "ignore_eos": True, "max_tokens": 100}),
    (TEXT, {"prompt": "Hello"}),
    (TEXT, {"prompt": ["Hello", "Rosa"], "n": 2, "logprobs": 2}),
    (TEXT, {"prompt": [5, 6, 7], "return_token_ids": True}),
]
USAGE: Json = {"stream_options": {"include_usage": True}}
WITH_USAGE: list[tuple[str, Json]] = [
    (CHAT, {"messages": HELLO, "n": 3, "logprobs": True, **USAGE}),
    (TEXT, {"prompt": ["Hello", "Rosa"], "n": 2, **USAGE}),
]


class Score(float):
    """A log-probability, equal to one that is as good as the same: its last bits depend on where
    the engine's memory lies and on what else is in its batch."""

    __hash__ = None  # type: ignore[assignment]  # What equals nearly has no hash.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, abs_tol=1e-4)


def without_chance(value: Any) -> Any:
    """Without ids and times, and without the last bits of a number."""
    if isinstance(value, list):
        return [without_chance(one) for one in value]
    if isinstance(value, dict):
        return {k: without_chance(v) for k, v in value.items() if k not in ("id", "created")}
    return Score(value) if isinstance(value, float) else value


def pieces(url: str, path: str, body: Json) -> list[Any]:
    """A stream as a client reads it from the socket, flush by flush: each piece holds the events
    that one write of the server sent."""
    found: list[Any] = []
    with httpx2.stream("POST", f"{url}{path}", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        rest = b""
        for data in response.iter_raw():
            rest += data
            assert rest.endswith(b"\n\n"), "a write ended in the middle of an event"
            found += [parsed(event) for event in rest.split(b"\n\n") if event]
            rest = b""
    return found


def parsed(event: bytes) -> Any:
    data = event.removeprefix(b"data: ")
    return "[DONE]" if data == b"[DONE]" else without_chance(json.loads(data))


def test_only_the_last_bits_of_a_score_are_chance() -> None:
    told = without_chance([{"logprob": -4.892251968383789}])
    assert told == without_chance([{"logprob": -4.892251491546631}])
    assert told != without_chance([{"logprob": -4.893}])
    assert told != without_chance([{"logprob": None}])


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_an_answer_is_the_engines(front: Fronted, live: Live, path: str, body: Json) -> None:
    asked = {"seed": 3, "max_tokens": 24, **body}
    direct, through = post(live.url, path, **asked), post(front.url, path, **asked)
    assert through.status_code == direct.status_code == 200
    assert without_chance(through.json()) == without_chance(direct.json())
    (ended,) = front.ended()
    assert (ended.outcome, ended.trainable, ended.untrainable_because) == ("completed", True, None)


@pytest.mark.parametrize(("path", "body"), [*REQUESTS, *WITH_USAGE])
def test_a_stream_is_the_engines_chunk_by_chunk(
    front: Fronted, live: Live, path: str, body: Json
) -> None:
    asked = {"seed": 3, "max_tokens": 24, **body, "stream": True}
    direct, through = pieces(live.url, path, asked), pieces(front.url, path, asked)
    assert through == direct
    assert through[-1] == "[DONE]"
    (ended,) = front.ended()
    assert (ended.outcome, ended.trainable) == ("completed", True)


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_the_engines(recite: Recite, front_over: Front, stream: bool) -> None:
    live = recite(CALL)
    front = front_over(live.url)
    asked: Json = {"messages": HELLO, "tools": TOOLS, "stream": stream}
    if stream:
        direct, through = (pieces(url, CHAT, asked) for url in (live.url, front.url))
    else:
        direct, through = (
            [without_chance(post(url, **asked).json())] for url in (live.url, front.url)
        )
    assert through == direct
    (ended,) = front.ended()
    assert ended.content is not None
    (message,) = ended.content.messages
    (call,) = message.tool_calls
    assert (message.content, call.name, call.arguments) == ("L", "get_user", {"user_id": "U12"})
    assert (ended.finish_reason, ended.invalid_tool_calls) == ("tool_calls", 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_recorded_tokens_are_those_that_the_engine_tells(
    front: Fronted, live: Live, stream: bool
) -> None:
    asked: Json = {"messages": HELLO, "seed": 7, "max_tokens": 12, "n": 2, "logprobs": True}
    told = post(live.url, **asked, return_token_ids=True).json()
    through = post(front.url, **asked, stream=stream)
    arrays = front.arrays(through.headers["x-kintsugi-call"])
    assert arrays["prompt_token_ids"] == told["prompt_token_ids"]
    for number, name in enumerate(("token_ids", "token_ids.1")):
        assert arrays[name] == told["choices"][number]["token_ids"]
    for number, name in enumerate(("logprobs", "logprobs.1")):
        scores = [one["logprob"] for one in told["choices"][number]["logprobs"]["content"]]
        assert arrays[name] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO, "top_logprobs": 2}),
        (CHAT, {"messages": HELLO, "model": "none"}),
        (CHAT, {"messages": [], "max_tokens": 3}),
        (CHAT, {"messages": HELLO, "max_tokens": "many"}),
        (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}),
        (CHAT, {"messages": HELLO, "logprobs": "perhaps"}),
        (TEXT, {"max_tokens": 3}),
        (TEXT, {"prompt": "a", "logit_bias": {"1": 5}}),
    ],
)
def test_a_refusal_is_the_engines_and_an_event(
    front: Fronted, live: Live, path: str, body: Json
) -> None:
    direct, through = post(live.url, path, **body), post(front.url, path, **body)
    assert direct.status_code >= 400
    assert (through.status_code, through.json()) == (direct.status_code, direct.json())
    (ended,) = front.ended()
    assert (ended.outcome, ended.status) == ("failed", direct.status_code)
    assert ended.error == direct.json()["error"]["message"]
    assert not ended.trainable


def test_a_call_that_no_tool_could_take_is_counted(recite: Recite, front_over: Front) -> None:
    front = front_over(recite('L<tool_call>\n{"name": "get_user", "arguments"').url)
    post(front.url, messages=HELLO, tools=TOOLS)
    (ended,) = front.ended()
    assert (ended.outcome, ended.invalid_tool_calls) == ("completed", 1)
