"""Adapters: checked when attached, whole or absent when saved, of one base and no other."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from daemon.adapters.directory import (
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    AdapterWriteError,
    BadAdapter,
    Base,
    Provenance,
    WrongBase,
    verify,
)
from daemon.engine.identity import weights_sha256
from daemon.solver.lora import (
    attach,
    continue_from,
    reference,
    save,
    trainable_parameters,
)
from events.files import UNFINISHED
from events.jobs import LoraSettings
from tests.daemon.solver.forked import file_size_limit
from tests.daemon.solver.tiny import tiny_model

SMALL = LoraSettings(rank=4, alpha=8.0, targets=("q_proj", "down_proj"))
IDS = torch.tensor([[3, 4, 5, 6]])


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "adapters"
    folder.mkdir()
    return folder


def provenance(base: Any, settings: LoraSettings = SMALL, **changes: Any) -> Provenance:
    fields: dict[str, Any] = {
        "base": Base(name="tiny", sha256=weights_sha256(base)),
        "lora": settings,
        "seed": 1,
        "steps": 2,
        "rollouts": ("r1", "r2"),
        "spec": {"any": 1},
    }
    return Provenance(**(fields | changes))


def trained(seed: int = 1, settings: LoraSettings = SMALL) -> PeftModel:
    """An adapter whose weights are no longer those it began with."""
    model = attach(tiny_model(), settings, seed)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


def test_a_fresh_adapter_changes_nothing_and_trains_nothing_but_itself() -> None:
    base = tiny_model()
    before = logits(base)
    model = attach(base, LoraSettings(), seed=0)
    assert torch.equal(logits(model), before)
    names = trainable_parameters(model)
    assert len(names) == 2 * 7 * 2
    assert all("lora_" in name for name in names)


def test_a_fresh_adapter_follows_from_its_seed_alone() -> None:
    torch.manual_seed(99)
    one = attach(tiny_model(), SMALL, seed=5)
    after = torch.rand(1)
    torch.manual_seed(99)
    tiny_model()
    same, other = (attach(tiny_model(), SMALL, seed=seed) for seed in (5, 6))
    weights = [
        torch.cat([p.flatten() for p in trainable_parameters(m).values()]) for m in (one, same)
    ]
    assert torch.equal(*weights)
    changed = torch.cat([p.flatten() for p in trainable_parameters(other).values()])
    assert not torch.equal(weights[0], changed)
    torch.manual_seed(0)
    tiny_model()
    assert after.numel() == 1


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (LoraSettings(targets=("q_prj",)), "called 'q_prj'; there are down_proj, .*q_proj"),
        (LoraSettings(targets=("q_proj", "experts")), "'experts'"),
        (LoraSettings(rank=17), "rank 17 is above the width of 'k_proj', 16"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(settings: LoraSettings, names: str) -> None:
    with pytest.raises(BadAdapter, match=names):
        attach(tiny_model(), settings, seed=0)


def test_an_adapter_may_change_the_head_and_leaves_the_embedding(adapters: Path) -> None:
    settings = LoraSettings(rank=4, targets=("q_proj", "lm_head"))
    model = trained(settings=settings)
    save(model, adapters / "head", provenance(tiny_model(), lora=settings))
    names = load_file(adapters / "head" / WEIGHTS)
    assert sum("lm_head" in name for name in names) == 2
    assert all(".lora_" in name for name in names), "no vocabulary is saved"
    again, _ = continue_from(tiny_model(), adapters / "head")
    assert torch.equal(logits(again), logits(model))


def test_the_reference_of_a_fresh_adapter_is_the_base() -> None:
    base = logits(tiny_model())
    model = trained()
    assert not torch.allclose(logits(model), base)
    with reference(model):
        assert torch.equal(logits(model), base)
    assert not torch.allclose(logits(model), base)


def test_the_reference_of_a_continued_adapter_is_its_parent(adapters: Path) -> None:
    parent = trained()
    save(parent, adapters / "parent", provenance(tiny_model()))
    model, found = continue_from(tiny_model(), adapters / "parent")
    assert found.rollouts == ("r1", "r2")
    names = trainable_parameters(model)
    assert names
    assert all(".default." in name for name in names)
    with torch.no_grad():
        for parameter in names.values():
            parameter.add_(0.1)
    with reference(model):
        assert torch.equal(logits(model), logits(parent))
        assert not trainable_parameters(model)
    assert not torch.allclose(logits(model), logits(parent))
    assert trainable_parameters(model).keys() == names.keys()


def test_a_provenance_from_before_fingerprints_is_still_read(adapters: Path) -> None:
    save(trained(), adapters / "old", provenance(tiny_model()))
    path = adapters / "old" / PROVENANCE
    document = json.loads(path.read_text())
    del document["fingerprint"]
    path.write_text(json.dumps(document))
    assert verify(adapters / "old").fingerprint is None


def test_the_hash_of_a_base_is_of_its_weights_and_nothing_else(adapters: Path) -> None:
    base = tiny_model()
    found = weights_sha256(base)
    assert weights_sha256(tiny_model()) == found
    assert weights_sha256(tiny_model(seed=1)) != found
    base.save_pretrained(adapters)
    assert weights_sha256(type(base).from_pretrained(adapters)) == found
    assert weights_sha256(attach(base, SMALL, seed=0)) == found
    with torch.no_grad():
        base.model.norm.weight[0] += 1e-3
    assert weights_sha256(base) != found


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_saved_adapter_is_read_by_peft_and_gives_the_same_answers(adapters: Path) -> None:
    model = trained()
    save(model, adapters / "a", provenance(tiny_model()))
    loaded = PeftModel.from_pretrained(tiny_model(), adapters / "a")
    assert torch.equal(logits(loaded), logits(model))
    config = json.loads((adapters / "a" / CONFIG).read_text())
    assert config["base_model_name_or_path"] == "tiny"
    assert config["target_modules"] == ["down_proj", "q_proj"]
    assert not config["modules_to_save"]
    assert config["lora_dropout"] == 0.0


def test_equal_adapters_have_equal_bytes(adapters: Path) -> None:
    torch.manual_seed(3)
    model = trained()
    first, second = (save(model, adapters / name, provenance(tiny_model())) for name in "ab")
    assert first == second
    for name in (WEIGHTS, CONFIG, PROVENANCE, "README.md"):
        assert (adapters / "a" / name).read_bytes() == (adapters / "b" / name).read_bytes()


def test_provenance_names_what_the_adapter_was_made_of(adapters: Path) -> None:
    base = tiny_model()
    hash_of_weights = save(trained(), adapters / "a", provenance(base, parent="f" * 64))
    found = verify(adapters / "a")
    assert found.files[WEIGHTS] == hash_of_weights
    assert found.parent == "f" * 64
    assert found.versions.keys() == {"torch", "transformers", "peft", "safetensors"}
    card = (adapters / "a" / "README.md").read_text()
    assert hash_of_weights in card
    assert "base_model: tiny" in card


def test_an_adapter_is_never_overwritten(adapters: Path) -> None:
    save(trained(), adapters / "a", provenance(tiny_model()))
    with pytest.raises(BadAdapter, match="never overwritten"):
        save(trained(), adapters / "a", provenance(tiny_model()))


def test_an_adapter_of_another_base_is_refused(adapters: Path) -> None:
    save(trained(), adapters / "a", provenance(tiny_model()))
    with pytest.raises(WrongBase, match="adapter of tiny with weights"):
        continue_from(tiny_model(seed=1), adapters / "a")


def test_weights_that_are_not_finite_are_not_saved(adapters: Path) -> None:
    model = trained()
    with torch.no_grad():
        next(iter(trainable_parameters(model).values()))[0, 0] = float("nan")
    with pytest.raises(BadAdapter, match=r"lora_.* is not finite"):
        save(model, adapters / "a", provenance(tiny_model()))
    assert list(adapters.iterdir()) == []


def corrupt_byte(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(bytes(content))


def cut_short(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-8])


def remove_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def forget_hashes(folder: Path) -> None:
    document = json.loads((folder / PROVENANCE).read_text())
    (folder / PROVENANCE).write_text(json.dumps({**document, "files": {}}))


def add_a_field(folder: Path) -> None:
    document = json.loads((folder / PROVENANCE).read_text())
    (folder / PROVENANCE).write_text(json.dumps({**document, "better": True}))


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (corrupt_byte, "is not what was saved"),
        (cut_short, "is not what was saved"),
        (remove_weights, "cannot be read"),
        (forget_hashes, "names no hash of adapter_config.json, adapter_model.safetensors"),
        (add_a_field, "better"),
    ],
)
def test_a_damaged_adapter_is_refused(damage: Any, names: str, adapters: Path) -> None:
    save(trained(), adapters / "a", provenance(tiny_model()))
    damage(adapters / "a")
    with pytest.raises(BadAdapter, match=names):
        verify(adapters / "a")


def rehash(folder: Path) -> None:
    """Make provenance.json agree with what lies beside it."""
    import hashlib

    document = json.loads((folder / PROVENANCE).read_text())
    for name in document["files"]:
        document["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / PROVENANCE).write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("tensor", "names"),
    [
        ({"base_model.model.lm_head.weight": torch.zeros(2)}, "lm_head.weight, which is no LoRA"),
        ({"x.lora_A.weight": torch.tensor([float("nan")])}, "is not finite"),
    ],
)
def test_an_adapter_that_was_made_elsewhere_is_looked_into(
    tensor: dict[str, torch.Tensor], names: str, adapters: Path
) -> None:
    save(trained(), adapters / "a", provenance(tiny_model()))
    weights = load_file(adapters / "a" / WEIGHTS)
    save_file(weights | tensor, adapters / "a" / WEIGHTS)
    rehash(adapters / "a")
    with pytest.raises(BadAdapter, match=names):
        verify(adapters / "a")


def test_an_adapter_that_replaces_whole_modules_is_refused(adapters: Path) -> None:
    save(trained(), adapters / "a", provenance(tiny_model()))
    config = json.loads((adapters / "a" / CONFIG).read_text())
    (adapters / "a" / CONFIG).write_text(json.dumps({**config, "modules_to_save": ["lm_head"]}))
    rehash(adapters / "a")
    with pytest.raises(BadAdapter, match="replaces whole modules"):
        verify(adapters / "a")


PROGRAM = """
import sys
from pathlib import Path
from daemon.solver.lora import save
from tests.daemon.solver.test_lora import provenance, trained, tiny_model

