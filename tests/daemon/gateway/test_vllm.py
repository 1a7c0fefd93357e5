"""The gateway over a real vLLM: what the client gets, what is recorded, and what is believed."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from ops.vllm.environment import VllmMissing
from ops.vllm.server import Vllm
from tests.conftest import missing
from tests.daemon.engine.reciting_model import reciting
from tests.daemon.gateway.conftest import fronting, post
from tests.daemon.gateway.test_exactness import CALL, CHAT, HELLO, TEXT, TOOLS, pieces
from tests.daemon.gateway.test_exactness import without_chance as without_ids

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Json = dict[str, Any]
LENGTH = 256
COLD: Json = {"temperature": 0, "max_tokens": 48, "model": "tiny"}

REQUESTS: list[tuple[str, Json]] = [
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "n": 2}),
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
        except VllmMissing as error:
            missing(str(error))
        yield server.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def vllm(shop_tokens: PreTrainedTokenizerFast) -> Iterator[str]:
    yield from serving(shop_tokens)


def without_chance(value: Any) -> Any:
    """Also without the ids of tool calls and the fingerprint, where vLLM makes one."""
    return without_ids(value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_an_answer_is_vllms(vllm: str, tmp_path: Path, path: str, body: Json, stream: bool) -> None:
    asked = {**COLD, **body, "stream": stream}
    with fronting(tmp_path, [vllm], patience=300) as front:
        if stream:
            direct, through = pieces(vllm, path, asked), pieces(front.url, path, asked)
        else:
            direct, through = (
                [without_chance(post(url, path, **asked).json())] for url in (vllm, front.url)
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
