"""The checkpoint that is shipped: what it says of itself, where it loads, what it can do."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference import tokenizer
from daemon.engine.reference.recipe import RECIPE, WEAK
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.reference.demonstrations import HELD_OUT
from daemon.solver.reference.evaluate import GROUP, Figures, shortcomings, table
from daemon.solver.sampling.local import Attempt, InProcess, Rollout
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from envs.task import TaskDefinition


def read(name: str) -> Any:
    return json.loads((CHECKPOINT / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reported() -> dict[str, Figures]:
    kinds = read("evaluation.json")["kinds"]
    return {kind: Figures.model_validate(row) for kind, row in kinds.items()}


def test_it_is_small_and_the_one_that_training_wrote() -> None:
    weights = (CHECKPOINT / "model.safetensors").read_bytes()
    assert len(weights) < 4_000_000
    record = read("training.json")
    assert record["sha256"] == sha256(weights).hexdigest()
    assert record["recipe"] == RECIPE.model_dump(mode="json")


def test_its_tokenizer_is_what_shop_gives(tokens: PreTrainedTokenizerFast) -> None:
    """Fails when shop says something new: then the policy has to be trained again."""
    shipped = tokenizer.load(CHECKPOINT)
    assert shipped.backend_tokenizer.to_str() == tokens.backend_tokenizer.to_str()
    assert shipped.chat_template == tokenizer.TEMPLATE


def test_the_reported_figures_keep_the_protocol(reported: dict[str, Figures]) -> None:
    assert set(reported) == set(Shop.capabilities)
    assert {row.tasks for row in reported.values()} == {400}
    assert {reported[kind].trials for kind in (*PLAIN, *WEAK)} == {GROUP}
    first, end = read("evaluation.json")["seeds"]
    assert set(range(first, end)) <= set(HELD_OUT)
    assert shortcomings(reported) == []


def test_the_card_holds_the_reported_figures(reported: dict[str, Figures]) -> None:
    assert table(reported) in (CHECKPOINT / "README.md").read_text(encoding="utf-8")


def played(tasks: list[TaskDefinition], slots: int) -> list[Rollout]:
    """By the likeliest tokens."""
    policy = Policy.load(CHECKPOINT, "reference")
    player = InProcess(
        Engine(policy, slots, 512), Chat(CHECKPOINT), temperature=1e-6, max_tokens=64
    )
    attempts = (Attempt(task, task.id, 0, task.id) for task in tasks)
    return sorted(
        player.play(Shop(), attempts, policy), key=lambda rollout: rollout.attempt.rollout
    )


def test_the_policy_passes_plain_tasks() -> None:
    shop = Shop()
    tasks = [shop.generate(kind, seed) for kind in PLAIN for seed in range(10)]
    assert sum(bool(rollout.grade.success) for rollout in played(tasks, 32)) >= 57


def test_likeliest_episodes_do_not_depend_on_who_else_is_played() -> None:
    shop = Shop()
    tasks = [shop.generate(kind, 7) for kind in Shop.capabilities]
    alone, together = (
        [rollout.episode.messages for rollout in played(tasks, slots)] for slots in (1, 16)
    )
    assert alone == together


def test_transformers_generates_a_tool_call_with_its_own_settings() -> None:
    tokens: Any = AutoTokenizer.from_pretrained(CHECKPOINT)
    shop = Shop()
    task = shop.generate("cancel", 3)
    opening = task.script.opening if task.script else ""
    prompt = tokens.apply_chat_template(
        [{"role": "system", "content": shop.policy(task)}, {"role": "user", "content": opening}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    loaded: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    written = loaded.generate(**prompt, do_sample=False, max_new_tokens=40, top_p=None, top_k=None)
    assert written[0, -1] == tokens.eos_token_id
    answer = tokens.decode(written[0, prompt["input_ids"].shape[1] :])
    assert '{"name": "find_user", "arguments": {"name": "' in answer


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_peft_puts_an_adapter_on_it_and_loads_it_again(tmp_path: Path) -> None:
    ids = torch.arange(12)[None]
    base: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    with torch.no_grad():
        plain = base(input_ids=ids).logits
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        settings = LoraConfig(
            r=4, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False
        )
        adapted: Any = get_peft_model(base, settings)
        changed = adapted(input_ids=ids).logits
        adapted.save_pretrained(tmp_path)
        again: Any = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(CHECKPOINT), tmp_path
        )
        assert torch.equal(again(input_ids=ids).logits, changed)
        assert not torch.allclose(changed, plain, atol=1e-2)
