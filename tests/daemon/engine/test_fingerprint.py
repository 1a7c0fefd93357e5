"""What an adapter answers to probes, computed from its files: by the learner and by the command."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from daemon.adapters.fingerprint import Expectation, distance, prompts
from daemon.engine.fingerprint import fingerprint, main, probe_model
from tests.daemon.engine.conftest import save_adapter


def adapted(checkpoint: Path, adapter: Path) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(checkpoint)
    with warnings.catch_warnings():
        # Of PEFT: about what transformers will do.
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(base, adapter)


def test_base_and_adapter_are_told_apart(checkpoint: Path, adapter: Path) -> None:
    found = probe_model(adapted(checkpoint, adapter))
    assert distance(found.base, found.adapter) > 0.1
    assert found.dtype == "float32"
    plain = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert found.prompts == prompts(plain.config.vocab_size)
    assert distance(fingerprint(plain, found.prompts), found.base) < 1e-5


def test_a_model_that_is_being_trained_is_left_as_it_was(checkpoint: Path, adapter: Path) -> None:
    model = adapted(checkpoint, adapter).train()
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    drawn = torch.get_rng_state()
    probe_model(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.active_adapters == ["default"]
    assert all(torch.equal(weights, before[name]) for name, weights in model.state_dict().items())


def test_the_precision_is_told(checkpoint: Path, adapter: Path) -> None:
    model = adapted(checkpoint, adapter)
    exact = probe_model(model)
    coarse = probe_model(model.to(torch.bfloat16))
    assert coarse.dtype == "bfloat16"
    assert 0 < distance(coarse.base, exact.base) < distance(exact.base, exact.adapter)


def test_the_command_prints_what_the_learner_would_have_written(
    checkpoint: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(checkpoint), str(adapter)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = Expectation.model_validate(json.loads(said.out))
    assert distance(found.adapter, probe_model(adapted(checkpoint, adapter)).adapter) < 1e-5


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("none", "one"), "none is no directory; name the folder of the checkpoint"),
        (("tiny", "none"), "none is no directory; name the folder of the adapter"),
        (("one", "one"), "holds no checkpoint"),
        (("tiny", "tiny"), "cannot be read"),
        (("tiny", "foreign"), "name no layer"),
    ],
)
def test_the_command_says_in_a_sentence_what_cannot_be_computed(
    checkpoint: Path,
    adapter: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    names: tuple[str, str],
    why: str,
) -> None:
    foreign = save_adapter(checkpoint, tmp_path / "foreign", seed=1)
    config = foreign / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"target_modules": ["w"]}))
    places = {"tiny": checkpoint, "one": adapter, "foreign": foreign, "none": tmp_path / "none"}
    capsys.readouterr()  # what was loaded until here may have drawn its progress
    assert main([str(places[name]) for name in names]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err
    assert said.err.count("\n") == 1
