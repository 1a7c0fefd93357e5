"""A Qwen3 of a few thousand weights, and trajectories over its tokens."""

from random import Random
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from daemon.solver.trajectory import Sampling, Trajectory, Turn

VOCABULARY = 32
END = 1
"""Ends a turn."""
ENDS = frozenset({END})


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Random weights, tied embeddings; always the same for a seed."""
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**(settings | changes)))
    return model.to(dtype)


def turn(prompt: list[int], completion: list[int], **changes: Any) -> Turn:
    logprobs = tuple(-0.5 - 0.01 * place for place in range(len(completion)))
    fields: dict[str, Any] = {
        "prompt_ids": tuple(prompt),
        "completion_ids": tuple(completion),
        "logprobs": logprobs,
    }
    return Turn(**(fields | changes))


def trajectory(*turns: Turn, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "rollout": "r",
        "group": "g",
        "task": "t",
        "policy": "p",
        "success": True,
        "reward": 1.0,
        "sampling": Sampling(),
    }
    return Trajectory(turns=turns, **(fields | changes))


def conversation(chance: Random, name: str, group: str, *, success: bool) -> Trajectory:
    """One to three turns of random tokens; every prompt extends what was before it."""
    ids = [chance.randrange(2, VOCABULARY) for _ in range(chance.randrange(2, 7))]
    turns: list[Turn] = []
    for _ in range(chance.randrange(1, 4)):
        written = [chance.randrange(2, VOCABULARY) for _ in range(chance.randrange(1, 6))] + [END]
        turns.append(turn(ids, written))
        ids = ids + written + [chance.randrange(2, VOCABULARY) for _ in range(3)]
    reward = 1.0 if success else 0.0
    return trajectory(*turns, rollout=name, group=group, success=success, reward=reward)


def groups(seed: int, count: int = 3, size: int = 4) -> list[Trajectory]:
    """`count` groups in which some rollouts pass and some fail."""
    chance = Random(f"groups {seed}")
    return [
        conversation(chance, f"{group}/{member}", f"g{group}", success=member % 2 == 0)
        for group in range(count)
        for member in range(size)
    ]


def failed_group(penalty: float) -> list[Trajectory]:
    """Four failures of one task, the first with a malformed call."""
    return [
        trajectory(
            turn([5, 6, 7], [8 + number, END]), rollout=f"failed/{number}", group="failed",
            success=False, reward=0.0 if number else -penalty, malformed=int(not number),
        )
        for number in range(4)
    ]  # fmt: skip
