"""What is served as an adapter, what is refused, and that a refusal leaves nothing behind."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from daemon.adapters.compatibility import fit
from daemon.adapters.directory import (
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    BadAdapter,
    Base,
    Provenance,
    WrongBase,
)
from daemon.engine.adapters import Adapters, NameConflict, NoSuchAdapter, UnknownModel
from daemon.engine.generation import Engine, Request
from daemon.engine.identity import weights_sha256
from daemon.engine.policy import Policy, silence_peft
from daemon.solver.lora import (
    attach,
    save,
)
from events.jobs import LoraSettings
from tests.daemon.engine.conftest import save_adapter
from tests.daemon.engine.heads import save_head
from tests.daemon.engine.random_model import checkpoint as random_checkpoint

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def adapters(base: Policy) -> Adapters:
    return Adapters(base, "here")


@pytest.fixture
def copy(adapter: Path, tmp_path: Path) -> Path:
    """An adapter to be spoiled."""
    return Path(shutil.copytree(adapter, tmp_path / "copy"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def first(policy: Policy, prompt: tuple[int, ...] = (3, 5, 7)) -> float:
    """A number that tells policies apart."""
    engine = Engine(policy, slots=1, length=16)
    engine.submit(policy, Request(prompt, max_tokens=1, temperature=0))
    (emission,) = engine.tick()
    return emission.logprob


def test_the_base_and_its_adapters_are_found_by_name(
    adapters: Adapters, base: Policy, adapter: Path, other_adapter: Path
) -> None:
    adapters.load("one", adapter)
    adapters.load("two", other_adapter)
    assert list(adapters.entries) == ["one", "two"]
    assert adapters.policy("tiny") is adapters.policy(None) is base
    assert len({first(adapters.policy(name)) for name in (None, "one", "two")}) == 3
    assert adapters.policy("two").name == "two"


def test_a_name_is_never_given_twice(
    adapters: Adapters, adapter: Path, other_adapter: Path
) -> None:
    adapters.load("one", adapter)
    policy = adapters.policy("one")
    with pytest.raises(NameConflict, match="'one' has already been loaded"):
        adapters.load("one", other_adapter)
    with pytest.raises(NameConflict):
        adapters.load("tiny", other_adapter)
    assert adapters.policy("one") is policy


def test_an_unloaded_name_is_unknown_and_its_policy_lives_on(
    adapters: Adapters, adapter: Path
) -> None:
    adapters.load("one", adapter)
    policy = adapters.policy("one")
    before = first(policy)
    adapters.unload("one")
    for ask in (adapters.policy, adapters.unload):
        with pytest.raises(UnknownModel, match="one"):
            ask("one")
    assert first(policy) == before
    adapters.load("one", adapter)
    assert first(adapters.policy("one")) == before


@dataclass(frozen=True)
class Spoiled:
    """How an adapter is wrong, and what is said of it."""

    spoil: Callable[[Path], object]
    said: str


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


def weights(change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    return lambda folder: change_weights(folder, change)


def as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "adapter_model.bin")
    (folder / WEIGHTS).unlink()


def truncated(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def narrower(tensors: Tensors) -> None:
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name] = tensors[name][:, :-1].contiguous()


FIRST_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
SPOILED = {
    "no configuration": Spoiled(without(CONFIG), "cannot be read"),
    "no weights": Spoiled(without(WEIGHTS), "other formats than safetensors"),
    "a pickle": Spoiled(as_pickle, "other formats than safetensors"),
    "a truncated file": Spoiled(truncated, "no safetensors file"),
    "no JSON": Spoiled(lambda folder: (folder / CONFIG).write_text("{"), "no JSON"),
    "no LoRA": Spoiled(config(peft_type="IA3"), "no LoRA adapter"),
    "no number": Spoiled(config(lora_alpha=float("nan")), "NaN is no number"),
    "DoRA": Spoiled(config(use_dora=True), "use_dora to 'True'"),
    "whole modules": Spoiled(config(modules_to_save=["lm_head"]), "modules_to_save"),
    "biases": Spoiled(config(bias="all"), "bias to 'all'"),
    "changed base weights": Spoiled(config(init_lora_weights="pissa"), "init_lora_weights"),
    "a setting from the future": Spoiled(config(use_magic=1), "use_magic"),
    "targets that name nothing": Spoiled(config(target_modules=["w"]), "name no layer"),
    "a target without weights": Spoiled(
        config(target_modules=["q_proj", "v_proj", "down_proj", "o_proj"]), "has no weights for it"
    ),
    "weights without a target": Spoiled(config(target_modules=["q_proj"]), "does not target"),
    "not a number": Spoiled(weights(lambda t: t[FIRST_A].fill_(float("nan"))), "is not finite"),
    "infinity": Spoiled(weights(lambda t: t[FIRST_A][0, :1].fill_(float("inf"))), "is not finite"),
    "one factor": Spoiled(weights(lambda t: t.pop(FIRST_A)), "only one factor"),
    "other weights": Spoiled(
        weights(lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(1)})),
        "no LoRA weight",
    ),
    "another base": Spoiled(weights(narrower), "belongs to another base"),
    "another rank": Spoiled(config(r=8), "with rank 8"),
    "no rank": Spoiled(config(rank_pattern={"q_proj": 99}), "rank 99 does not fit"),
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED.keys())
def test_a_bad_adapter_is_refused_and_changes_nothing(
    adapters: Adapters, copy: Path, adapter: Path, spoiled: Spoiled
) -> None:
    spoiled.spoil(copy)
    with pytest.raises(BadAdapter, match=spoiled.said):
        adapters.load("bad", copy)
    assert not adapters.entries
    adapters.load("good", adapter)
    assert first(adapters.policy("good")) != first(adapters.base)


def test_a_directory_that_is_not_there_is_never_looked_for_elsewhere(adapters: Adapters) -> None:
    with pytest.raises(NoSuchAdapter, match="no directory"):
        adapters.load("far", Path("someone/adapter"))


def test_dropout_and_patterns_of_ranks_are_served(
    adapters: Adapters, checkpoint: Path, tmp_path: Path
) -> None:
    folder = save_adapter(
        checkpoint, tmp_path / "p", seed=3, lora_dropout=0.1, rank_pattern={"v_proj": 2}
    )
    adapters.load("patterned", folder)
    assert first(adapters.policy("patterned")) != first(adapters.base)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_computes_what_transformers_does_alone_and_beside_others(
    shop_tokens: PreTrainedTokenizerFast, tmp_path: Path, tied: bool
) -> None:
    """Prompts of several tokens and answers of one, so that every way through the cache is gone."""
    folder = random_checkpoint(tmp_path / "base", shop_tokens, tie_word_embeddings=tied)
    other = save_adapter(folder, tmp_path / "other", seed=1)
    head = save_head(folder, tmp_path / "head", LABELS)
    assert fit(head, folder).layers == 1
    adapters = Adapters(Policy.load(folder, "tiny"), "here")
    for name, own in (("other", other), ("head", head)):
        adapters.load(name, own)
    policies = [adapters.policy(name) for name in ("head", "other", None)]
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    expected = [score_with_transformers(loaded, folder) for folder in (head, other, None)]
    assert expected[0] != pytest.approx(expected[2], abs=0.1)
    together = score(policies)
    for policy, mixed, wanted in zip(policies, together, expected, strict=True):
        (alone,) = score([policy])
        assert alone == pytest.approx(wanted, abs=1e-4)
        assert mixed == pytest.approx(wanted, abs=1e-4)


LABELS = (11, 40)
PROMPT = (3, 5, 7, 9)


def score(policies: Sequence[Policy]) -> list[list[float]]:
    """What each of several policies that answer at once says of the labels: log-probabilities as
    its first token and as its second one."""
    engine = Engine(policies[0], slots=len(policies), length=16)
    request = Request(PROMPT, max_tokens=2, temperature=0, logprob_token_ids=LABELS)
    tickets = [engine.submit(policy, request) for policy in policies]
    scores: dict[int, list[float]] = {ticket: [] for ticket in tickets}
    while engine.busy:
        for emission in engine.tick():
            said = dict(emission.top)
            scores[emission.ticket] += [said[label] for label in LABELS]
    return [scores[ticket] for ticket in tickets]


def score_with_transformers(model: Any, folder: Path | None) -> list[float]:
    """The same by the model's own forward, under an adapter."""
    with silence_peft():
        adapted = model if folder is None else PeftModel.from_pretrained(model, folder)
    ids, scores = list(PROMPT), []
    for _ in range(2):
        with torch.no_grad():
            logprobs = adapted(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        scores += logprobs[list(LABELS)].tolist()
        ids.append(int(logprobs.argmax()))
    if folder is not None:
        adapted.unload()
    return scores


@pytest.fixture
def trained(checkpoint: Path, tmp_path: Path) -> Path:
    """An adapter as the learner writes it."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    settings = LoraSettings(rank=2, alpha=4, targets=("q_proj",))
    provenance = Provenance(
        base=Base(name="tiny", sha256=weights_sha256(model)),
        lora=settings,
        seed=0,
        steps=0,
        rollouts=(),
        spec={},
    )
    folder = tmp_path / "trained"
    save(attach(model, settings, seed=0), folder, provenance)
    return folder


def test_the_learners_adapter_is_served_over_its_base(adapters: Adapters, trained: Path) -> None:
    adapters.load("trained", trained)
    # Fresh, so it says what its base says.
    assert first(adapters.policy("trained")) == pytest.approx(first(adapters.base), abs=1e-5)


def test_the_learners_adapter_of_another_base_is_refused(adapters: Adapters, trained: Path) -> None:
    path = trained / PROVENANCE
    document = json.loads(path.read_text())
    document["base"]["sha256"] = "0" * 64
    path.write_text(json.dumps(document))
    with pytest.raises(WrongBase, match="serve the base it was trained on"):
        adapters.load("trained", trained)


def test_the_learners_adapter_whose_files_were_changed_is_refused(
    adapters: Adapters, trained: Path
) -> None:
    change_weights(trained, lambda tensors: tensors[FIRST_A].add_(1))
    with pytest.raises(BadAdapter, match="is not what was saved"):
        adapters.load("trained", trained)


def test_a_policy_without_a_checkpoint_is_no_base(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    with pytest.raises(ValueError, match="not loaded from a checkpoint"):
        Adapters(Policy.of(model, "live"), "nowhere")


def test_weights_that_are_larger_than_any_of_the_base_are_not_read(
    adapters: Adapters, trained: Path
) -> None:
    """A file with a hole takes no room on the disk, and would take all memory."""
    with (trained / WEIGHTS).open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(BadAdapter, match="1,073,741,824 bytes; a file of this name has at most"):
        adapters.load("huge", trained)
    assert adapters.entries == {}


def test_a_provenance_that_names_many_files_is_refused(adapters: Adapters, trained: Path) -> None:
    provenance = json.loads((trained / PROVENANCE).read_text())
    provenance["files"] |= {f"file-{number}": "0" * 64 for number in range(1000)}
    (trained / PROVENANCE).write_text(json.dumps(provenance))
    with pytest.raises(BadAdapter, match=r"1,00\d files are named; at most 100 are read"):
        adapters.load("many", trained)


def test_a_configuration_with_many_names_is_read_in_linear_time(
    adapters: Adapters, copy: Path
) -> None:
    """Of a hundred thousand names, the last two are equal."""
    names = [f"{number:x}" for number in range(100_000)]
    members = ",".join(f'"{name}":0' for name in [*names, "last", "last"])
    (copy / CONFIG).write_text(f"{{{members}}}")
    with pytest.raises(BadAdapter, match="the name 'last' is written twice"):
        adapters.load("names", copy)
