"""Real vLLM servers of the tests: over the reference policy, and over a model that recites."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from daemon.engine.reference.weights import CHECKPOINT
from ops.isolated import InstallError
from ops.reciting_model import reciting
from ops.vllm.server import Vllm
from tests.conftest import missing

RECITED = 'L<tool_call>\n{"name": "get_user", "arguments": {"user_id": "U12"}}\n</tool_call>'
"""What the model that recites answers to everything."""
ROOM = 256
"""Tokens of a conversation with it."""


@dataclass(frozen=True)
class RecitingVllm:
    """A vLLM over a model that recites."""

    server: Vllm
    checkpoint: Path

    @property
    def root(self) -> str:
        """The server's address without `/v1`."""
        return self.server.url.removesuffix("/v1")


@contextmanager
def serve_reference(*flags: str, mended: bool = False) -> Iterator[Vllm]:
    """Serve the reference policy, in float32 unless `flags` say otherwise."""
    # Sockets lie below this folder, so its path has to be short.
    with tempfile.TemporaryDirectory(prefix="kintsugi-vllm-") as folder:
        flags = ("--max-model-len=512", *flags)
        with _start(Vllm(CHECKPOINT, "reference", Path(folder), flags=flags, mended=mended)) as it:
            yield it


@contextmanager
def serve_reciting(
    tokens: PreTrainedTokenizerFast, *flags: str, **defaults: float
) -> Iterator[RecitingVllm]:
    """Serve a model that recites. `defaults` are the sampling parameters of its checkpoint."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-vllm-") as name:
        folder = Path(name)
        # vLLM has no attention for narrower heads.
        model = reciting(
            folder / "tiny", tokens, RECITED, head_dim=64, max_position_embeddings=ROOM
        )
        (model / "generation_config.json").write_text(json.dumps(defaults))
        flags = (f"--max-model-len={ROOM}", *flags)
        with _start(Vllm(model, "tiny", folder, flags=flags)) as server:
            yield RecitingVllm(server, model)


@contextmanager
def _start(server: Vllm) -> Iterator[Vllm]:
    try:
        server.start()
    except InstallError as error:
        missing(str(error))
    try:
        yield server
    finally:
        # Asked first, it takes up to half a minute to end.
        server.kill()
        server.stop()
