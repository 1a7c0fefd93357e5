"""LoRA through PEFT: attach an adapter with checks, save it as a directory.

Guarantees: an adapter is trained on and loaded over the base weights whose hash it names; it has no
dropout, no bias and no weights of other modules. daemon/adapters/directory.py has the format. Not
covered: file permissions, and the adapter's quality (the gate).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from transformers import PreTrainedModel

from daemon.adapters.directory import (
    CARD,
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    BadAdapter,
    Provenance,
    WrongBase,
    card,
    format_json,
    verify,
    write_directory,
)
from daemon.engine.identity import weights_sha256
from daemon.engine.lora import attach as attach_read
from daemon.engine.lora import read_adapter, set_weights
from daemon.engine.policy import silence_peft
from daemon.solver.policy import parts
from events.jobs import LoraSettings

_TRAINED: Final = "default"
_REFERENCE: Final = "reference"


def attach(model: PreTrainedModel, settings: LoraSettings, seed: int) -> PeftModel:
    """Add a fresh adapter to a model, and freeze the model. One factor begins at 0, so outputs do
    not change; `seed` draws the other, without the global generator. Raise BadAdapter."""
    _check_targets(model, settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _add_adapter(model, settings)


def attach_head(
    model: PreTrainedModel, settings: LoraSettings, rows: Tensor, tokens: Sequence[int]
) -> PeftModel:
    """Add an adapter to the head of a frozen model. It adds to each of K tokens' logits the product
    of its row of (K, D) `rows` and the last hidden state. Raise BadAdapter."""
    _, head = parts(model)
    name = next(name for name, module in model.named_modules() if module is head)
    if settings.targets != (name.split(".")[-1],) or settings.rank != len(rows):
        raise BadAdapter(
            f"an adapter of {len(rows)} rows of the head of {type(model).__name__} has rank "
            f"{len(rows)} and the one target {name.split('.')[-1]!r}, and the settings have rank "
            f"{settings.rank} and {', '.join(settings.targets)}"
        )
    adapted = _add_adapter(model, settings)
    layer: Any = parts(adapted)[1]
    up = layer.lora_B[_TRAINED].weight
    scale = float(layer.scaling[_TRAINED])
    with torch.no_grad():
        layer.lora_A[_TRAINED].weight.copy_(rows)
        up.zero_()
        up[torch.tensor(tokens, device=up.device), torch.arange(len(tokens))] = 1 / scale
    return adapted


def _add_adapter(model: PreTrainedModel, settings: LoraSettings) -> PeftModel:
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # any number works
        target_modules=list(settings.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with silence_peft():
        adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    return adapted


def _check_targets(model: nn.Module, settings: LoraSettings) -> None:
    """Raise BadAdapter unless the targets are linear layers and the rank fits. The head may be a
    target: its adapter does not change an embedding that shares the head's weights."""
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    for target in settings.targets:
        layers = [m for name, m in linear.items() if name.split(".")[-1] == target]
        if not layers:
            names = sorted({name.split(".")[-1] for name in linear})
            raise BadAdapter(
                f"no linear layer of {type(model).__name__} is called {target!r}; there are "
                f"{', '.join(names)}"
            )
        narrowest = min(min(m.in_features, m.out_features) for m in layers)
        if settings.rank > narrowest:
            raise BadAdapter(
                f"rank {settings.rank} is above the width of {target!r}, {narrowest}: that is no "
                "low rank; choose a smaller one"
            )


def continue_from(model: PreTrainedModel, folder: Path) -> tuple[PeftModel, Provenance]:
    """Load an adapter for training, and a frozen copy of it as the reference policy. Return the
    model and the adapter's provenance. Raise BadAdapter, WrongBase."""
    provenance = verify(folder)
    check_base(provenance, model, folder)
    parent = read_adapter(folder, model)
    with silence_peft():
        adapted = attach_read(model, parent, _TRAINED, trainable=True)
        adapted.add_adapter(_REFERENCE, parent.build_config(trainable=False))
        set_weights(adapted, parent, _REFERENCE)
    adapted.set_adapter(_TRAINED)
    return adapted, provenance


@contextmanager
def reference(model: PeftModel) -> Iterator[None]:
    """Inside the block, make the model answer as before training (base or parent adapter)."""
    if _REFERENCE not in model.peft_config:
        with model.disable_adapter():
            yield
        return
    model.set_adapter(_REFERENCE, inference_mode=True)
    try:
        yield
    finally:
        model.set_adapter(_TRAINED)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return name -> parameter for each parameter that an optimizer may change."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save(model: PeftModel, folder: Path, provenance: Provenance) -> str:
    """Write an adapter into a new directory; return its weights' sha256. Raise BadAdapter if the
    directory exists or a weight is not finite, AdapterWriteError if the disk refuses."""
    if folder.exists():
        raise BadAdapter(f"{folder} exists; an adapter is never overwritten: choose another name")
    tensors = _tensors(model)
    contents = {WEIGHTS: to_safetensors(tensors, metadata={"format": "pt"})}
    contents[CONFIG] = format_json(_peft_config(model, provenance))
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    complete = provenance.model_copy(update={"versions": _versions(), "files": hashes})
    contents[PROVENANCE] = format_json(complete.model_dump(mode="json"))
    contents[CARD] = card(complete).encode()
    write_directory(folder, contents)
    return hashes[WEIGHTS]


def _tensors(model: PeftModel) -> dict[str, Tensor]:
    state = get_peft_model_state_dict(model, adapter_name=_TRAINED, save_embedding_layers=False)
    tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise BadAdapter(f"{name} is not finite; an adapter like that answers nothing")
    return tensors


def _peft_config(model: PeftModel, provenance: Provenance) -> dict[str, Any]:
    """Return PEFT's configuration, with the base's name, not its path, and the settings'
    targets."""
    config = model.peft_config[_TRAINED].to_dict()
    config |= {"base_model_name_or_path": provenance.base.name, "inference_mode": True}
    config["target_modules"] = sorted(provenance.lora.targets)
    return {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "peft", "safetensors")}


def check_base(provenance: Provenance, base: nn.Module, folder: Path) -> None:
    """Raise WrongBase unless the adapter in `folder` was trained on this base."""
    if (actual := weights_sha256(base)) != provenance.base.sha256:
        raise WrongBase(
            f"{folder} is an adapter of {provenance.base.name} with weights "
            f"{provenance.base.sha256[:12]}; this base has {actual[:12]}: load the base it was "
            "trained on, or train it again"
        )
