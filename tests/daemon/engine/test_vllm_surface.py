"""The same requests to this engine and to a real vLLM, over one checkpoint: the same answers."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from tests.daemon.engine.conftest import listening
from tests.daemon.engine.test_server import folded
from tests.daemon.vllms import ROOM, RecitingVllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

Json = dict[str, Any]

HELLO: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64, "temperature": 0}
LONG = [{"role": "user", "content": "Rosa " * ROOM}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_user", "parameters": {"type": "object", "properties": {}}},
    }
]
IDS: Json = {"return_token_ids": True}
CHAT, TEXTS = "/chat/completions", "/completions"

WHOLE: dict[str, tuple[str, Json]] = {
    "a call": (CHAT, HELLO | IDS | {"tools": TOOLS, "logprobs": True, "top_logprobs": 1}),
    "words without tools": (CHAT, HELLO),
    "named tokens": (
        CHAT,
        HELLO
        | {"max_tokens": 2, "logprobs": True, "logprob_token_ids": [400, 7, 7, 31]}
        | {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    "calls switched off": (CHAT, HELLO | {"tools": TOOLS, "tool_choice": "none"}),
    "cut off": (CHAT, HELLO | IDS | {"tools": TOOLS, "max_tokens": 4}),
    "a stop string": (CHAT, HELLO | IDS | {"stop": ["get_"]}),
    "a stop token": (CHAT, HELLO | IDS | {"stop_token_ids": [707]}),
    "more tokens than there is room for": (CHAT, HELLO | {"max_tokens": ROOM}),
    "several prompts": (
        TEXTS,
        IDS | {"prompt": [[4], [4]], "max_tokens": 3, "logprobs": 1, "temperature": 0},
    ),
    "tokens by their ids": (
        TEXTS,
        IDS
        | {"prompt": [4], "max_tokens": 3, "logprobs": 1, "temperature": 0}
        | {"return_tokens_as_token_ids": True},
    ),
}
# In a stream that is cut off inside a call, vLLM has already sent the call's beginning.
STREAMED = {n: one for n, one in WHOLE.items() if one[0] == CHAT and n != "cut off"}
REFUSED: dict[str, tuple[str, Json, int]] = {
    "a prompt that does not fit": (CHAT, {"messages": LONG}, 400),
    "more tokens than ever fit": (CHAT, HELLO | {"max_tokens": 4 * ROOM}, 400),
    "an unknown model": (CHAT, HELLO | {"model": "none"}, 404),
    "no messages": (CHAT, {"messages": []}, 400),
    "a temperature below zero": (CHAT, HELLO | {"temperature": -1}, 400),
    "an empty prompt": (TEXTS, {"prompt": ""}, 400),
    "named tokens without log-probabilities": (CHAT, HELLO | {"logprob_token_ids": [7]}, 400),
    "a named token that the model has not": (
        CHAT,
        HELLO | {"logprobs": True, "logprob_token_ids": [1 << 20]},
        400,
    ),
    "an adapter without a path": ("/load_lora_adapter", {"lora_name": "a"}, 400),
    "an adapter that is not there": (
        "/load_lora_adapter",
        {"lora_name": "a", "lora_path": "/nowhere"},
        404,
    ),
    "an adapter that nobody loaded": ("/unload_lora_adapter", {"lora_name": "a"}, 404),
}


@pytest.fixture(scope="module")
def urls(reciting_vllm: RecitingVllm) -> Iterator[tuple[str, str]]:
    """Ours and vLLM's."""
    checkpoint = reciting_vllm.checkpoint
    with listening(Policy.load(checkpoint, "tiny"), Chat(checkpoint)) as live:
        yield f"{live.url}/v1", reciting_vllm.server.url


def post(url: str, path: str, body: Json) -> httpx2.Response:
    named = body if "lora" in path else {"model": "tiny", **body}
    return httpx2.post(url + path, json=named, timeout=300)


def within(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Where ours says what theirs does not; ids, times and the order of keys are no difference."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = ours.keys() - {"id", "created"}
        absent = [f"{where}.{name}" for name in names if name not in theirs]
        common = sorted(names & theirs.keys())
        return absent + [d for n in common for d in within(ours[n], theirs[n], f"{where}.{n}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [d for n, (a, b) in pairs for d in within(a, b, f"{where}[{n}]")]
    same = ours == (pytest.approx(theirs, abs=1e-4) if isinstance(theirs, float) else theirs)
    return [] if same else [f"{where}: {ours!r} and {theirs!r}"]


@pytest.mark.parametrize("name", WHOLE)
def test_whole_answers_are_the_same(urls: tuple[str, str], name: str) -> None:
    path, body = WHOLE[name]
    ours, theirs = (post(url, path, body) for url in urls)
    assert (ours.status_code, theirs.status_code) == (200, 200)
    assert within(ours.json(), theirs.json()) == []


@pytest.mark.parametrize("name", STREAMED)
def test_streams_come_to_the_same(urls: tuple[str, str], name: str) -> None:
    path, body = STREAMED[name]
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    streams = []
    for url in urls:
        *events, done = [line[6:] for line in post(url, path, body).text.split("\n\n") if line]
        assert done == "[DONE]"
        streams.append([json.loads(event) for event in events])
    ours, theirs = streams
    assert within(folded(ours), folded(theirs)) == []
    assert ours[0].get("prompt_token_ids") == theirs[0].get("prompt_token_ids")
    assert ours[0]["choices"][0]["delta"] == theirs[0]["choices"][0]["delta"]
    assert within(ours[-1]["usage"], theirs[-1]["usage"]) == []
    assert ours[-1]["choices"] == theirs[-1]["choices"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_the_same_status_and_shape(urls: tuple[str, str], name: str) -> None:
    path, body, status = REFUSED[name]
    ours, theirs = (post(url, path, body) for url in urls)
    assert (ours.status_code, theirs.status_code) == (status, status)
    said, meant = ours.json()["error"], theirs.json()["error"]
    assert said.keys() == meant.keys()
    assert said["code"] == meant["code"]
    # What our endpoint takes as the end of a conversation, it takes so from both.
    text = "maximum context length"
    assert (text in said["message"]) == (text in meant["message"])


def test_the_base_is_listed_alike(urls: tuple[str, str]) -> None:
    ours, theirs = (httpx2.get(f"{url}/models").json()["data"][0] for url in urls)
    for field in ("id", "object", "parent", "max_model_len"):
        assert ours[field] == theirs[field]
