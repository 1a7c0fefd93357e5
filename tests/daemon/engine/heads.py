"""Adapters of a model's head alone, as a job that fits one saves them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import Base, Provenance
from daemon.engine.fingerprint import probe_model
from daemon.engine.identity import weights_sha256
from daemon.solver.lora import attach_head, save
from events.jobs import LoraSettings


def save_head(
    checkpoint: Path,
    folder: Path,
    tokens: Sequence[int],
    rows: Tensor | None = None,
    spec: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """A directory with a head that adds the products of (K, D) rows to the logits of these tokens;
    without rows, of random ones that change a lot. `spec` is that of its job."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    if rows is None:
        generator = torch.Generator().manual_seed(7)
        rows = torch.randn(len(tokens), model.config.hidden_size, generator=generator)
    settings = LoraSettings(rank=len(rows), alpha=len(rows), targets=("lm_head",))
    provenance = Provenance(
        base=Base(name="base", sha256=weights_sha256(model)),
        lora=settings,
        seed=0,
        steps=1,
        rollouts=(),
        spec=dict(spec),
    )
    adapted = attach_head(model, settings, rows, tokens)
    expected = probe_model(adapted)
    save(adapted, folder, provenance.model_copy(update={"fingerprint": expected}))
    return folder
