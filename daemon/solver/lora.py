"""LoRA through PEFT: attached with checks, saved as a directory that is whole or absent.

    DIR/adapter_config.json        PEFT's; vLLM and transformers read it
    DIR/adapter_model.safetensors  the weights
    DIR/provenance.json            what it was made of: base, parent, seed, spec, rollouts, hashes
    DIR/README.md                  the model card

Guarantees: an adapter is trained on and loaded over the very base weights whose hash it names; it
has no dropout, no bias and no weights of other modules; the directory appears by a rename after
every file was flushed to disk, so that a kill or a full disk leaves none, or a `tmp-` directory
that the next save removes. Not covered: who may read it, and what it is worth (the gate).
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from transformers import PreTrainedModel

from daemon.solver.policy import parts
from events.errors import KintsugiError
from events.jobs import LoraSettings
from events.messages import Frozen
from events.registry import first_problem

WEIGHTS: Final = "adapter_model.safetensors"
CONFIG: Final = "adapter_config.json"
PROVENANCE: Final = "provenance.json"
CARD: Final = "README.md"
UNFINISHED: Final = "tmp-"
"""Prefix of a directory that is being written."""

_TRAINED: Final = "default"
_REFERENCE: Final = "reference"


class BadAdapter(KintsugiError):
    """An adapter that cannot be attached, or a directory that holds none."""


class WrongBase(BadAdapter):
    """An adapter for other base weights."""


class AdapterNotWritten(KintsugiError):
    """The disk refused; nothing was left behind."""


class Base(Frozen):
    """The model under an adapter."""

    name: str
    sha256: str
    """Of its weights (`weights_sha256`), whatever files they lie in."""


class Provenance(Frozen):
    """What an adapter was made of."""

    format: int = 1
    base: Base
    parent: str | None = None
    """sha256 of the weights of the adapter that training began with."""
    lora: LoraSettings
    seed: int
    steps: int
    """Optimizer steps."""
    rollouts: tuple[str, ...]
    """Every rollout that an update used."""
    spec: dict[str, Any]
    """What the job was told."""
    versions: dict[str, str] = {}
    """Of the libraries that computed it."""
    files: dict[str, str] = {}
    """Name -> sha256 of the other files of the directory."""


def weights_sha256(model: nn.Module) -> str:
    """Hash of a model's own weights as they are loaded, adapters left out: its identity.

    Equal with or without adapters around them and whatever files they came from; tied weights count
    once, and buffers that are computed and not stored count nowhere.
    """
    stored = model.state_dict().keys()
    tensors: dict[str, Tensor] = {_plain(name): p for name, p in model.named_parameters()}
    tensors |= {_plain(name): b for name, b in model.named_buffers() if name in stored}
    digest = hashlib.sha256()
    for name in sorted(name for name in tensors if "lora_" not in name):
        tensor = tensors[name].detach()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _plain(name: str) -> str:
    """A parameter's name as it is without PEFT."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def attach(model: PreTrainedModel, settings: LoraSettings, seed: int) -> PeftModel:
    """A fresh adapter around a model, whose own weights are frozen. Raises BadAdapter.

    Its output is that of the model until it is trained: one factor begins at 0. The other is drawn
    from `seed`; the global generator is left as it was.
    """
    _check_targets(model, settings)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # any number works
        target_modules=list(settings.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), _older_peft():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    return adapted


@contextmanager
def _older_peft() -> Iterator[None]:
    """PEFT up to 0.21 asks transformers for gradient checkpointing by a name that is going away."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def _check_targets(model: nn.Module, settings: LoraSettings) -> None:
    """Every target names linear layers, none of them the head, and the rank fits."""
    _, head = parts(model)
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    for target in settings.targets:
        found = [m for name, m in linear.items() if name.split(".")[-1] == target]
        if not found:
            names = sorted({name.split(".")[-1] for name, m in linear.items() if m is not head})
            raise BadAdapter(
                f"no linear layer of {type(model).__name__} is called {target!r}; there are "
                f"{', '.join(names)}"
            )
        if head in found:
            raise BadAdapter(
                f"{target!r} is the model's head, which may share its weights with the embedding; "
                "an adapter of it would be saved with the whole vocabulary: leave it out"
            )
        narrowest = min(min(m.in_features, m.out_features) for m in found)
        if settings.rank > narrowest:
            raise BadAdapter(
                f"rank {settings.rank} is above the width of {target!r}, {narrowest}: that is no "
                "low rank; choose a smaller one"
            )


def continue_from(model: PreTrainedModel, folder: Path) -> tuple[PeftModel, Provenance]:
    """A saved adapter around its base, to be trained further; a frozen copy is the reference.

    Raises BadAdapter, WrongBase.
    """
    provenance = verify(folder, model)
    with _older_peft():
        adapted = PeftModel.from_pretrained(model, folder, is_trainable=True)
        adapted.load_adapter(str(folder), adapter_name=_REFERENCE, is_trainable=False)
    adapted.set_adapter(_TRAINED)
    return adapted, provenance


@contextmanager
def reference(model: PeftModel) -> Iterator[None]:
    """Inside, the model is the policy that training began with: the base, or the parent adapter."""
    if _REFERENCE not in model.peft_config:
        with model.disable_adapter():
            yield
        return
    model.set_adapter(_REFERENCE, inference_mode=True)
    try:
        yield
    finally:
        model.set_adapter(_TRAINED)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter of everything that an optimizer may change."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save(model: PeftModel, folder: Path, provenance: Provenance) -> str:
    """Write an adapter into a new directory; returns the sha256 of its weights.

    Raises BadAdapter for weights that are not finite and for a directory that is there already (an
    adapter is never changed), AdapterNotWritten when the disk refuses.
    """
    if folder.exists():
        raise BadAdapter(f"{folder} exists; an adapter is never overwritten: choose another name")
    tensors = _tensors(model)
    contents = {WEIGHTS: to_safetensors(tensors, metadata={"format": "pt"})}
    contents[CONFIG] = _json(_peft_config(model, provenance.base.name))
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    complete = provenance.model_copy(update={"versions": _versions(), "files": hashes})
    contents[PROVENANCE] = _json(complete.model_dump(mode="json"))
    contents[CARD] = _card(complete).encode()
    write_directory(folder, contents)
    return hashes[WEIGHTS]


def _tensors(model: PeftModel) -> dict[str, Tensor]:
    """The trained adapter's weights by name, sorted, on the CPU."""
    state = get_peft_model_state_dict(model, adapter_name=_TRAINED, save_embedding_layers=False)
    tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise BadAdapter(f"{name} is not finite; an adapter like that answers nothing")
    return tensors


