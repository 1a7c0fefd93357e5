"""What is refused before anything is loaded: damaged, foreign and dangerous directories."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.adapters.compatibility import BadBase, count_parameters, fit, layers
from daemon.adapters.directory import CONFIG, PROVENANCE, WEIGHTS, BadAdapter, TensorData
from daemon.engine.reference.weights import CHECKPOINT
from events.serving import AdapterProduced
from ops.random_adapters import SETTINGS, Adapters
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home
from tests.daemon.serving.planted import no_numbers

Tensors = dict[str, torch.Tensor]
Spoil = Callable[[Path], object]

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
FIRST_A = f"{LAYER}.lora_A.weight"


@pytest.fixture
def copy(adapters: Adapters, tmp_path: Path) -> Path:
    """An adapter to be spoiled, as any trainer leaves one."""
    return Path(shutil.copytree(adapters["v1-bare"], tmp_path / "copy"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def config(**changes: Any) -> Spoil:
    return lambda folder: change_config(folder, **changes)


def weights(change: Callable[[Tensors], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return spoil


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def of_nothing(folder: Path) -> None:
    """Targets and weights that name nothing in the model; vLLM loads it and answers."""
    weights(lambda t: t.update({k.replace("q_proj", "query"): t.pop(k) for k in list(t)}))(folder)
    targets = ["query" if name == "q_proj" else name for name in SETTINGS.targets]
    change_config(folder, target_modules=targets)


def truncated(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def linked(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        (folder / name).symlink_to(folder.parent / "elsewhere")

    return spoil


def piped(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def wide(tensors: Tensors) -> None:
    """A layer of another width, whole in itself."""
    tensors[FIRST_A] = torch.zeros(SETTINGS.rank, 64)


def flat(tensors: Tensors) -> None:
    tensors[FIRST_A] = tensors[FIRST_A].flatten()


def without(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


@dataclass(frozen=True)
class Spoiled:
    """How an adapter is wrong, and what is said of it."""

    spoil: Spoil
    said: str


SPOILED = {
    "no configuration": Spoiled(without(CONFIG), "cannot be read"),
    "no weights": Spoiled(without(WEIGHTS), "other formats than safetensors"),
    "a pickle beside": Spoiled(
        lambda folder: (folder / "adapter_model.bin").write_bytes(b""), "may run code"
    ),
    "a truncated file": Spoiled(truncated, "no safetensors file"),
    "an empty file": Spoiled(weights(lambda t: t.clear()), "holds no weights"),
    "weights elsewhere": Spoiled(linked(WEIGHTS), "is a link; copy what it leads to"),
    "a configuration elsewhere": Spoiled(linked(CONFIG), "is a link"),
    "a pipe": Spoiled(piped, "is no file"),
    "DoRA": Spoiled(config(use_dora=True), "use_dora to 'True'"),
    "whole modules": Spoiled(config(modules_to_save=["lm_head"]), "modules_to_save"),
    "no rank": Spoiled(config(r=None), "no whole number for the rank r: None"),
    "a rank that is true": Spoiled(config(r=True), "no whole number"),
    "a scale in words": Spoiled(config(lora_alpha="16"), "no number for lora_alpha: '16'"),
    "a scale for one layer in words": Spoiled(
        config(alpha_pattern={"q_proj": "16"}), "no number for q_proj"
    ),
    "a scale that is read as infinity": Spoiled(
        lambda folder: replaced(folder / CONFIG, '"lora_alpha": 16.0', '"lora_alpha": 1e999'),
        "lora_alpha is not finite .*: inf",
    ),
    "a scale beyond half precision": Spoiled(
        config(alpha_pattern={"q_proj": -(10**400)}), "q_proj is not finite"
    ),
    "another rank": Spoiled(config(r=4), "with rank 4 they do not fit"),
    "a rank above the limit": Spoiled(lambda _: None, "rank 8, and the engines take 4 at most"),
    "not a number": Spoiled(weights(lambda t: t[FIRST_A].fill_(float("nan"))), "is not finite"),
    "infinity": Spoiled(weights(lambda t: t[FIRST_A][0, :1].fill_(float("-inf"))), "is not finite"),
    "beyond half precision": Spoiled(
        weights(lambda t: t[FIRST_A][-1, -1:].fill_(-65_536)), "is not finite"
    ),
    "one factor": Spoiled(weights(lambda t: t.pop(FIRST_A)), "only one factor"),
    "no matrix": Spoiled(weights(flat), "are no matrices"),
    "other weights": Spoiled(
        weights(lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(1)})),
        "no LoRA weight",
    ),
    "targets that name nothing": Spoiled(of_nothing, "query, and the base has no such layer"),
    "weights without a target": Spoiled(config(target_modules=["q_proj"]), "does not target"),
    "a target too many": Spoiled(
        config(target_modules=[*SETTINGS.targets, "experts"]), "targets 'experts'"
    ),
    "a target without weights": Spoiled(
        weights(lambda t: [t.pop(k) for k in list(t) if k.startswith(LAYER)]),
        "targets model.layers.0.self_attn.q_proj and has no weights for it",
    ),
    "an excluded layer with weights": Spoiled(config(exclude_modules=["q_proj"]), "not target"),
    "a pattern that takes for ever": Spoiled(
        config(target_modules=r"(?=a)b"), "cannot be used .*: list the names"
    ),
    "another width": Spoiled(weights(wide), "belongs to another base"),
    "a damaged provenance": Spoiled(
        lambda folder: (folder / PROVENANCE).write_text("{}"), "provenance.json"
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_cannot_serve_is_refused_before_it_is_loaded(copy: Path, name: str) -> None:
    spoiled = SPOILED[name]
    assert fit(copy, CHECKPOINT).layers == 28
    spoiled.spoil(copy)
    with pytest.raises(BadAdapter, match=spoiled.said):
        fit(copy, CHECKPOINT, max_rank=4 if "limit" in name else None)


def test_what_fits_is_said_to_the_last_layer(adapters: Adapters) -> None:
    found = fit(adapters["v1"], CHECKPOINT, max_rank=8)
    assert (found.layers, found.rank, found.unchecked) == (28, 8, ())


@pytest.mark.parametrize("shared", ["/etc/passwd", "../../secret", "sub/file", "..", ""])
def test_a_provenance_that_names_files_elsewhere_is_refused(
    adapters: Adapters, tmp_path: Path, shared: str
) -> None:
    copied = Path(shutil.copytree(adapters["v1"], tmp_path / "copy"))
    document = json.loads((copied / PROVENANCE).read_text())
    document["files"][shared] = "0" * 64
    (copied / PROVENANCE).write_text(json.dumps(document))
    with pytest.raises(BadAdapter, match="is no name of a file in the directory"):
        fit(copied, CHECKPOINT)


def test_what_changed_since_it_was_trained_is_refused(adapters: Adapters, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(adapters["v1"], tmp_path / "copy"))
    weights(lambda tensors: tensors[FIRST_A].add_(1))(copied)
    with pytest.raises(BadAdapter, match="is not what was saved"):
        fit(copied, CHECKPOINT)


def test_without_a_checkpoint_it_is_said_what_was_not_seen(copy: Path) -> None:
    of_nothing(copy)
    found = fit(copy, None)
    assert found.unchecked == (
        "that its layers are layers of the base",
        "that their shapes are those of the base",
        "that every layer its targets name has weights",
    )
    weights(lambda tensors: tensors.pop(next(iter(tensors))))(copy)
    with pytest.raises(BadAdapter, match="only one factor"):
        fit(copy, None)


def test_of_a_pattern_it_is_not_known_what_else_it_names(copy: Path) -> None:
    change_config(copy, target_modules=r".*_proj")
    assert fit(copy, CHECKPOINT).unchecked == ("that every layer its targets name has weights",)


def test_ranks_of_single_layers_are_those_of_their_patterns(copy: Path) -> None:
    cut = {f"{LAYER}.lora_A.weight": 0, f"{LAYER}.lora_B.weight": 1}
    weights(
        lambda t: t.update({n: t[n].narrow(axis, 0, 2).contiguous() for n, axis in cut.items()})
    )(copy)
    change_config(copy, rank_pattern={r"layers\.0\.self_attn\.q_proj": 2})
    assert fit(copy, CHECKPOINT).rank == 8


def test_a_checkpoint_in_parts_is_read_by_its_index(copy: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    tensors = load_file(CHECKPOINT / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, base / file)
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert layers(base) == layers(CHECKPOINT)
    weights_of = {name: tensor.numel() for name, tensor in tensors.items()}
    assert count_parameters(base) == count_parameters(CHECKPOINT) == sum(weights_of.values())
    (base / "part-1.safetensors").write_bytes(b"short")
    with pytest.raises(BadBase, match=r"part-1\.safetensors is no safetensors file"):
        fit(copy, base)


def test_layers_of_a_quantised_base_have_no_shape_that_is_seen(copy: Path, tmp_path: Path) -> None:
    tensors = load_file(CHECKPOINT / "model.safetensors")
    packed = {
        name.replace("weight", "qweight") if "_proj" in name else name: (
            torch.zeros(3, dtype=torch.int32) if "_proj" in name else tensor
        )
        for name, tensor in tensors.items()
    }
    save_file(packed, tmp_path / "model.safetensors")
    with pytest.raises(BadBase, match=r"qweight as I32: quantised weights are not counted"):
        count_parameters(tmp_path)
    assert "of 28 layers are those of the base, which is quantised" in str(fit(copy, tmp_path))


def test_a_base_whose_packed_layers_have_other_names_has_no_size(tmp_path: Path) -> None:
    """As in MXFP4, whose layers are `NAME_blocks` and `NAME_scales` of bytes."""
    path = tmp_path / "model.safetensors"
    mask = torch.zeros(2, 2, dtype=torch.uint8)
    save_file({"embed.weight": torch.zeros(4, 8), "attn.bias": mask}, path)
    assert count_parameters(tmp_path) == 32, "a mask packs no weights"
    blocks = torch.zeros(4, 4, 8, dtype=torch.uint8)
    save_file({"embed.weight": torch.zeros(4, 8), "mlp.up_proj_blocks": blocks}, path)
    with pytest.raises(BadBase, match="128 numbers of types that are none of weights, and 32"):
        count_parameters(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 16, b"\x02" + b"\0" * 7 + b"[]"])
def test_a_base_that_cannot_be_read_is_no_base(
    copy: Path, tmp_path: Path, content: bytes | None
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    if content is not None:
        (base / "model.safetensors").write_bytes(content)
    with pytest.raises(BadBase):
        fit(copy, base)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_number_of_every_precision_is_looked_at(dtype: torch.dtype) -> None:
    def finite(tensor: torch.Tensor) -> bool:
        names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16"}
        data = tensor.view(torch.uint8).numpy().tobytes()
        return TensorData(names.get(dtype, "BF16"), tuple(tensor.shape), data).finite

    # What half precision can hold, in each of them.
    largest = torch.tensor(torch.finfo(torch.float16).max - 255).to(dtype).item()
    tensor = torch.randn(257, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensor[:4] = torch.tensor([largest, -largest, torch.finfo(dtype).tiny, 0.0], dtype=dtype)
    assert finite(tensor)
    for bad in ("nan", "inf", "-inf", "65536", "-1e30"):
        spoiled = tensor.clone()
        spoiled[256] = float(bad)
        assert not finite(spoiled)


def no_numbers_of(home: Home, name: str) -> None:
    """The adapter's files in the home: all weights NaN, and no provenance that has their hash."""
    folder = Path(home.row(name).path)
    no_numbers(folder)
    (folder / PROVENANCE).unlink()


