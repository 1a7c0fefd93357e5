"""Checks from the files alone whether an adapter fits a base: loads nothing, needs no torch.

It reads the whole adapter, and the headers of the base's safetensors files. Engines check little:
vLLM takes an adapter full of NaN, and one whose targets name nothing. Settings that name layers are
resolved here (`list_targets`) by PEFT's rule with RE2, and daemon/engine/lora.py passes these names
to PEFT. So check and load agree, and no foreign pattern runs in exponential time.

Guarantees for a directory that fits: configuration, weights and provenance are its own files and no
links; it is plain LoRA in safetensors; every number, scales included, is finite in half precision;
every layer has an A and a B of the configured rank, within the limit; the provenance's hashes hold.
With a checkpoint also: every layer is a matrix of the base of that shape, and every target has
weights. `Fit.unchecked` names the checks that were not possible.

Not covered: that base and adapter belong together beyond their shapes (fingerprint.py); bases whose
tensors have other names than the model's modules (some of images and of fused experts), whose
adapters are checked without a checkpoint.
"""

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import re2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from daemon.adapters.directory import (
    CONFIG,
    WEIGHTS,
    BadAdapter,
    TensorData,
    has_provenance,
    parse_weights,
    read_config,
    read_file,
    verify,
)
from events.errors import KintsugiError
from events.registry import first_problem


class RankTooHigh(BadAdapter):
    """The adapter's rank exceeds the limit of the engines."""


Layers = Mapping[str, tuple[int, int] | None]
"""Layer -> (rows, columns) of its matrix (outputs, inputs); None: the shape is not known."""

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
        "lora_dropout",  # dropout has no effect when answers are written
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
"""PEFT's settings under which an adapter still is products of A and B added to linear layers."""

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian"),
}
"""Settings that are allowed with these values only; any other setting must be empty."""

HALF_LIMIT: Final = 65_536
"""Smallest magnitude that becomes infinite in half precision."""
_MOST_RANK: Final = 65_536
"""Rows of the widest layer there is: no layer has a higher rank."""
_MOST_STEPS: Final = 1 << 30
"""Pattern program sizes times characters of layer names; 600 layers with a rank each take 0.9e9."""
_LONGEST_NAME: Final = 256
"""Maximum characters of a weight's name."""
_MOST_WEIGHTS: Final = 1 << 16
"""Maximum weights of an adapter: two for every layer of 500 blocks with 64 layers each."""

_Name = Annotated[str, Field(min_length=1)]


