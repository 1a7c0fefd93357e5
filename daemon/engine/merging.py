"""One LoRA adapter made of several of one base: their sum, or CORE-TSV.

    python -m daemon.engine.merging OUT ADAPTER=WEIGHT... [--method sum] [--rank 32]

    members = read_members(folders, weights)
    contents = build_directory(members, merge(members, 32, "core_tsv"), "core_tsv")

The command writes a directory of PEFT into OUT, which must not be there, and prints its rank. Exit
codes are those of `kintsugi`: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.

Of layer l member i changes the base by w_i s_i B_i A_i (s_i is its alpha over its rank). Let U be
an orthonormal basis of what all B span, and V one of what all A span. Then each change is a small
matrix M_i = w_i s_i U'B_i A_i V with at most as many rows and columns as the sum of all ranks:

    sum         M = M_1 + ... + M_T. Truncated by its singular values where `rank` is less than what
                it takes: the best approximation there is.
    core_tsv    of each M_i the floor(rank / T) largest singular triples; left and right vectors of
                all members are made orthonormal together, by the polar factor of their matrix; and
                every singular value of the result becomes the mean of all. Directions that two
                members have in common are one.

Source: TRACE's core_tsv_merge_adapters.py, after TSV (arXiv 2412.00081) and Core Space merging
(arXiv 2509.17786). Its release makes all singular values equal and truncates afterwards, which
keeps an arbitrary subspace; here each member is truncated before.

Guarantee: equal members give equal weights on one machine. Not covered: whether the result is any
good; a gate says that.
"""

import hashlib
import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import torch
from safetensors.torch import load
from safetensors.torch import save as to_safetensors
from torch import Tensor

from daemon.adapters.compatibility import (
    HALF_LIMIT,
    PREFIX,
    fit,
    parse_pairs,
    plain_settings,
    read_scales,
    read_weights_file,
)
from daemon.adapters.directory import (
    CARD,
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    Provenance,
    WrongBase,
    format_json,
    has_provenance,
    verify,
    write_directory,
)
from events.errors import KintsugiError
from events.jobs import LoraSettings
from events.serving import MergeMethod

_TINY: Final = 1e-6
"""Singular values below this share of the largest one count as 0."""
_ROUGH: Final = 1e-2
"""The same share if a member is in half precision, since its copies differ by less."""
MOST_RANK: Final = 512


class CannotMerge(KintsugiError):
    """These adapters cannot be merged into one."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Change of one layer: `up` times `down`."""

    down: Tensor
    """Shape (rank, columns), double precision."""
    up: Tensor
    """Shape (rows, rank), scaled."""


@dataclass(frozen=True, slots=True)
class Member:
    """An adapter that is merged."""

    folder: Path
    weight: float
    settings: Mapping[str, Any]
    layers: Mapping[str, Factors]
    dtype: torch.dtype
    provenance: Provenance | None
    """Provenance of the adapter; None if another trainer made it."""

    @property
    def rank(self) -> int:
        """Largest rank among the adapter's layers."""
        return max(len(factors.down) for factors in self.layers.values())


def read_members(folders: Sequence[Path], weights: Sequence[float]) -> list[Member]:
    """Read adapters. Raise BadAdapter, CannotMerge, WrongBase."""
    members = [
        _read_member(folder, weight) for folder, weight in zip(folders, weights, strict=True)
    ]
    if len(members) < 2:
        raise CannotMerge("one adapter is merged with nothing; name two or more")
    first = members[0]
    for other in members[1:]:
        if first.layers.keys() != other.layers.keys():
            layer = min(first.layers.keys() ^ other.layers.keys())
            owner, lacking = (first, other) if layer in first.layers else (other, first)
            raise CannotMerge(
                f"{owner.folder.name} changes {layer}, and {lacking.folder.name} does not; merge "
                "adapters with equal targets"
            )
        for name, factors in first.layers.items():
            _check_shapes(name, factors, other.layers[name], first, other)
    bases = {item.provenance.base.sha256 for item in members if item.provenance is not None}
    if len(bases) > 1:
        raise WrongBase(
            f"the adapters are of {len(bases)} bases ({', '.join(sorted(b[:12] for b in bases))}); "
            "merge adapters of one"
        )
    return members


def _check_shapes(
    name: str, factors: Factors, others: Factors, first: Member, second: Member
) -> None:
    shapes = [(len(own.up), own.down.shape[1]) for own in (factors, others)]
    if shapes[0] != shapes[1]:
        raise WrongBase(
            f"{name} is a layer of {shapes[0][0]} by {shapes[0][1]} to {first.folder.name}, and of "
            f"{shapes[1][0]} by {shapes[1][1]} to {second.folder.name}; merge adapters of one base"
        )


