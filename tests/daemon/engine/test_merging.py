"""Merges of adapters: exact where nothing is lost, as the formulas say where something is."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from daemon.adapters.compatibility import fit
from daemon.adapters.directory import WEIGHTS, WrongBase, write_directory
from daemon.engine.merging import (
    CannotMerge,
    Factors,
    Member,
    build_directory,
    find_largest_rank,
    find_usual_rank,
    main,
    merge,
    read_members,
)
from daemon.engine.policy import Policy
from events.serving import MergeMethod
from tests.daemon.engine.conftest import TARGETS, save_adapter
from tests.daemon.engine.random_model import checkpoint as random_checkpoint

METHODS: tuple[MergeMethod, ...] = ("sum", "core_tsv")


def change(factors: Factors) -> Tensor:
    return factors.up @ factors.down


def build(folder: Path, folders: list[Path], weights: list[float], rank: int, method: Any) -> Path:
    members = read_members(folders, weights)
    write_directory(folder, build_directory(members, merge(members, rank, method), method))
    return folder


def test_a_sum_of_full_rank_is_what_the_members_add(
    checkpoint: Path, adapter: Path, other_adapter: Path, base: Policy, tmp_path: Path
) -> None:
    members = read_members([adapter, other_adapter], [1.0, -0.5])
    assert (find_usual_rank(members), find_largest_rank(members)) == (4, 8)
    merged = merge(members, 8, "sum")
    for name, factors in merged.items():
        wanted = change(members[0].layers[name]) - 0.5 * change(members[1].layers[name])
        assert torch.allclose(change(factors), wanted, atol=1e-9)
    folder = build(tmp_path / "merged", [adapter, other_adapter], [1.0, -0.5], 8, "sum")
    assert fit(folder, checkpoint).rank == 8
    layer = base.with_adapter(folder, "merged").weights.layers[0]
    parts = [base.with_adapter(item, "part").weights.layers[0] for item in (adapter, other_adapter)]
    own = base.weights.layers[0]
    wanted = own.down + (parts[0].down - own.down) - 0.5 * (parts[1].down - own.down)
    assert torch.allclose(layer.down, wanted, atol=1e-4)


def test_a_truncated_sum_is_the_best_approximation(adapter: Path, other_adapter: Path) -> None:
    members = read_members([adapter, other_adapter], [1.0, 1.0])
    whole, small = merge(members, 8, "sum"), merge(members, 3, "sum")
    for name, factors in small.items():
        values = torch.linalg.svdvals(change(whole[name]))
        error = torch.linalg.matrix_norm(change(whole[name]) - change(factors))
        assert error == pytest.approx(float(values[3:8].norm()), rel=1e-6)


@pytest.mark.parametrize("rank", [8, 4])
def test_core_tsv_keeps_the_largest_directions_of_each_and_makes_them_equal(
    adapter: Path, other_adapter: Path, rank: int
) -> None:
    members = read_members([adapter, other_adapter], [1.0, 1.0])
    for name, factors in merge(members, rank, "core_tsv").items():
        values = torch.linalg.svdvals(change(factors))[:rank]
        tops = [torch.linalg.svdvals(change(m.layers[name]))[: rank // 2] for m in members]
        assert torch.allclose(values, values.mean().expand(rank), rtol=1e-6)
        assert float(values[0]) == pytest.approx(float(torch.cat(tops).mean()), rel=1e-6)
        assert torch.linalg.matrix_rank(change(factors)) == rank
        left = torch.linalg.svd(change(factors)).U[:, :rank]
        for member in members:
            own = torch.linalg.svd(change(member.layers[name])).U[:, : rank // 2]
            assert torch.allclose(left @ (left.T @ own), own, atol=1e-6), "it lies in the result"


def test_core_tsv_of_members_without_common_directions_is_their_sum_made_equal(
    tmp_path: Path,
) -> None:
    """Each writes other rows and reads other columns, with singular values of its own."""
    first = Factors(torch.eye(2, 6, dtype=torch.double), 2 * torch.eye(6, 2, dtype=torch.double))
    down = torch.zeros(2, 6, dtype=torch.double)
    down[0, 2] = down[1, 3] = 1
    second = Factors(down, 4 * down.T)
    merged = merge_layers(first, second, rank=4, method="core_tsv")
    assert torch.allclose(
        change(merged), 3 * torch.diag(torch.tensor([1.0, 1, 1, 1, 0, 0])).double()
    )


def merge_layers(*layers: Factors, rank: int, method: MergeMethod) -> Factors:
    members = [Member(Path("."), 1.0, {}, {"layer": item}, torch.float32, None) for item in layers]
    return merge(members, rank, method)["layer"]


def test_what_members_have_in_common_counts_once_in_core_tsv(adapter: Path) -> None:
    members = read_members([adapter, adapter], [1.0, 1.0])
    for name, factors in merge(members, 8, "core_tsv").items():
        own = change(members[0].layers[name])
        assert torch.linalg.matrix_rank(change(factors), rtol=1e-5) == 4
        mean = float(torch.linalg.svdvals(own)[:4].mean())
        assert torch.linalg.svdvals(change(factors))[0] == pytest.approx(mean, rel=1e-6)
        assert torch.isfinite(factors.up).all()


@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_that_changes_nothing_adds_nothing_and_breaks_nothing(
    adapter: Path, other_adapter: Path, method: MergeMethod
) -> None:
    alone = read_members([adapter, other_adapter], [1.0, 0.0])
    none = read_members([adapter, other_adapter], [0.0, 0.0])
    for name, factors in merge(alone, 8, method).items():
        own = change(alone[0].layers[name])
        values = torch.linalg.svdvals(own)[:4]
        wanted = values if method == "sum" else values.mean().expand(4)
        assert torch.allclose(torch.linalg.svdvals(change(factors))[:4], wanted, rtol=1e-6)
        assert torch.linalg.matrix_rank(change(factors), rtol=1e-5) == 4
        silent = merge(none, 8, method)[name]
        assert torch.equal(change(silent), torch.zeros_like(own))


def test_a_copy_in_half_precision_is_the_same_direction(
    checkpoint: Path, adapter: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    shutil.copytree(adapter, half)
    weights = {name: t.bfloat16() for name, t in load_file(adapter / WEIGHTS).items()}
    (half / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
    members = read_members([adapter, half], [1.0, 1.0])
    for factors in merge(members, 8, "core_tsv").values():
        assert torch.linalg.matrix_rank(change(factors), rtol=1e-5) == 4


def test_ranks_alphas_and_patterns_of_peft_scale_as_they_do_there(
    checkpoint: Path, base: Policy, tmp_path: Path, adapter: Path
) -> None:
    odd = save_adapter(
        checkpoint, tmp_path / "odd", 3, r=2, lora_alpha=6, use_rslora=True,
        alpha_pattern={"q_proj": 3},
    )  # fmt: skip
    folder = build(tmp_path / "merged", [odd, adapter], [1.0, 0.0], 6, "sum")
    wanted = base.with_adapter(odd, "odd").weights.layers[0]
    layer = base.with_adapter(folder, "merged").weights.layers[0]
    assert torch.allclose(layer.down, wanted.down, atol=1e-4)
    assert torch.allclose(layer.qkv, wanted.qkv, atol=1e-4)


def test_what_cannot_be_one_is_refused(
    checkpoint: Path, adapter: Path, other_adapter: Path, tmp_path: Path
) -> None:
    with pytest.raises(CannotMerge, match="name two or more"):
        read_members([adapter], [1.0])
    fewer = save_adapter(checkpoint, tmp_path / "fewer", 4, target_modules=list(TARGETS[:2]))
    with pytest.raises(CannotMerge, match=r"changes .*down_proj, and fewer does not"):
        read_members([adapter, fewer], [1.0, 1.0])
    members = read_members([adapter, other_adapter], [1.0, 1.0])
    with pytest.raises(CannotMerge, match=r"takes 1 at least, .* allow 8"):
        merge(members, 9, "sum")
    with pytest.raises(CannotMerge, match=r"takes 2 at least, .* allow 8"):
        merge(members, 1, "core_tsv")
    for weight in (1e308, float("inf"), float("nan")):
        broken = read_members([adapter, other_adapter], [weight, 1.0])
        with pytest.raises(CannotMerge, match="not finite; lower the weights"):
            merge(broken, 8, "sum")
    large = read_members([adapter, other_adapter], [1e14, 1.0])
    with pytest.raises(CannotMerge, match="no number in half precision"):
        build_directory(large, merge(large, 8, "sum"), "sum")


def test_adapters_of_two_bases_are_refused(
    adapter: Path, tmp_path: Path, shop_tokens: PreTrainedTokenizerFast
) -> None:
    wide = random_checkpoint(tmp_path / "wide", shop_tokens, intermediate_size=64)
    other = save_adapter(wide, tmp_path / "other", 5)
    with pytest.raises(
        WrongBase, match=r"down_proj is a layer of .* by .* to one, and of .* by .* to other"
    ):
        read_members([adapter, other], [1.0, 1.0])


def test_the_command_writes_a_directory_once_and_the_same_each_time(
    adapter: Path, other_adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"{adapter}=1", str(other_adapter)]
    assert main([str(tmp_path / "a"), *given]) == 0
    assert json.loads(capsys.readouterr().out) == {"rank": 4}
    assert main([str(tmp_path / "b"), *given, "--rank", "4"]) == 0
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    assert main([str(tmp_path / "c"), str(adapter), f"{tmp_path}/nothing"]) == 1
    assert "nothing" in capsys.readouterr().err