folder = Path(sys.argv[1])
model, origin = trained(), provenance(tiny_model())
print("ready", flush=True)
for number in range(100_000):
    save(model, folder / str(number), origin)
"""


def test_a_disk_that_refuses_leaves_nothing_behind(adapters: Path) -> None:
    model, origin = trained(), provenance(tiny_model())
    sentence = "File too large; nothing of it was left behind"
    # The weights do not fit.
    with file_size_limit(1000), pytest.raises(AdapterWriteError, match=sentence):
        save(model, adapters / "a", origin)
    assert list(adapters.iterdir()) == []


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.faults
def test_a_killed_save_leaves_whole_adapters_only(adapters: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(adapters)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while len(list(adapters.iterdir())) < 5:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    whole = [path for path in adapters.iterdir() if not path.name.startswith(UNFINISHED)]
    assert len(whole) >= 4
    for folder in whole:
        verify(folder)


def test_what_a_killed_save_left_is_removed_by_the_next(adapters: Path) -> None:
    left = adapters / f"{UNFINISHED}a"
    left.mkdir()
    (left / "half").write_text("x")
    save(trained(), adapters / "a", provenance(tiny_model()))
    assert [path.name for path in adapters.iterdir()] == ["a"]
    assert not (adapters / "a" / "half").exists()
