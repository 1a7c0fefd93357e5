"""Checkpoints of random weights with the tokenizer of shop, as transformers writes them."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

KINDS: dict[str, tuple[Any, Any]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def random_model(kind: str = "qwen3", seed: int = 0, **changes: Any) -> Any:
    """A small model whose answers depend strongly on what it read."""
    settings: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if kind != "qwen2" else 8,
        "max_position_embeddings": 128,
        "tie_word_embeddings": kind != "llama",
        "initializer_range": 0.3,
        "eos_token_id": 1,
        "bos_token_id": None,
        "pad_token_id": 0,
    }
    config, model = KINDS[kind]
    torch.manual_seed(seed)
    return model(config(**(settings | changes))).eval()


def checkpoint(
    directory: Path, tokens: PreTrainedTokenizerFast, seed: int = 0, **changes: Any
) -> Path:
    """A random model for a tokenizer, as a directory."""
    model = random_model(seed=seed, **({"vocab_size": len(tokens), **changes}))
    model.save_pretrained(directory)
    tokens.save_pretrained(directory)
    return directory
