"""Read a directory of PEFT as a LoRA adapter that fits a model, and attach it.

Files are read once, so the checked weights are those that are attached. PEFT interprets no setting:
daemon/adapters/compatibility.py resolves ranks and scales, and PEFT gets the layers' full names.
Not covered: whether the adapter was trained on this base; only shapes are compared.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load
from torch import Tensor, nn
from transformers import PreTrainedModel

from daemon.adapters.compatibility import (
    check_pair,
    list_targets,
    parse_pairs,
    plain_settings,
    read_alphas,
    read_ranks,
    read_weights_file,
)
from daemon.adapters.directory import BadAdapter

_NUMBER_BYTES: Final = 8
_HEADER_BYTES: Final = 16 << 20
"""Largest size of a weights file without its numbers, in bytes."""


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter whose layers and shapes fit the model that it was read for."""

    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    is_root_scaled: bool
    """Whether the scale is alpha / sqrt(rank) instead of alpha / rank."""
    weights: Mapping[str, Tensor]

    def build_config(self, *, trainable: bool) -> LoraConfig:
        """Return PEFT's configuration with the full name of every layer."""
        rank, alpha = next(iter(self.ranks.values())), next(iter(self.alphas.values()))
        return LoraConfig(
            r=rank,
            lora_alpha=alpha,  # type: ignore[arg-type]  # any number works
            use_rslora=self.is_root_scaled,
            target_modules=sorted(self.ranks),
            rank_pattern=_name_others(self.ranks, rank),
            alpha_pattern=_name_others(self.alphas, alpha),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
            inference_mode=not trainable,
        )


def _name_others(values: Mapping[str, Any], usual: Any) -> dict[str, Any]:
    return {f"^{re.escape(name)}": value for name, value in values.items() if value != usual}


def read_adapter(folder: Path, model: nn.Module) -> LoraAdapter:
    """Read a LoRA adapter from a directory of PEFT. Raise BadAdapter unless exactly the targeted
    layers of `model` have a matrix A and a matrix B, of the right shapes and finite."""
    settings = plain_settings(folder)
    layers = _list_layers(model)
    content = read_weights_file(folder, count_most_bytes(model))
    pairs = parse_pairs(folder, content)
    targeted = list_targets(settings, layers)
    if not targeted:
        targets = str(settings.get("target_modules"))[:200]
        raise BadAdapter(f"{folder}: target_modules {targets} name no layer of the model")
    if missing := sorted(targeted - pairs.keys()):
        raise BadAdapter(f"{folder} targets {missing[0]} and has no weights for it")
    if foreign := sorted(pairs.keys() - targeted):
        raise BadAdapter(f"{folder} has weights of {foreign[0]}, which it does not target")
    ranks = read_ranks(settings, sorted(targeted))
    for name, pair in pairs.items():
        shape = layers[name].out_features, layers[name].in_features
        check_pair(folder, name, pair, shape, ranks[name])
    return LoraAdapter(
        ranks=ranks,
        alphas=read_alphas(settings, sorted(targeted)),
        is_root_scaled=bool(settings.get("use_rslora")),
        weights=load(content),
    )


def _list_layers(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}


def count_most_bytes(model: nn.Module) -> int:
    """Return the size in bytes of a model's largest adapter: full rank, the widest numbers."""
    numbers = sum(
        (layer.in_features + layer.out_features) * min(layer.in_features, layer.out_features)
        for layer in _list_layers(model).values()
    )
    return numbers * _NUMBER_BYTES + _HEADER_BYTES


def attach(
    model: PreTrainedModel, adapter: LoraAdapter, name: str = "default", *, trainable: bool = False
) -> PeftModel:
    """Return the model with the adapter active. The adapter is frozen unless `trainable`."""
    adapted = get_peft_model(model, adapter.build_config(trainable=trainable), name)
    assert isinstance(adapted, PeftModel)
    set_weights(adapted, adapter, name)
    return adapted


def set_weights(model: PeftModel, adapter: LoraAdapter, name: str) -> None:
    """Set the weights of PEFT's adapter `name`. Raise BadAdapter if the layers do not match."""
    outcome: Any = set_peft_model_state_dict(model, dict(adapter.weights), name)
    missing = [key for key in outcome.missing_keys if f".{name}." in key and "lora_" in key]
    if outcome.unexpected_keys or missing:
        raise BadAdapter(f"PEFT does not place {(*outcome.unexpected_keys, *missing)[0]}")
