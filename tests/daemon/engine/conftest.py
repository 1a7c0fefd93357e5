"""A random Qwen3 with the reference policy's tokenizer, adapters of it, and the server over them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from starlette.testclient import TestClient
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from daemon.engine.adapters import Adapters
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.demonstrations import vocabulary
from daemon.engine.server import Server
from envs.shop.environment import Shop

LENGTH = 512
TARGETS = ("q_proj", "v_proj", "down_proj")


@pytest.fixture(scope="session")
def shop_tokens() -> PreTrainedTokenizerFast:
    return vocabulary(Shop())


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory, shop_tokens: PreTrainedTokenizerFast
) -> Path:
    """A checkpoint of a few thousand weights."""
    folder = tmp_path_factory.mktemp("engine") / "tiny"
    model = random_model(len(shop_tokens))
    model.save_pretrained(folder)
    shop_tokens.save_pretrained(folder)
    return folder


def random_model(vocabulary: int, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def save_adapter(checkpoint: Path, folder: Path, seed: int, **changes: Any) -> Path:
    """A directory as PEFT writes it, with weights that change the model a lot."""
    model = Qwen3ForCausalLM.from_pretrained(checkpoint)
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": list(TARGETS)}
    torch.manual_seed(seed)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **(settings | changes)))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(0, 0.5)
    adapted.save_pretrained(folder)
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
def chat(checkpoint: Path) -> Chat:
    return Chat(checkpoint)


@pytest.fixture
def served(base: Policy, chat: Chat, checkpoint: Path) -> Server:
    """A server that nobody started."""
    return Server(Adapters(base, str(checkpoint)), chat, Engine(base, slots=8, length=LENGTH))


@pytest.fixture
def client(served: Server) -> Iterator[TestClient]:
    """The server in this process, started."""
    with TestClient(served.app) as opened:
        yield opened