def _peft_config(model: PeftModel, base: str) -> dict[str, Any]:
    """PEFT's own description, with the base by its name and not by a path of this machine."""
    found = model.peft_config[_TRAINED].to_dict()
    found |= {"base_model_name_or_path": base, "inference_mode": True}
    return {k: sorted(v) if isinstance(v, set) else v for k, v in found.items()}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "peft", "safetensors")}


def _card(provenance: Provenance) -> str:
    """The model card: what it is, what it was made of, what nobody has shown."""
    lora, base = provenance.lora, provenance.base
    parent = f"the adapter {provenance.parent}" if provenance.parent else "a fresh adapter"
    return f"""---
base_model: {base.name}
library_name: peft
tags: [lora, kintsugi]
---

# A LoRA adapter of {base.name}

Trained by kintsugi's learner from {parent}: {provenance.steps:,} optimizer steps on
{len(provenance.rollouts):,} rollouts, seed {provenance.seed}.

| | |
|---|---|
| base weights (sha256) | `{base.sha256}` |
| weights (sha256) | `{provenance.files[WEIGHTS]}` |
| rank, alpha | {lora.rank}, {lora.alpha:g} |
| layers | {", ".join(lora.targets)} |

It belongs to these base weights and to no others. Where it came from, rollout by rollout, is in
`{PROVENANCE}`. That it is better than its base is shown by a gate and not by this card.
"""


def write_directory(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Files into a new directory that is whole or absent. Raises AdapterNotWritten."""
    unfinished = folder.with_name(UNFINISHED + folder.name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, content in contents.items():
            _write(unfinished / name, content)
        _flush(unfinished)
        unfinished.rename(folder)
        _flush(folder.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise AdapterNotWritten(
            f"{folder} could not be written: {error.strerror or error}; nothing of it was left "
            "behind: see to the disk, then run the same command again"
        ) from error


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Make a directory's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(folder: Path, base: nn.Module | None = None) -> Provenance:
    """Prove that a directory holds a whole adapter, and of this base where one is given.

    Raises BadAdapter, WrongBase.
    """
    provenance = _provenance(folder)
    for name, expected in provenance.files.items():
        found = hashlib.sha256(_read(folder / name)).hexdigest()
        if found != expected:
            raise BadAdapter(f"{folder / name} is not what was saved: its sha256 is {found}")
    _check_config(folder)
    _check_weights(folder)
    if base is not None and (found := weights_sha256(base)) != provenance.base.sha256:
        raise WrongBase(
            f"{folder} is an adapter of {provenance.base.name} with weights "
            f"{provenance.base.sha256[:12]}; this base has {found[:12]}: load the base it was "
            "trained on, or train it again"
        )
    return provenance


def _provenance(folder: Path) -> Provenance:
    try:
        provenance = Provenance.model_validate_json(_read(folder / PROVENANCE))
    except ValidationError as error:
        raise BadAdapter(f"{folder / PROVENANCE}: {first_problem(error)}") from None
    if missing := {WEIGHTS, CONFIG} - provenance.files.keys():
        raise BadAdapter(f"{folder / PROVENANCE} names no hash of {', '.join(sorted(missing))}")
    return provenance


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadAdapter(f"{path} cannot be read: {error.strerror}") from error


def _check_config(folder: Path) -> None:
    config: dict[str, Any] = json.loads(_read(folder / CONFIG))
    if config.get("modules_to_save"):
        raise BadAdapter(f"{folder} replaces whole modules: {config['modules_to_save']}")
    if config.get("lora_dropout"):
        raise BadAdapter(f"{folder} drops out {config['lora_dropout']}; it must be 0")


def _check_weights(folder: Path) -> None:
    try:
        tensors = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise BadAdapter(f"{folder / WEIGHTS} is no safetensors file: {error}") from error
    for name, tensor in tensors.items():
        if "lora_" not in name:
            raise BadAdapter(f"{folder / WEIGHTS} holds {name}, which is no LoRA weight")
        if not torch.isfinite(tensor).all():
            raise BadAdapter(f"{folder / WEIGHTS}: {name} is not finite")