def _read_member(folder: Path, weight: float) -> Member:
    fit(folder, None)
    settings = plain_settings(folder)
    content = read_weights_file(folder)
    tensors, layers = load(content), {}
    ranks = {name: pair["A"].shape[0] for name, pair in parse_pairs(folder, content).items()}
    for name, scale in sorted(read_scales(settings, ranks).items()):
        down = tensors[f"{PREFIX}{name}.lora_A.weight"]
        up = tensors[f"{PREFIX}{name}.lora_B.weight"]
        layers[name] = Factors(down.double(), up.double() * scale)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    return Member(
        folder=folder,
        weight=weight,
        settings=settings,
        layers=layers,
        dtype=torch.float32 if torch.float32 in dtypes else max(dtypes, key=str),
        provenance=verify(folder) if has_provenance(folder) else None,
    )


def find_largest_rank(members: Sequence[Member]) -> int:
    """Return the sum of all members' ranks, but at most what the narrowest layer allows."""
    sizes = [min(len(factors.up), factors.down.shape[1]) for factors in members[0].layers.values()]
    return min(sum(member.rank for member in members), MOST_RANK, *sizes)


def find_usual_rank(members: Sequence[Member]) -> int:
    """Return the largest rank of a member: engines hold it, and jobs can continue from it."""
    return min(max(member.rank for member in members), find_largest_rank(members))


def merge(members: Sequence[Member], rank: int, method: MergeMethod) -> dict[str, Factors]:
    """Return layer -> factors of this rank, singular values shared evenly. Raise CannotMerge."""
    largest = find_largest_rank(members)
    least = len(members) if method == "core_tsv" else 1
    if not least <= rank <= largest:
        raise CannotMerge(
            f"rank {rank} is none of {len(members)} adapters merged by {method}: it takes {least} "
            f"at least, and their ranks and the narrowest layer allow {largest}"
        )
    return {
        name: _merge_layer([member.layers[name] for member in members], members, rank, method)
        for name in members[0].layers
    }


def _merge_layer(
    layers: Sequence[Factors], members: Sequence[Member], rank: int, method: MergeMethod
) -> Factors:
    rows = torch.linalg.qr(torch.cat([own.up for own in layers], dim=1)).Q
    columns = torch.linalg.qr(torch.cat([own.down for own in layers]).T).Q
    cores = [
        member.weight * (rows.T @ own.up) @ (own.down @ columns)
        for own, member in zip(layers, members, strict=True)
    ]
    if not all(torch.isfinite(core).all() for core in cores):
        raise CannotMerge("a weight makes a change that is not finite; lower the weights")
    if method == "sum":
        left, values, right = _decompose(sum(cores, torch.zeros_like(cores[0])), rank)
    else:
        is_half = any(member.dtype != torch.float32 for member in members)
        left, values, right = _orthogonalise(
            cores, rank // len(cores), _ROUGH if is_half else _TINY
        )
    roots = values.sqrt()
    return _pad(Factors((right * roots).T @ columns.T, rows @ left * roots), rank)


