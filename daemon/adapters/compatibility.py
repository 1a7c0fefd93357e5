"""Whether an adapter fits a base, seen from their files: nothing is loaded, torch is not needed.

    fit(folder, checkpoint, max_rank=16)     or BadAdapter, which says what is wrong

Of the adapter everything is read, of the base the headers of its safetensors files. Who loads it
without looking learns little: vLLM takes one full of NaN, and one whose targets name nothing.

Guarantees, of a directory that fits: configuration, weights and provenance are files of its own and
no links; it is plain LoRA in safetensors; every number is finite, scales too, and stays so in an
engine that computes in half precision; every layer has an A and a B of one rank, the one that the
configuration says, within the limit; what the provenance says of files holds. Against a checkpoint
also: every layer is a matrix of the base of that very shape, and every layer that its targets name
has weights. What was not seen, `Fit.unchecked` says.

Not covered: that base and adapter belong together beyond their shapes, and what the adapter does
(fingerprint.py); bases whose files call their tensors otherwise than the model its modules, as some
of images and of fused experts do: their adapters are checked without a checkpoint.
"""

import json
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, NoReturn

import re2

from daemon.adapters.directory import (
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    BadAdapter,
    TensorData,
    read_weights,
    verify,
)
from events.errors import KintsugiError


class RankTooHigh(BadAdapter):
    """An adapter that engines take which are started otherwise."""


Layers = Mapping[str, tuple[int, int] | None]
"""Name of a linear layer -> rows and columns of its matrix (what it gives, what it takes); None
where the files do not show them."""

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
"""Settings of PEFT that leave an adapter products of A and B, added to linear layers."""

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian"),
}
"""Settings that are plain with these values only; any other is plain when it is empty."""

HALF_LIMIT: Final = 65_536
"""Least magnitude that half precision turns into an infinity."""

PREFIX: Final = "base_model.model."
"""Beginning of the names of weights in PEFT's files."""
_PICKLES: Final = ("adapter_model.bin", "adapter_model.pt")
"""What engines read where there is no safetensors file, running what is in it."""

_INDEX: Final = "model.safetensors.index.json"
_WHOLE: Final = "model.safetensors"
_HEADER_BYTES: Final = 100_000_000
"""The most that a header may have, as safetensors itself says."""
_MATRICES: Final = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""Types of weights that lie in their files as they are."""
_PACKED: Final = frozenset({"weight", "qweight", "weight_packed"})

_HEAD: Final = "lm_head"
_EMBEDDING: Final = "model.embed_tokens"

_NO_BASE: Final = (
    "that its layers are layers of the base",
    "that their shapes are those of the base",
    "that every layer its targets name has weights",
)


class BadBase(KintsugiError):
    """A checkpoint whose layers cannot be read."""


@dataclass(frozen=True, slots=True)
class Fit:
    """An adapter that fits, as far as was seen."""

    layers: int
    rank: int
    """The largest of any layer."""
    unchecked: tuple[str, ...]
    """What was not seen, as the end of `it was not checked ...`."""


def read_rank(folder: Path) -> int:
    """Return the rank that an adapter's configuration says. Raises BadAdapter."""
    return int(plain_settings(folder)["r"])


def fit(folder: Path, checkpoint: Path | None, max_rank: int | None = None) -> Fit:
    """Check a directory of PEFT against a base; None where its checkpoint is not on this machine.

    Raises BadAdapter, BadBase.
    """
    _check_files(folder)
    if (folder / PROVENANCE).exists():
        verify(folder)
    settings = plain_settings(folder)
    factors = pairs(folder)
    if not factors:
        raise BadAdapter(f"{folder / WEIGHTS} holds no weights")
    for name, pair in factors.items():
        if not _is_target(settings, name):
            raise BadAdapter(f"{folder} has weights of {name}, which it does not target")
        check_pair(folder, name, pair, None, _rank(settings, name))
    _check_targets(folder, settings, factors)
    rank = max(pair["A"].shape[0] for pair in factors.values())
    if max_rank is not None and rank > max_rank:
        raise RankTooHigh(
            f"{folder} has rank {rank}, and the engines take {max_rank} at most: start them with a "
            "higher --max-lora-rank and say so in upstreams[].max_lora_rank, or train it with a "
            "lower rank"
        )
    if checkpoint is None:
        return Fit(len(factors), rank, _NO_BASE)
    return Fit(len(factors), rank, tuple(_against(folder, settings, factors, layers(checkpoint))))


