"""What both sides of the bench are given: a model, an adapter around it, and one batch of rollouts.

    FOLDER/model/       transformers' format, with the tokenizer of the reference policy
    FOLDER/adapter/     PEFT's format; both factors of every layer are drawn, so that both learn
    FOLDER/rows.json    token ids, what of them the model wrote, advantages: what TRL is fed
    FOLDER/rollouts.json   the trajectories they were made of, which our side begins with

`tiny` is what the reference policy reads and writes: the oracle's conversations with the customers
of shop. `wide` has the same conversations in a model and a vocabulary that are larger, its ids
being those of shop spread over that vocabulary. Weights and verdicts are random, of a fixed seed: a
step costs the same whatever is learnt.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from pydantic import TypeAdapter
from transformers import PreTrainedTokenizerFast, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from daemon.engine.chat import Chat
from daemon.solver.batch import Row, choose, rows
from daemon.solver.lora import attach, trainable_parameters
from daemon.solver.reference.demonstrations import DEVELOPMENT, vocabulary
from daemon.solver.trajectory import Trajectory
from daemon.solver.warm_start import references
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from events.algorithm import Algorithm
from events.jobs import LoraSettings
from ops.bench.learner.protocol import ADAPTER, MODEL, ROLLOUTS, ROWS

GROUP: Final = 8
"""Rollouts that are compared with each other."""
LORA: Final = LoraSettings()


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The batch as our side takes it."""

    rollouts: tuple[Trajectory, ...]
    ends: tuple[int, ...]
    """Tokens that end a turn."""


_BATCH: Final = TypeAdapter(RolloutBatch)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and how much of it there is in a batch."""

    rollouts: int
    layers: int
    width: int
    inner: int
    """Width of the layers' feed-forward part."""
    heads: int
    shared: int
    """Heads of keys and values."""
    vocabulary: int | None
    """None: that of the tokenizer."""


SHAPES: Final = {
    "tiny": Shape(64, 4, 128, 384, 4, 2, None),
    "wide": Shape(16, 8, 512, 1536, 8, 4, 32_768),
}


def make(name: str, folder: Path) -> None:
    """Write everything that a run of the bench needs. Raises KeyError for an unknown shape."""
    shape, shop = SHAPES[name], Shop()
    tokens = vocabulary(shop)
    tokens.save_pretrained(folder / MODEL)
    model = _model(shape, tokens)
    model.save_pretrained(folder / MODEL)
    _write_adapter(model, folder / ADAPTER)
    stride = model.config.vocab_size // len(tokens)
    chat = Chat(folder / MODEL)
    rollouts = [spread(rollout, stride) for rollout in draw_rollouts(shop, chat, shape.rollouts)]
    ends = sorted(end * stride for end in chat.ends)
    (folder / ROLLOUTS).write_bytes(_BATCH.dump_json(RolloutBatch(tuple(rollouts), tuple(ends))))
    (folder / ROWS).write_text(
        json.dumps([_plain(row) for row in choose_rows(rollouts, frozenset(ends))])
    )


def read(folder: Path) -> RolloutBatch:
    """The rollouts that `make` wrote."""
    return _BATCH.validate_json((folder / ROLLOUTS).read_bytes())


def _model(shape: Shape, tokens: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=shape.vocabulary or len(tokens),
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.shared,
            head_dim=shape.width // shape.heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=tokens.pad_token_id,
            eos_token_id=tokens.eos_token_id,
        )
    )


def _write_adapter(model: Qwen3ForCausalLM, folder: Path) -> None:
    adapted = attach(model, LORA, seed=0)
    with torch.no_grad():
        for parameter in trainable_parameters(adapted).values():
            parameter.normal_(std=0.02)
    adapted.save_pretrained(str(folder))


def draw_rollouts(shop: Shop, chat: Chat, count: int) -> list[Trajectory]:
    """Return the oracle's rollouts, one task each, in groups all the same; verdicts are drawn, and
    every group has both."""
    chance = Random("learner bench")
    kinds = [kind for kind, _ in zip(cycle(PLAIN), range(count), strict=False)]
    tasks = [shop.generate(kind, DEVELOPMENT[n]).id for n, kind in enumerate(kinds)]
    rollouts = []
    for number, rollout in enumerate(references(lambda _: shop, chat, tasks, "bench")):
        member = number % GROUP
        success = member == 0 or (member > 1 and chance.random() < 0.5)
        reward = float(success) - 0.1 * chance.random()
        group = f"group {number // GROUP}"
        rollouts.append(replace(rollout, group=group, success=success, reward=reward))
    return rollouts


def spread(rollout: Trajectory, stride: int) -> Trajectory:
    """Return the same rollout over a vocabulary `stride` times as large."""
    turns = tuple(
        replace(
            turn,
            prompt_ids=tuple(stride * token for token in turn.prompt_ids),
            completion_ids=tuple(stride * token for token in turn.completion_ids),
        )
        for turn in rollout.turns
    )
    return replace(rollout, turns=turns)


def choose_rows(rollouts: Sequence[Trajectory], ends: frozenset[int]) -> list[Row]:
    """Return what the learner trains on of these rollouts, in their order."""
    chosen = choose(rollouts, Algorithm(), ends)
    return [row for part in rows(chosen, Algorithm(), chosen.kept.groups) for row in part]


def _plain(row: Row) -> dict[str, Any]:
    sequence = row.sequence
    return {"ids": sequence.ids, "written": sequence.written, "advantage": row.advantage}