class _LayerSettings(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    peft_type: Literal["LORA"]
    target_modules: _Name | list[_Name] | None = None
    exclude_modules: str | list[_Name] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[_Name] | None = None
    rank_pattern: dict[_Name, Any] | None = None
    alpha_pattern: dict[_Name, Any] | None = None
    use_rslora: bool | None = None


PREFIX: Final = "base_model.model."
_PICKLES: Final = ("adapter_model.bin", "adapter_model.pt")
"""Files that engines read if there is no safetensors file, and that can run code."""

_INDEX: Final = "model.safetensors.index.json"
_WHOLE: Final = "model.safetensors"
_HEADER_BYTES: Final = 100_000_000
"""Maximum bytes of a header, which is safetensors' own limit."""
_MATRICES: Final = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""Types of weights that are stored with one number per weight."""
_PACKED: Final = frozenset({"weight", "qweight", "weight_packed"})

_HEAD: Final = "lm_head"
_EMBEDDING: Final = "model.embed_tokens"

_NO_BASE: Final = (
    "that its layers are layers of the base",
    "that their shapes are those of the base",
    "that every layer its targets name has weights",
)


class BadBase(KintsugiError):
    """The layers of a checkpoint cannot be read."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a check that passed."""

    layers: int
    rank: int
    """Largest rank among the adapter's layers."""
    unchecked: tuple[str, ...]
    """Checks that were not possible, each the end of `it was not checked ...`."""


def read_rank(folder: Path) -> int:
    """Return the rank in an adapter's configuration. Raises BadAdapter."""
    return int(plain_settings(folder)["r"])


def fit(folder: Path, checkpoint: Path | None, max_rank: int | None = None) -> Fit:
    """Check a directory of PEFT against a base, or by itself (None). Raises BadAdapter, BadBase."""
    _check_files(folder)
    if has_provenance(folder):
        verify(folder)
    settings = plain_settings(folder)
    factors = pairs(folder)
    if not factors:
        raise BadAdapter(f"{folder / WEIGHTS} holds no weights")
    if foreign := sorted(factors.keys() - list_targets(settings, factors)):
        raise BadAdapter(f"{folder} has weights of {foreign[0]}, which it does not target")
    ranks = read_ranks(settings, factors)
    for name, pair in factors.items():
        check_pair(folder, name, pair, None, ranks[name])
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
    targets = settings.get("target_modules")
    known = {ending for name in names for ending in _list_endings(name)}
    for target in targets if isinstance(targets, list) else []:
        if target not in known:
            raise BadAdapter(
                f"{folder} targets {target!r} and has no weights of such a layer: remove it from "
                f"target_modules of {CONFIG}, or train it with the base's names"
            )


def plain_settings(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration if it is plain LoRA. Raises BadAdapter."""
    config = read_config(folder)
    if config.get("peft_type") != "LORA":
        raise BadAdapter(f"{folder / CONFIG} describes no LoRA adapter of PEFT")
    try:
        _LayerSettings.model_validate(config)
    except ValidationError as error:
        raise BadAdapter(f"{folder / CONFIG}: {first_problem(error)}") from None
    if isinstance(config.get("target_modules"), str) and config.get("layers_to_transform"):
        raise BadAdapter(
            f"{folder / CONFIG}: layers_to_transform is {config['layers_to_transform']!r} beside a "
            "pattern of target_modules: write the numbers into the pattern"
        )
    for name, value in config.items():
        if not _plain(name, value):
            raise BadAdapter(
                f"{folder} sets {name} to {str(value)[:80]!r}; only plain LoRA is served: train it "
                "without"
            )
    _check_numbers(folder, config)
    return {name: value for name, value in config.items() if name in _PLAIN}


def _check_numbers(folder: Path, config: Mapping[str, Any]) -> None:
    """Check the numbers that scale an adapter; engines have defaults of their own for them."""
    ranks = {"r": config.get("r"), **(config.get("rank_pattern") or {})}
    for name, rank in ranks.items():
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise BadAdapter(f"{folder / CONFIG} has no whole number for the rank {name}: {rank!r}")
        if not 1 <= rank <= _MOST_RANK:
            raise BadAdapter(
                f"{folder / CONFIG}: the rank {name} is {rank}; a rank is 1 to {_MOST_RANK:,}"
            )
    alphas = {"lora_alpha": config.get("lora_alpha"), **(config.get("alpha_pattern") or {})}
    for name, alpha in alphas.items():
        if not isinstance(alpha, int | float) or isinstance(alpha, bool):
            raise BadAdapter(f"{folder / CONFIG} has no number for {name}: {alpha!r}")
        # Also what JSON cannot say and its readers make of it: 1e999 is read as infinity.
        if not -HALF_LIMIT < alpha < HALF_LIMIT:
            raise BadAdapter(
                f"{folder / CONFIG}: {name} is not finite (in half precision): {alpha}"
            )


def _plain(name: str, value: Any) -> bool:
    if name in _NEUTRAL:
        return value in _NEUTRAL[name]
    return name in _PLAIN or not _set(value)


def _set(value: Any) -> bool:
    """Return whether a setting has an effect; a setting whose parts are all empty has none."""
    if isinstance(value, dict):
        return any(_set(part) for part in value.values())
    return bool(value)


def pairs(folder: Path) -> dict[str, dict[str, TensorData]]:
    """Return layer -> its factors A and B; all numbers are finite. Raises BadAdapter."""
    return parse_pairs(folder, read_weights_file(folder))


def read_weights_file(folder: Path, limit: int | None = None) -> bytes:
    """Return an adapter's file of weights, at most `limit` bytes. Raises BadAdapter."""
    if not os.path.lexists(folder / WEIGHTS):
        raise BadAdapter(
            f"{folder / WEIGHTS} is missing; other formats than safetensors are not read"
        )
    return read_file(folder / WEIGHTS, limit)


def parse_pairs(folder: Path, content: bytes) -> dict[str, dict[str, TensorData]]:
    """Return layer -> its A and its B from a file of weights. Raises BadAdapter."""
    factors: dict[str, dict[str, TensorData]] = {}
    tensors = parse_weights(folder, content)
    if len(tensors) > _MOST_WEIGHTS:
        raise BadAdapter(
            f"{folder / WEIGHTS} holds {len(tensors):,} weights; at most {_MOST_WEIGHTS:,} are read"
        )
    for name, tensor in tensors.items():
        layer, _, rest = name.removeprefix(PREFIX).rpartition(".lora_")
        is_name = len(name) <= _LONGEST_NAME and name.isprintable()
        if not is_name or not name.startswith(PREFIX) or rest not in ("A.weight", "B.weight"):
            named = name if is_name else repr(name[:_LONGEST_NAME])
            raise BadAdapter(f"{folder / WEIGHTS} holds {named}, which is no LoRA weight of PEFT")
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
    """Check both factors of a layer by `rank` and `shape` (None: any). Raises BadAdapter."""
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
    """Return a base's matrices by file headers; a missing head is the embedding. Raises BadBase."""
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
    """Return the number of a base's weights from the headers of its files. Raises BadBase, also for
    a quantised base (several weights in one number): one with a packed layer by its name, or with
    more other numbers than weights."""
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
    """Check the layers against the base's; yield the checks that were not possible."""
    unknown, ranks = 0, read_ranks(settings, factors)
    for name, pair in factors.items():
        if name not in base:
            raise BadAdapter(
                f"{folder} has weights of {name}, and the base has no such layer: it belongs to "
                "another base"
            )
        unknown += base[name] is None
        check_pair(folder, name, pair, base[name], ranks[name])
    if unknown:
        yield f"that the shapes of {unknown} layers are those of the base, which is quantised"
    if not isinstance(settings.get("target_modules"), list):
        # A pattern may also match the embedding or the head.
        yield "that every layer its targets name has weights"
        return
    if missing := sorted(list_targets(settings, base) - factors.keys()):
        raise BadAdapter(f"{folder} targets {missing[0]} and has no weights for it")


def list_targets(settings: Mapping[str, Any], names: Collection[str]) -> set[str]:
    """Return the layers that an adapter targets, by PEFT's rule. Raises BadAdapter."""
    targets, excluded = settings.get("target_modules"), settings.get("exclude_modules")
    named = _match(targets, names) - (_match(excluded, names) if excluded else set())
    # PEFT checks no number of a layer that is listed by its whole name.
    listed = set(targets) if isinstance(targets, list) else set()
    return (named & listed) | _match_numbers(settings, named - listed)


def _match(wanted: str | list[str] | None, names: Collection[str]) -> set[str]:
    if isinstance(wanted, str):
        (pattern,) = _compile([wanted], names)
        return {name for name in names if pattern.fullmatch(name)}
    known = frozenset(wanted or ())
    return {name for name in names if not known.isdisjoint(_list_endings(name))}


def _list_endings(layer: str) -> list[str]:
    """Return the names that match a layer: its full name, and the rest after each dot."""
    parts = layer.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _match_numbers(settings: Mapping[str, Any], names: Collection[str]) -> set[str]:
    numbers, prefix = settings.get("layers_to_transform"), settings.get("layers_pattern")
    if numbers is None or numbers == []:
        return set(names)
    wanted = set(numbers) if isinstance(numbers, list) else {numbers}
    prefixes = [prefix] if isinstance(prefix, str) else prefix
    texts = [rf"(?:^|.*?\.){own}\.(?P<idx>\d{{1,9}})\." for own in prefixes or ()]
    patterns = _compile(texts or [r".*?\.[^.]*\.(?P<idx>\d{1,9})\."], names)

    def find_number(name: str) -> str | None:
        matches = (pattern.match(name) for pattern in patterns)
        first = next((match for match in matches if match is not None), None)
        return None if first is None else first.groupdict().get("idx")

    found = {name: find_number(name) for name in names}
    return {name for name, number in found.items() if number and int(number) in wanted}


def read_ranks(settings: Mapping[str, Any], layers: Collection[str]) -> dict[str, int]:
    """Return layer -> its configured rank. Raises BadAdapter."""
    return _find_values(settings.get("rank_pattern"), layers, settings["r"])


def read_alphas(settings: Mapping[str, Any], layers: Collection[str]) -> dict[str, float]:
    """Return layer -> its configured alpha. Raises BadAdapter."""
    return _find_values(settings.get("alpha_pattern"), layers, settings["lora_alpha"])


def read_scales(settings: Mapping[str, Any], ranks: Mapping[str, int]) -> dict[str, float]:
    """Return layer -> factor of A times B, from layer -> rank. Raises BadAdapter."""
    alphas, is_root = read_alphas(settings, ranks), settings.get("use_rslora")
    return {
        layer: float(alphas[layer]) / (rank**0.5 if is_root else rank)
        for layer, rank in ranks.items()
    }


def _find_values(
    patterns: Mapping[str, Any] | None, layers: Collection[str], default: Any
) -> dict[str, Any]:
    texts = [rf"(.*\.)?({pattern})" for pattern in patterns or ()]
    values = list(zip(_compile(texts, layers), (patterns or {}).values(), strict=True))
    return {
        layer: next((value for own, value in values if own.fullmatch(layer)), default)
        for layer in layers
    }


def _compile(patterns: Iterable[str], names: Collection[str]) -> list[Any]:
    """Compile patterns to match with `names`, with RE2, whose time is linear. Raises BadAdapter,
    also for patterns that are too large for this many names."""
    compiled: list[Any] = []
    most = _MOST_STEPS // max(sum(map(len, names)), 1)
    size = 0
    for text in patterns:
        compiled.append(_pattern(text))
        size += compiled[-1].programsize
        if size > most:
            raise BadAdapter(
                f"the first {len(compiled)} patterns of {CONFIG}, the last of them {text[:80]!r}, "
                f"are too large for {len(names)} layers: list the names of the layers"
            )
    return compiled


def _pattern(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False  # raised instead
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise BadAdapter(
            f"the pattern {text[:80]!r} cannot be used ({error}): list the names of the layers"
        ) from error


def _check_files(folder: Path) -> None:
    """Check that the files that engines read lie in the directory and are no links."""
    if not os.path.isdir(folder):
        raise BadAdapter(f"{folder} is no directory of this machine")
    if pickled := [name for name in _PICKLES if os.path.lexists(folder / name)]:
        raise BadAdapter(
            f"{folder / pickled[0]} may run code when it is read; only safetensors is served: "
            f"convert it to {WEIGHTS}, and remove it"
        )