def pushed(home: Home, adapters: Adapters, copy: Path) -> None:
    no_numbers(copy)
    home.push(copy)


def staged_from_a_job(home: Home, adapters: Adapters, copy: Path) -> None:
    """What a job left, and said of it that it is so."""
    no_numbers(copy)
    sha256 = hashlib.sha256((copy / WEIGHTS).read_bytes()).hexdigest()
    left = AdapterProduced(
        adapter="left", alias="agent", base="reference", sha256=sha256, path=str(copy), origin="job"
    )
    cause = home.publisher.decisions.act(ADA, "jobs run", {})
    home.publisher.decisions.take(left, "produced", cause)
    home.publisher.stage("left", ADA)


def staged_by_a_path_map(home: Home, adapters: Adapters, copy: Path) -> None:
    name = home.push(adapters["v1"])
    no_numbers_of(home, name)
    home.publisher.stage(name, ADA)


def brought_back_by_a_rollback(home: Home, adapters: Adapters, copy: Path) -> None:
    """The engine forgot whom the rollback goes to, before anybody looked after it."""
    names = [home.serve(adapters[name]) for name in ("v1", "v2")]
    home.engines[0].restart()
    no_numbers_of(home, names[0])
    home.publisher.rollback("agent", ADA)


def reconciled_after_a_restart(home: Home, adapters: Adapters, copy: Path) -> None:
    no_numbers_of(home, home.serve(adapters["v1"]))
    home.engines[0].restart()
    raise BadAdapter(home.tick().troubles[0])


Way = Callable[[Home, Adapters, Path], None]
WAYS: list[Way] = [
    pushed,
    staged_from_a_job,
    staged_by_a_path_map,
    brought_back_by_a_rollback,
    reconciled_after_a_restart,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_on_no_way_is_an_engine_told_to_load_what_is_no_number(
    way: Way, make_home: MakeHome, adapters: Adapters, copy: Path, tmp_path: Path
) -> None:
    mapped = {tmp_path / "home" / "adapters": str(tmp_path / "elsewhere")}
    home = make_home(1, upstream={"path_map": mapped} if way is staged_by_a_path_map else {})
    with pytest.raises(BadAdapter, match="is not finite") as refused:
        way(home, adapters, copy)
    assert "does not load" not in str(refused.value), "said before the engine was asked"
    assert home.loaded() == [[]]


def test_torch_is_not_needed(adapters: Adapters) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; "
        "from daemon.adapters.compatibility import fit; "
        "print(fit(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", program, str(adapters["v1"]), str(CHECKPOINT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "layers=28" in done.stdout
