"""Models of real shapes, made on the device with random weights, and what its memory holds."""

import gc
from dataclasses import dataclass
from typing import Any, Final

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from daemon.solver.lora import attach
from events.jobs import LoraSettings

LORA: Final = LoraSettings(rank=16, alpha=32.0)
"""The adapter of every measurement: all linear layers of the body."""
CONTEXT: Final = 2048
"""Positions that a model is declared for."""
SPREAD: Final = 0.02
"""Spread of both factors of an adapter."""
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of Qwen3's kind, and the work that it is measured with."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head: int
    """Width of a head."""
    vocabulary: int
    rows: int = 32
    """Rows of a training batch."""
    conversations: int = 8
    """Conversations of shop that a row joins."""
    prompt: int = 200
    """Tokens of a request's prompt."""
    answer: int = 64
    """Tokens of a request's answer."""
    requests: int = 64
    """Requests at once."""


SHAPES: Final = {
    "tiny": Shape(2, 64, 128, 4, 2, 16, 1740, 8, 2, prompt=12, answer=4, requests=8),
    "0.6b": Shape(28, 1024, 3072, 16, 8, 128, 151_936),
    "4b": Shape(36, 2560, 9728, 32, 8, 128, 151_936),
}
"""`0.6b` and `4b` are Qwen3-0.6B and Qwen3-4B."""


def make_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model of this shape on the device, its weights drawn from one seed."""
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    with torch.device(device):
        model: PreTrainedModel = make(config, dtype=dtype)
    return model


def add_adapters(model: PreTrainedModel, count: int) -> tuple[PeftModel, list[str]]:
    """Put `count` adapters of random weights on a model, the same on every device; return it and
    their names, the first of them active."""
    adapted = attach(model, LORA, seed=0)
    names = ["default", *(f"member-{number}" for number in range(1, count))]
    for name in names[1:]:
        adapted.add_adapter(name, adapted.peft_config["default"])
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(SPREAD * torch.randn(parameter.shape, generator=chance))
    adapted.set_adapter(names[0])
    adapted.eval()
    return adapted, names


def count_parameters(model: Any) -> int:
    """Return the number of a model's own weights, tied ones once, adapters left out."""
    return sum(p.numel() for name, p in model.named_parameters() if "lora_" not in name)


def synchronize(device: torch.device) -> None:
    """Wait for what was asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back memory that nothing refers to, and count the peak anew."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def read_memory(device: torch.device) -> float | None:
    """Return the GiB of tensors on the device now; None for a processor."""
    return _to_gib(torch.cuda.memory_allocated(device)) if device.type == "cuda" else None


def read_peak(device: torch.device) -> float | None:
    """Return the most GiB of tensors on the device since `release`; None for a processor."""
    return _to_gib(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None


def _to_gib(size: int) -> float:
    return round(size / GIB, 3)
