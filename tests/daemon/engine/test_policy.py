"""The engine's forward gives the model's own numbers, with and without adapters."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from daemon.adapters.directory import BadAdapter
from daemon.engine.cache import Cache
from daemon.engine.policy import Policy
from daemon.engine.weights import IncompatibleModel
from tests.daemon.engine.random_model import KINDS, random_model

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(model: Any, seed: int = 5, targets: Sequence[str] = TARGETS, rank: int = 4) -> Any:
    """A model under an adapter of random weights."""
    torch.manual_seed(seed)
    settings = LoraConfig(
        r=rank, target_modules=list(targets), task_type="CAUSAL_LM", init_lora_weights=False
    )
    return get_peft_model(model, settings).eval()


def own_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0, -1]
    return found


def conversations(count: int, longest: int = 40) -> list[list[int]]:
    chance = Random("conversations")
    return [
        [chance.randrange(64) for _ in range(chance.randrange(3, longest))] for _ in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_any_way_of_reading_gives_the_logits_of_a_whole_forward(kind: str) -> None:
    model = random_model(kind)
    weights = Policy.of(model, kind).weights
    whole = conversations(5)
    cache = Cache(weights, slots=8, length=64)
    order = [6, 0, 3, 1, 7]
    # What an earlier conversation left in a slot must not be seen.
    cache.extend(weights, order, [0] * 5, [[1] * 60] * 5)
    for cuts in ([1] * 5, [2, 1, 1, 2, 1]):
        parts = [ids[: len(ids) - cut] for ids, cut in zip(whole, cuts, strict=True)]
        first = cache.extend(weights, order, [0] * 5, parts)
        starts = [len(part) for part in parts]
        rest = [ids[start:] for ids, start in zip(whole, starts, strict=True)]
        second = cache.extend(weights, order, starts, rest)
        for row, (ids, part) in enumerate(zip(whole, parts, strict=True)):
            torch.testing.assert_close(first[row], own_logits(model, part), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(second[row], own_logits(model, ids), atol=1e-4, rtol=1e-4)


def test_one_token_for_a_few_slots_leaves_the_others_as_they_were() -> None:
    model = random_model()
    weights = Policy.of(model, "m").weights
    cache = Cache(weights, slots=4, length=64)
    whole = conversations(4)
    cache.extend(weights, [0, 1, 2, 3], [0] * 4, [ids[:-1] for ids in whole])
    dense = cache.extend(
        weights, [1, 2], [len(whole[1]) - 1, len(whole[2]) - 1], [whole[1][-1:], whole[2][-1:]]
    )
    torch.testing.assert_close(dense[0], own_logits(model, whole[1]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(dense[1], own_logits(model, whole[2]), atol=1e-4, rtol=1e-4)
    for slot in (0, 3):
        last = cache.extend(weights, [slot], [len(whole[slot]) - 1], [whole[slot][-1:]])
        torch.testing.assert_close(last[0], own_logits(model, whole[slot]), atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_model_in_training_is_taken_with_its_adapter() -> None:
    model = adapted(random_model())
    weights = Policy.of(model, "step 1").weights
    ids = conversations(1)[0]
    found = Cache(weights, 1, 64).extend(weights, [0], [0], [ids])[0]
    torch.testing.assert_close(found, own_logits(model, ids), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    again = Cache(weights, 1, 64).extend(weights, [0], [0], [ids])[0]
    torch.testing.assert_close(again, found)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_directory_makes_a_policy_and_leaves_the_base(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "base")
    model = adapted(random_model())
    model.save_pretrained(tmp_path / "adapter")
    ids = conversations(1)[0]
    base = Policy.load(tmp_path / "base", "base")
    better = base.with_adapter(tmp_path / "adapter", "better")
    found = Cache(better.weights, 1, 64).extend(better.weights, [0], [0], [ids])[0]
    torch.testing.assert_close(found, own_logits(model, ids), atol=1e-4, rtol=1e-4)
    plain = Cache(base.weights, 1, 64).extend(base.weights, [0], [0], [ids])[0]
    torch.testing.assert_close(plain, own_logits(random_model(), ids), atol=1e-4, rtol=1e-4)
    assert better.name == "better"
    twice = base.with_adapter(tmp_path / "adapter", "again")
    torch.testing.assert_close(twice.weights.layers[0].qkv, better.weights.layers[0].qkv)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_takes_memory_for_what_it_changes(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "base")
    adapted(random_model(), targets=["v_proj"]).save_pretrained(tmp_path / "adapter")
    base = Policy.load(tmp_path / "base", "base")
    better = base.with_adapter(tmp_path / "adapter", "better")
    assert better.weights.embedding is base.weights.embedding
    for own, layer in zip(better.weights.layers, base.weights.layers, strict=True):
        assert own.down is layer.down
        assert not torch.equal(own.qkv, layer.qkv)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_that_does_not_load_leaves_the_base(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "base")
    adapted(random_model()).save_pretrained(tmp_path / "good")
    wider = adapted(random_model(hidden_size=64))
    wider.save_pretrained(tmp_path / "wider")
    base = Policy.load(tmp_path / "base", "base")
    with pytest.raises(BadAdapter, match="belongs to another base"):
        base.with_adapter(tmp_path / "wider", "wider")
    assert base.checkpoint is not None
    assert not any("lora" in name for name, _ in base.checkpoint.named_modules())
    assert base.with_adapter(tmp_path / "good", "good").name == "good"


def test_a_model_that_computes_something_else_is_refused() -> None:
    model = random_model()
    model.model.layers[1].register_forward_hook(lambda *given: given[-1] * 1.5)
    with pytest.raises(IncompatibleModel, match="other logits than the engine"):
        Policy.of(model, "odd")


def test_a_policy_without_checkpoint_takes_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="was not loaded from a checkpoint"):
        Policy.of(random_model(), "m").with_adapter(tmp_path, "better")


def test_a_cache_is_not_longer_than_the_model() -> None:
    weights = Policy.of(random_model(), "m").weights
    with pytest.raises(ValueError, match="129 tokens is longer than the model's 128"):
        Cache(weights, 1, 129)
