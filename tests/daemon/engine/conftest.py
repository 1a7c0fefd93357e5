"""A random Qwen3 with the reference policy's tokenizer, adapters of it, and servers over them."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from daemon.engine.adapters import Adapters
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.server import Server
from daemon.solver.reference.demonstrations import vocabulary
from envs.shop.environment import Shop
from ops.reciting_model import HOSTILE_ANSWERS, reciting, with_token
from tests.daemon.engine.random_model import checkpoint as random_checkpoint
from tests.daemon.listening import at_a_port

LENGTH = 8192
TARGETS = ("q_proj", "v_proj", "down_proj")


@dataclass(frozen=True)
class Live:
    """A server that answers on a port of its own."""

    server: Server
    engine: Engine
    url: str

    def idle(self) -> bool:
        """Whether the engine comes to rest: long answers take minutes, a cancelled one no time."""
        deadline = time.monotonic() + 20
        while self.engine.busy and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.engine.busy


@pytest.fixture(scope="session")
def shop_tokens() -> PreTrainedTokenizerFast:
    return vocabulary(Shop())


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory, shop_tokens: PreTrainedTokenizerFast
) -> Path:
    """A checkpoint of a few thousand weights, with room for long answers."""
    folder = tmp_path_factory.mktemp("engine") / "tiny"
    return random_checkpoint(folder, shop_tokens, max_position_embeddings=LENGTH)


def save_adapter(checkpoint: Path, folder: Path, seed: int, **changes: Any) -> Path:
    """A directory as PEFT writes it, with weights that change the model a lot."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": list(TARGETS)}
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # Of PEFT: about what transformers will do, and about adapters that we refuse.
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **(settings | changes)))
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.data.normal_(0, 0.5)
        adapted.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def adapter(checkpoint: Path) -> Path:
    return save_adapter(checkpoint, checkpoint.parent / "one", seed=1)


@pytest.fixture(scope="session")
def other_adapter(checkpoint: Path) -> Path:
    return save_adapter(checkpoint, checkpoint.parent / "two", seed=2)


@pytest.fixture(scope="session")
def base(checkpoint: Path) -> Policy:
    return Policy.load(checkpoint, "tiny")


@pytest.fixture(scope="session")
def served_chat(checkpoint: Path) -> Chat:
    return Chat(checkpoint)


@contextmanager
def listening(policy: Policy, chat: Chat, slots: int = 8) -> Iterator[Live]:
    """A server over a policy, in a thread of this process, reached over HTTP."""
    engine = Engine(policy, slots=slots)
    server = Server(Adapters(policy, "a checkpoint"), chat, engine)
    with at_a_port(server.app) as url:
        yield Live(server, engine, url)


@pytest.fixture(scope="module")
def live(base: Policy, served_chat: Chat) -> Iterator[Live]:
    """One server for the tests of a module; what one loads it unloads."""
    with listening(base, served_chat) as found:
        yield found


Recite = Callable[[str], Live]


@pytest.fixture
def recite(tmp_path: Path, shop_tokens: PreTrainedTokenizerFast) -> Iterator[Recite]:
    """A server whose model answers everything with one text."""
    with ExitStack() as stack:

        def serve(text: str) -> Live:
            tokens = with_token(shop_tokens, text) if text in HOSTILE_ANSWERS else shop_tokens
            # Few positions, so that a long conversation exceeds them.
            folder = reciting(tmp_path / "reciting", tokens, text, max_position_embeddings=128)
            return stack.enter_context(listening(Policy.load(folder, "tiny"), Chat(folder)))

        yield serve
