"""The gateway over a real vLLM: what the client gets, what is recorded, and what is believed."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from ops.isolated import NotInstalled
from ops.vllm.server import Vllm
from tests.conftest import missing
from tests.daemon.engine.reciting_model import reciting
from tests.daemon.gateway.conftest import fronting, post
from tests.daemon.gateway.test_exactness import (
    CALL,
    CHAT,
    HELLO,
    TEXT,
    TOOLS,
    pieces,
    without_chance,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Json = dict[str, Any]
LENGTH = 256
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


def serving(tokens: PreTrainedTokenizerFast, *flags: str) -> Iterator[str]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kintsugi-vllm-")))
        # vLLM has no attention for narrower heads.
        reciting(folder / "tiny", tokens, CALL, head_dim=64, max_position_embeddings=LENGTH)
        server = Vllm(folder / "tiny", "tiny", folder, flags=(f"--max-model-len={LENGTH}", *flags))
        try:
            stack.enter_context(server)
        except NotInstalled as error:
            missing(str(error))
        yield server.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def vllm(shop_tokens: PreTrainedTokenizerFast) -> Iterator[str]:
    yield from serving(shop_tokens)


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


def test_vllm_with_raw_log_probabilities_is_not_believed(
    shop_tokens: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    for url in serving(shop_tokens, "--logprobs-mode=raw_logprobs"):
        with fronting(tmp_path, [url], proven=False) as front:
            said = lambda: "processed_logprobs" in front.unproven()  # noqa: E731
            assert front.wait_for(said, 300), front.unproven()
            post(front.url, messages=HELLO, **COLD)
            (ended,) = front.ended()
            assert (ended.outcome, ended.trainable) == ("completed", False)
            assert "processed_logprobs" in (ended.untrainable_because or "")
