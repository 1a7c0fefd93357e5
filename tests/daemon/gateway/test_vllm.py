"""The gateway over a real vLLM: what the client gets, what is recorded, and what is believed."""

from pathlib import Path
from typing import Any

import pytest

from events.rollouts import LOWEST_LOGPROB
from tests.daemon.gateway.conftest import fronting, post
from tests.daemon.gateway.test_exactness import (
    CHAT,
    HELLO,
    TEXT,
    TOOLS,
    pieces,
    without_chance,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Json = dict[str, Any]
COLD: Json = {"temperature": 0, "max_tokens": 48, "model": "tiny"}

REQUESTS: list[tuple[str, Json]] = [
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "n": 2, "temperature": 1.0, "seed": 3}),
    (CHAT, {"messages": HELLO, "tools": TOOLS}),
    (CHAT, {"messages": HELLO, "tools": TOOLS, "logprobs": True}),
    (CHAT, {"messages": HELLO, "return_token_ids": True}),
    (CHAT, {"messages": HELLO, "stop": ["get_"]}),
    (TEXT, {"prompt": [[4], [4]]}),
    (TEXT, {"prompt": [4], "logprobs": 1}),
]


def joined(stream: list[Any]) -> dict[int, Json]:
    """What each choice of a stream comes to, and how its chunks are made: which tokens share a
    chunk, and whose turn it is, depends on how far vLLM is ahead of its server."""
    found: dict[int, Json] = {}
    for chunk in stream[:-1]:
        for choice in chunk["choices"]:
            empty: Json = {"said": "", "scores": [], "ids": [], "finish": None, "made": set()}
            one = found.setdefault(choice["index"], empty)
            delta = choice.get("delta", choice)
            calls = delta.get("tool_calls") or []
            one["said"] += (delta.get("content") or "") + (delta.get("text") or "")
            one["said"] += "".join(call["function"].get("arguments", "") for call in calls)
            one["scores"] += (choice["logprobs"] or {}).get("content", [])
            one["ids"] += choice.get("token_ids") or []
            one["finish"] = choice["finish_reason"] or one["finish"]
            one["made"] |= {(*sorted(chunk), *sorted(choice))}
            one["made"] |= {name for name in choice if choice[name] is None}
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_an_answer_is_vllms(vllm: str, tmp_path: Path, path: str, body: Json, stream: bool) -> None:
    asked = {**COLD, **body, "stream": stream}
    with fronting(tmp_path, [vllm], patience=300) as front:
        if stream:
            direct, through = (joined(pieces(url, path, asked)) for url in (vllm, front.url))
        else:
            direct, through = (
                without_chance(post(url, path, **asked).json()) for url in (vllm, front.url)
            )
        assert through == direct
        (ended,) = front.ended()
        assert (ended.outcome, ended.untrainable_because) == ("completed", None)
        assert front.arrays(ended.call)["token_ids"]


FUNCTION: Json = {"name": "get_user", "parameters": {"type": "object", "properties": {}}}
LOOSE: list[Json] = [{"type": "function", "function": FUNCTION}]
STRICT: list[Json] = [{"type": "function", "function": FUNCTION | {"strict": True}}]
MASKED: list[tuple[Json, str | None]] = [
    ({"tools": LOOSE}, None),
    ({"tools": LOOSE, "tool_choice": "auto", "reasoning_effort": "low"}, None),
    ({"tools": STRICT}, "tools.strict"),
    ({"tools": LOOSE, "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"tools": LOOSE, "tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("fields", "named"), MASKED)
def test_an_answer_under_a_grammar_of_vllm_trains_nothing(
    vllm: str, tmp_path: Path, fields: Json, named: str | None
) -> None:
    body = COLD | {"messages": HELLO, "logprobs": True, "top_logprobs": 20} | fields
    with fronting(tmp_path, [vllm], patience=300) as front:
        (choice,) = post(front.url, **body).json()["choices"]
        scores = [
            top["logprob"] for e in choice["logprobs"]["content"] for top in e["top_logprobs"]
        ]
        assert (min(scores) < LOWEST_LOGPROB) is (named is not None), "a grammar masks"
        (ended,) = front.ended()
        reason = named and f"{named}: a mask or rule that cannot be applied again"
        assert (ended.trainable, ended.untrainable_because) == (named is None, reason)
        assert bool(front.arrays(ended.call)) is (named is None)


@pytest.mark.long
def test_vllm_with_raw_log_probabilities_is_not_believed(raw_vllm: str, tmp_path: Path) -> None:
    with fronting(tmp_path, [raw_vllm], proven=False) as front:
        said = lambda: "processed_logprobs" in front.unproven()  # noqa: E731
        assert front.wait_for(said, 300), front.unproven()
        for stream in (False, True):
            assert post(front.url, messages=HELLO, **COLD, stream=stream).status_code == 200
        for ended in front.ended():
            assert (ended.outcome, ended.trainable) == ("completed", False)
            assert "processed_logprobs" in (ended.untrainable_because or "")
            assert front.arrays(ended.call) == {}
        assert len(front.ended()) == 2
