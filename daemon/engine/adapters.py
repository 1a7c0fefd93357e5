"""The models that the engine serves by name: a base, and LoRA adapters merged over it.

An adapter is checked before anything is loaded (its success proves little: PEFT and vLLM take one
full of NaN, and one whose targets name nothing), merged into a policy of its own, and registered
last. Who began a call with a policy keeps it, whatever is unloaded meanwhile.

Guarantees: a name never changes what it means while it is there; a load that fails leaves nothing
behind; of one that brings a provenance (daemon/solver/lora.py), files and base are the very ones it
names. Not covered: adapters that are more than A and B of linear layers (DoRA, whole modules, the
embedding, changed initial weights): refused by name.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from daemon.engine.policy import Policy
from daemon.solver.lora import (
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    BadAdapter,
    WrongBase,
    verify,
    weights_sha256,
)
from events.errors import KintsugiError

_PLAIN: Final = frozenset(
    {
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",  # nothing is dropped out when answers are written
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
"""Settings of PEFT that a merge of A and B respects."""

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian"),
}
"""Settings that are plain with these values only; any other is plain when it is empty."""

_PREFIX: Final = "base_model.model."


class UnknownModel(KintsugiError):
    """No model of this name is served."""


class NameTaken(KintsugiError):
    """A model of this name is served already."""


class AdapterMissing(BadAdapter):
    """There is no such directory."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An adapter that is served."""

    policy: Policy
    folder: Path