def _decompose(core: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    left, values, right = torch.linalg.svd(core, full_matrices=False)
    return left[:, :rank], values[:rank], right[:rank].T


def _orthogonalise(
    cores: Sequence[Tensor], rank: int, tiny: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `rank` largest triples of each core, orthonormal together, with the mean singular
    value. Common directions count once; those of a singular value of 0 are left out."""
    parts = [_drop_tiny(_decompose(core, rank), tiny) for core in cores]
    values = torch.cat([part[1] for part in parts])
    if not len(values):
        return parts[0]
    left = _find_polar(torch.cat([part[0] for part in parts], dim=1), tiny)
    right = _find_polar(torch.cat([part[2] for part in parts], dim=1), tiny)
    whole = _drop_tiny(_decompose(left * values @ right.T, len(values)), tiny)
    return whole[0], whole[1].mean().expand_as(whole[1]), whole[2]


def _drop_tiny(
    triples: tuple[Tensor, Tensor, Tensor], tiny: float
) -> tuple[Tensor, Tensor, Tensor]:
    left, values, right = triples
    present = values > tiny * values.max() if len(values) else values > 0
    return left[:, present], values[present], right[:, present]


def _find_polar(vectors: Tensor, tiny: float) -> Tensor:
    """Return the nearest partial isometry: orthonormal columns if `vectors` are independent."""
    left, values, right = torch.linalg.svd(vectors, full_matrices=False)
    present = values > tiny * values.max()
    nearest: Tensor = left[:, present] @ right[present]
    return nearest


def _pad(factors: Factors, rank: int) -> Factors:
    missing = rank - len(factors.down)
    return Factors(
        torch.nn.functional.pad(factors.down, (0, 0, 0, missing)),
        torch.nn.functional.pad(factors.up, (0, missing)),
    )


def build_directory(
    members: Sequence[Member], merged: Mapping[str, Factors], method: MergeMethod
) -> dict[str, bytes]:
    """Return the files of a directory of PEFT. It has a provenance if every member has one."""
    rank = len(next(iter(merged.values())).down)
    dtypes = {member.dtype for member in members}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    scale = _find_scale(members)
    tensors = {}
    for name, factors in merged.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = factors.down.to(dtype).contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = (factors.up / scale).to(dtype).contiguous()
    _check_finite(tensors)
    contents = {
        WEIGHTS: to_safetensors(tensors, metadata={"format": "pt"}),
        CONFIG: format_json(_build_config(members[0].settings, rank, scale * rank)),
    }
    provenances = [item.provenance for item in members if item.provenance is not None]
    if len(provenances) == len(members):
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        provenance = _build_provenance(members, provenances, scale * rank, rank, method, hashes)
        contents[PROVENANCE] = format_json(provenance.model_dump(mode="json"))
        contents[CARD] = _write_card(provenances, provenance, method).encode()
    return contents


def _find_scale(members: Sequence[Member]) -> float:
    """Return the members' common alpha / rank, so that jobs can continue from the merge, or 1."""
    scales: set[float] = set()
    for member in members:
        ranks = {name: len(factors.down) for name, factors in member.layers.items()}
        scales.update(read_scales(member.settings, ranks).values())
    return scales.pop() if len(scales) == 1 else 1.0


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not (tensor.abs() < HALF_LIMIT).all():
            raise CannotMerge(
                f"{name} of the merged adapter would be no number in half precision; lower the "
                "weights"
            )


def _build_config(settings: Mapping[str, Any], rank: int, alpha: float) -> dict[str, Any]:
    changes = {
        "r": rank, "lora_alpha": alpha, "use_rslora": False, "rank_pattern": {},
        "alpha_pattern": {}, "inference_mode": True,
    }  # fmt: skip
    return {**settings, **changes, "peft_type": "LORA"}


def _build_provenance(
    members: Sequence[Member],
    provenances: Sequence[Provenance],
    alpha: float,
    rank: int,
    method: MergeMethod,
    hashes: Mapping[str, str],
) -> Provenance:
    first = provenances[0]
    rollouts = dict.fromkeys(name for item in provenances for name in item.rollouts)
    parts = [
        {"sha256": item.files[WEIGHTS], "weight": member.weight}
        for member, item in zip(members, provenances, strict=True)
    ]
    return Provenance(
        base=first.base,
        lora=LoraSettings(rank=rank, alpha=alpha, targets=first.lora.targets),
        seed=first.seed,
        steps=sum(item.steps for item in provenances),
        rollouts=tuple(rollouts),
        spec={"merge": {"method": method, "members": parts}},
        files=dict(hashes),
    )


def _write_card(
    provenances: Sequence[Provenance], provenance: Provenance, method: MergeMethod
) -> str:
    base = provenance.base
    names = ", ".join(f"`{item.files[WEIGHTS][:12]}`" for item in provenances)
    return f"""---
base_model: {base.name}
library_name: peft
tags: [lora, kintsugi, merge]
---

# A LoRA adapter of {base.name}

Merged by kintsugi ({method}) of the adapters with the weights {names}:
rank {provenance.lora.rank}, base weights `{base.sha256}`. Nothing was trained for it.
That it is better than its base is shown by a gate and not by this card.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = ArgumentParser(prog="python -m daemon.engine.merging", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("members", nargs="+", type=_parse_member, metavar="ADAPTER=WEIGHT")
    parser.add_argument("--method", choices=get_args(MergeMethod), default="sum")
    parser.add_argument("--rank", type=int, help="default: the largest of a member")
    options = parser.parse_args(arguments)
    # The number of threads decides the order of sums, and so the last bits of a result.
    torch.set_num_threads(1)
    try:
        folders, weights = zip(*options.members, strict=True)
        members = read_members(folders, weights)
        rank = find_usual_rank(members) if options.rank is None else options.rank
        merged = merge(members, rank, options.method)
        write_directory(options.out, build_directory(members, merged, options.method))
    except (KintsugiError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"rank": rank}))
    return 0


def _parse_member(text: str) -> tuple[Path, float]:
    folder, separator, weight = text.rpartition("=")
    try:
        return Path(folder if separator else text), float(weight) if separator else 1.0
    except ValueError as error:
        raise ArgumentTypeError(f"{weight!r} is no weight") from error


if __name__ == "__main__":
    sys.exit(main())