def _check_targets(folder: Path, settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Every name in a list of targets is that of some layer."""
    targets = settings.get("target_modules")
    for target in targets if isinstance(targets, list) else []:
        if not any(_is_match([target], layer) for layer in names):
            raise BadAdapter(
                f"{folder} targets {target!r} and has no weights of such a layer: remove it from "
                f"target_modules of {CONFIG}, or train it with the base's names"
            )


def plain_settings(folder: Path) -> dict[str, Any]:
    """An adapter's configuration, if it asks for nothing but plain LoRA. Raises BadAdapter."""
    try:
        config = json.loads((folder / CONFIG).read_bytes(), parse_constant=_no_constant)
    except OSError as error:
        raise BadAdapter(f"{folder / CONFIG} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadAdapter(f"{folder / CONFIG} is no JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise BadAdapter(f"{folder / CONFIG} describes no LoRA adapter of PEFT")
    for name, value in config.items():
        if not _plain(name, value):
            raise BadAdapter(
                f"{folder} sets {name} to {str(value)[:80]!r}; only plain LoRA is served: train it "
                "without"
            )
    _check_numbers(folder, config)
    return {name: value for name, value in config.items() if name in _PLAIN}


def _check_numbers(folder: Path, config: Mapping[str, Any]) -> None:
    """Those that scale what an adapter adds: engines have defaults of their own for them."""
    ranks = {"r": config.get("r"), **(config.get("rank_pattern") or {})}
    for name, rank in ranks.items():
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise BadAdapter(f"{folder / CONFIG} has no whole number for the rank {name}: {rank!r}")
    alphas = {"lora_alpha": config.get("lora_alpha"), **(config.get("alpha_pattern") or {})}
    for name, alpha in alphas.items():
        if not isinstance(alpha, int | float) or isinstance(alpha, bool):
            raise BadAdapter(f"{folder / CONFIG} has no number for {name}: {alpha!r}")
        # Also what JSON cannot say and its readers make of it: 1e999 is read as infinity.
        if not -HALF_LIMIT < alpha < HALF_LIMIT:
            raise BadAdapter(
                f"{folder / CONFIG}: {name} is not finite (in half precision): {alpha}"
            )


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


def pairs(folder: Path) -> dict[str, dict[str, TensorData]]:
    """Layer -> its A and its B, every number of them finite. Raises BadAdapter."""
    if not (folder / WEIGHTS).exists():
        raise BadAdapter(
            f"{folder / WEIGHTS} is missing; other formats than safetensors are not read"
        )
    factors: dict[str, dict[str, TensorData]] = {}
    for name, tensor in read_weights(folder).items():
        layer, _, rest = name.removeprefix(PREFIX).rpartition(".lora_")
        if not name.startswith(PREFIX) or rest not in ("A.weight", "B.weight"):
            raise BadAdapter(f"{folder / WEIGHTS} holds {name}, which is no LoRA weight of PEFT")
        if not tensor.finite:
            raise BadAdapter(f"{folder / WEIGHTS}: {name} is not finite (in half precision)")
        factors.setdefault(layer, {})[rest[0]] = tensor
    return factors


def check_pair(
    folder: Path,
    name: str,
    pair: Mapping[str, TensorData],
    shape: tuple[int, int] | None,
    rank: int,
) -> None:
    """Check that both factors of a layer are there and make a matrix of `shape` with rank `rank`.

    A `shape` of None allows any. Raises BadAdapter.
    """
    if pair.keys() != {"A", "B"}:
        raise BadAdapter(f"{folder} has only one factor of {name}")
    down, up = pair["A"].shape, pair["B"].shape
    if len(down) != 2 or len(up) != 2:
        raise BadAdapter(f"{folder}: the factors of {name} are no matrices: {down} and {up}")
    rows, columns = shape or (up[0], down[1])
    if not 0 < rank <= min(rows, columns):
        raise BadAdapter(
            f"{folder}: rank {rank} does not fit {name}, a layer of {rows} by {columns}"
        )
    if down != (rank, columns) or up != (rows, rank):
        raise BadAdapter(
            f"{folder}: the factors of {name} are {down} and {up}; with rank {rank} they do not "
            f"fit a layer of {rows} by {columns}: it belongs to another base"
        )


def layers(checkpoint: Path) -> dict[str, tuple[int, int] | None]:
    """The matrices of a base, by the headers of its files; one is the embedding, which is also the
    head where the files have none. Raises BadBase."""
    shapes: dict[str, tuple[int, int] | None] = {}
    for file in _files(checkpoint):
        for name, (dtype, shape) in _header(file).items():
            layer, _, last = name.rpartition(".")
            if last == "weight" and dtype in _MATRICES:
                if len(shape) == 2:
                    shapes[layer] = (shape[0], shape[1])
            elif last in _PACKED:
                shapes[layer] = None
    if not shapes:
        raise BadBase(f"{checkpoint} holds no matrix; name the folder of a checkpoint")
    if _HEAD not in shapes and _EMBEDDING in shapes:
        shapes[_HEAD] = shapes[_EMBEDDING]
    return shapes


def count_parameters(checkpoint: Path) -> int:
    """Return the number of a base's weights, by the headers of its files. Raises BadBase, also for
    a quantised base, whose files pack several weights into one number: one with a packed layer that
    is known by its name, or with more other numbers than weights."""
    count = others = 0
    for file in _files(checkpoint):
        for name, (dtype, shape) in _header(file).items():
            if dtype in _MATRICES:
                count += prod(shape)
            elif name.rpartition(".")[2] in _PACKED:
                raise BadBase(f"{file} holds {name} as {dtype}: quantised weights are not counted")
            else:
                others += prod(shape)
    if others > count > 0:
        raise BadBase(
            f"{checkpoint} holds {others:,} numbers of types that are none of weights, and "
            f"{count:,} weights: quantised weights are not counted"
        )
    if not count:
        raise BadBase(f"{checkpoint} holds no weight; name the folder of a checkpoint")
    return count


def _files(checkpoint: Path) -> list[Path]:
    if (checkpoint / _INDEX).is_file():
        try:
            named = set(json.loads((checkpoint / _INDEX).read_bytes())["weight_map"].values())
            return [checkpoint / name for name in sorted(named)]
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadBase(f"{checkpoint / _INDEX} cannot be read: {error}") from error
    if (checkpoint / _WHOLE).is_file():
        return [checkpoint / _WHOLE]
    raise BadBase(
        f"{checkpoint} holds neither {_WHOLE} nor {_INDEX}; name the folder of a checkpoint in "
        "safetensors, or none"
    )


def _header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of a safetensors file's tensors, by name."""
    try:
        header = json.loads(_header_bytes(file))
        return {
            name: (tensor["dtype"], tuple(tensor["shape"]))
            for name, tensor in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadBase(f"{file} is no safetensors file that can be read: {error}") from error


def _header_bytes(file: Path) -> bytes:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > _HEADER_BYTES:
            raise ValueError(f"its header would have {length:,} bytes")
        return opened.read(length)


def _against(
    folder: Path,
    settings: Mapping[str, Any],
    factors: Mapping[str, Mapping[str, TensorData]],
    base: Layers,
) -> Iterable[str]:
    """Check the layers against those of the base; yields what could not be seen."""
    unknown = 0
    for name, pair in factors.items():
        if name not in base:
            raise BadAdapter(
                f"{folder} has weights of {name}, and the base has no such layer: it belongs to "
                "another base"
            )
        unknown += base[name] is None
        check_pair(folder, name, pair, base[name], _rank(settings, name))
    if unknown:
        yield f"that the shapes of {unknown} layers are those of the base, which is quantised"
    if not _names_all(settings):
        yield "that every layer its targets name has weights"
        return
    if missing := sorted(
        name for name in base if _is_target(settings, name) and name not in factors
    ):
        raise BadAdapter(f"{folder} targets {missing[0]} and has no weights for it")


def _names_all(settings: Mapping[str, Any]) -> bool:
    """Whether the targets are plain names: a pattern may well name embedding or head besides."""
    narrowed = settings.get("layers_to_transform") not in (None, [])
    return isinstance(settings.get("target_modules"), list) and not narrowed


def _is_target(settings: Mapping[str, Any], layer: str) -> bool:
    """PEFT's own rule, numbers of layers left out."""
    return _is_match(settings.get("target_modules"), layer) and not (
        settings.get("exclude_modules") and _is_match(settings["exclude_modules"], layer)
    )


def _is_match(names: Any, layer: str) -> bool:
    if isinstance(names, str):
        return bool(_pattern(names).fullmatch(layer))
    if not isinstance(names, Sequence):
        return False
    return any(layer == name or layer.endswith(f".{name}") for name in names)


def _rank(settings: Mapping[str, Any], layer: str) -> int:
    """What the configuration says of a layer."""
    return int(_find_value(settings.get("rank_pattern"), layer, settings["r"]))


def get_scale(settings: Mapping[str, Any], layer: str, rank: int) -> float:
    """Return what the product of a layer's factors is multiplied by."""
    alpha = float(_find_value(settings.get("alpha_pattern"), layer, settings["lora_alpha"]))
    return alpha / (rank**0.5 if settings.get("use_rslora") else rank)


def _find_value(patterns: Mapping[str, Any] | None, layer: str, default: Any) -> Any:
    """Return the value of the first pattern that a layer's name has."""
    for pattern, value in (patterns or {}).items():
        if _pattern(rf"(.*\.)?({pattern})").fullmatch(layer):
            return value
    return default


def _pattern(text: str) -> Any:
    """Compile a pattern with re2, which matches any pattern in linear time. Raises BadAdapter."""
    try:
        return re2.compile(text)
    except re2.error as error:
        raise BadAdapter(
            f"the pattern {text!r} cannot be used ({error}): list the names of the layers"
        ) from error


def _check_files(folder: Path) -> None:
    """What engines read lies in the directory itself and nowhere else."""
    if not folder.is_dir():
        raise BadAdapter(f"{folder} is no directory of this machine")
    for name in (CONFIG, WEIGHTS, PROVENANCE):
        path = folder / name
        if path.is_symlink():
            raise BadAdapter(f"{path} is a link; copy what it leads to (cp -L)")
        if path.exists() and not stat.S_ISREG(path.lstat().st_mode):
            raise BadAdapter(f"{path} is no file")
    if pickled := [name for name in _PICKLES if (folder / name).exists()]:
        raise BadAdapter(
            f"{folder / pickled[0]} may run code when it is read; only safetensors is served: "
            f"convert it to {WEIGHTS}, and remove it"
        )