class Adapters:
    """Policies by name. Any thread may ask; one adapter is loaded at a time."""

    def __init__(self, base: Policy, root: str) -> None:
        """`root` says where the base came from. The base must have been loaded from a checkpoint:
        what fits it is read off there."""
        if base.checkpoint is None:
            raise ValueError(f"{base.name} was not loaded from a checkpoint")
        self.base = base
        self.root = root
        self._model: PreTrainedModel = base.checkpoint
        self._loaded: dict[str, Loaded] = {}
        self._loading = threading.Lock()

    @property
    def loaded(self) -> dict[str, Loaded]:
        """Adapters by name, in the order they came."""
        return dict(self._loaded)

    def policy(self, name: str | None) -> Policy:
        """The policy of this name; None means the base. Raises UnknownModel."""
        if name is None or name == self.base.name:
            return self.base
        found = self._loaded.get(name)
        if found is None:
            raise UnknownModel(f"The model `{name}` does not exist.")
        return found.policy

    def load(self, name: str, folder: Path) -> None:
        """Serve an adapter under a new name. Raises NameTaken, AdapterMissing, BadAdapter."""
        with self._loading:
            if name in self._loaded or name == self.base.name:
                raise NameTaken(
                    f"The lora adapter '{name}' has already been loaded; an adapter is never "
                    "replaced: give each version a name of its own."
                )
            self._check(folder)
            self._loaded[name] = Loaded(self._merged(folder, name), folder)

    def unload(self, name: str) -> None:
        """Serve it to nobody new. Raises UnknownModel."""
        if self._loaded.pop(name, None) is None:
            raise UnknownModel(f"The lora adapter '{name}' cannot be found.")

    def _check(self, folder: Path) -> None:
        if not folder.is_dir():
            raise AdapterMissing(f"{folder} is no directory of this machine")
        if (folder / PROVENANCE).exists():
            named = verify(folder).base
            if named.sha256 != self._sha256:
                raise WrongBase(
                    f"{folder} is an adapter of {named.name} with weights {named.sha256[:12]}; "
                    f"{self.base.name} has {self._sha256[:12]}: serve the base it was trained on"
                )
        check(folder, self._model)

    def _merged(self, folder: Path, name: str) -> Policy:
        try:
            return self.base.adapted(folder, name)
        # Whatever PEFT has against it; the adapter is at fault, the engine goes on.
        except Exception as error:
            raise BadAdapter(
                f"{folder} cannot be merged: {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def _sha256(self) -> str:
        return weights_sha256(self._model)


def check(folder: Path, model: nn.Module) -> None:
    """See that a directory of PEFT holds a whole LoRA adapter that fits a model.

    Every layer that its configuration targets is there and has an A and a B of the right shape,
    all numbers finite, and there is nothing else. Raises BadAdapter.
    """
    config = _config(folder)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    found = _pairs(folder)
    targeted = {name for name in layers if check_target_module_exists(config, name)}
    if not targeted:
        raise BadAdapter(f"{folder}: target_modules {_targets(config)} name no layer of the model")
    if missing := sorted(targeted - found.keys()):
        raise BadAdapter(f"{folder} targets {missing[0]} and has no weights for it")
    if foreign := sorted(found.keys() - targeted):
        raise BadAdapter(f"{folder} has weights of {foreign[0]}, which it does not target")
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for name, pair in found.items():
        if layers[name] is head:
            raise BadAdapter(f"{folder} adapts the head {name}; the engine serves no such adapter")
        _check_shapes(folder, name, pair, layers[name], _rank(config, name))


def _config(folder: Path) -> LoraConfig:
    """The adapter's configuration, if it asks for nothing but plain LoRA."""
    try:
        given = json.loads((folder / CONFIG).read_bytes(), parse_constant=_no_constant)
    except OSError as error:
        raise BadAdapter(f"{folder / CONFIG} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadAdapter(f"{folder / CONFIG} is no JSON: {error}") from error
    if not isinstance(given, dict) or given.get("peft_type") != "LORA":
        raise BadAdapter(f"{folder / CONFIG} describes no LoRA adapter of PEFT")
    for name, value in given.items():
        if not _plain(name, value):
            raise BadAdapter(
                f"{folder} sets {name} to {str(value)[:80]!r}; the engine serves plain LoRA only: "
                "train it without, or serve it with vLLM"
            )
    try:
        return LoraConfig(**{k: v for k, v in given.items() if k in _PLAIN and k != "auto_mapping"})
    except (TypeError, ValueError) as error:
        raise BadAdapter(f"{folder / CONFIG}: {error}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _plain(name: str, value: Any) -> bool:
    if name in _NEUTRAL:
        return value in _NEUTRAL[name]
    return name in _PLAIN or not _set(value)


def _set(value: Any) -> bool:
    """Whether a setting says anything: none of whose parts does is as good as absent."""
    if isinstance(value, dict):
        return any(_set(part) for part in value.values())
    return bool(value)


def _targets(config: LoraConfig) -> str:
    targets = config.target_modules
    return str(sorted(targets) if isinstance(targets, set) else targets)


def _pairs(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Layer -> its A and its B."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _tensors(folder).items():
        layer, _, rest = name.removeprefix(_PREFIX).rpartition(".lora_")
        if not name.startswith(_PREFIX) or rest not in ("A.weight", "B.weight"):
            raise BadAdapter(f"{folder / WEIGHTS} holds {name}, which is no LoRA weight of PEFT")
        if not torch.isfinite(tensor).all():
            raise BadAdapter(f"{folder / WEIGHTS}: {name} is not finite")
        found.setdefault(layer, {})[rest[0]] = tensor
    return found


def _tensors(folder: Path) -> dict[str, Tensor]:
    try:
        return load_file(folder / WEIGHTS)
    except FileNotFoundError as error:
        raise BadAdapter(
            f"{folder / WEIGHTS} is missing; other formats than safetensors are not read"
        ) from error
    except (SafetensorError, OSError) as error:
        raise BadAdapter(f"{folder / WEIGHTS} is no safetensors file: {error}") from error


def _rank(config: LoraConfig, layer: str) -> int:
    """What the configuration says of a layer."""
    pattern = config.rank_pattern or {}
    return int(pattern.get(get_pattern_key(list(pattern), layer), config.r))


def _check_shapes(
    folder: Path, name: str, pair: Mapping[str, Tensor], layer: nn.Linear, rank: int
) -> None:
    if pair.keys() != {"A", "B"}:
        raise BadAdapter(f"{folder} has only one factor of {name}")
    down, up = tuple(pair["A"].shape), tuple(pair["B"].shape)
    if not 0 < rank <= min(layer.in_features, layer.out_features):
        raise BadAdapter(f"{folder}: rank {rank} does not fit {name}, a layer of {_size(layer)}")
    if down != (rank, layer.in_features) or up != (layer.out_features, rank):
        raise BadAdapter(
            f"{folder}: the factors of {name} are {down} and {up}; with rank {rank} they do not "
            f"fit a layer of {_size(layer)}: it belongs to another base"
        )


def _size(layer: nn.Linear) -> str:
    return f"{layer.out_features} by {layer.in_features}"
