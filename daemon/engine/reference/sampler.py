"""Plays many episodes at once with a policy in this process, to measure it.

Sequences stand in the slots of one key-value cache; a slot is filled again as soon as its episode
is over. Every token is sampled at one temperature, or is the likeliest; what was sampled is read
back by the policy token by token, never through its text.

The same weights, tasks and seed give the same episodes on one machine with one number of threads.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM, apply_rotary_pos_emb

from daemon.engine.reference import tokenizer
from envs.environment import Environment
from envs.episode import Episode, Party, Termination
from envs.grading import Grade, grade
from envs.task import TaskDefinition
from events.messages import Message, ToolCall

LENGTH: Final = 512
"""Tokens of the longest conversation."""
ANSWER: Final = 64
"""Tokens of the longest answer."""

_CALL: Final = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class Slots:
    """A key-value cache of a Qwen3 of transformers, and the model's forward on it."""

    def __init__(self, model: Qwen3ForCausalLM, count: int, length: int = LENGTH) -> None:
        self.model = model
        config = model.config
        heads, width = int(config.num_key_value_heads or 1), int(config.head_dim)
        shape = (count, heads, length, width)
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in model.model.layers]
        positions = torch.arange(length)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1), positions)
        self.cos, self.sin = cos[0], sin[0]

    def extend(self, slots: Tensor, starts: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
        """Append a row of tokens to each of B slots, which hold `starts` tokens each.

        Returns (B, V): the logits after each row's last token.
        """
        lengths = torch.tensor([len(row) for row in rows])
        width = int(lengths.max())
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        positions = starts[:, None] + torch.arange(width)
        there = torch.arange(width) < lengths[:, None]
        span = int((starts + lengths).max())
        place = _Place(
            slots=slots,
            there=there,
            rows=slots[:, None].expand_as(ids)[there],
            columns=positions[there],
            span=span,
            visible=(torch.arange(span) <= positions[..., None])[:, None],
        )
        angles = positions.clamp(max=len(self.cos) - 1)
        rotation = self.cos[angles], self.sin[angles]
        hidden = self.model.model.embed_tokens(ids)
        for layer, cache in zip(self.model.model.layers, self.caches, strict=True):
            attended = _attend(
                layer.self_attn, layer.input_layernorm(hidden), rotation, cache, place
            )
            hidden = hidden + attended
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last = hidden[torch.arange(len(rows)), lengths - 1]
        logits: Tensor = self.model.lm_head(self.model.model.norm(last))
        return logits


@dataclass(frozen=True, slots=True)
class _Place:
    """Where new keys and values go, and what each new token may look at."""

    slots: Tensor
    there: Tensor
    """(B, T): tokens that are not padding."""
    rows: Tensor
    columns: Tensor
    """Slot and position of each of them."""
    span: int
    visible: Tensor
    """(B, 1, T, span)"""


def _attend(
    attention: Any,
    hidden: Tensor,
    rotation: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    place: _Place,
) -> Tensor:
    heads = (*hidden.shape[:-1], -1, attention.head_dim)
    query = attention.q_norm(attention.q_proj(hidden).view(heads)).transpose(1, 2)
    key = attention.k_norm(attention.k_proj(hidden).view(heads)).transpose(1, 2)
    value = attention.v_proj(hidden).view(heads)
    query, key = apply_rotary_pos_emb(query, key, *rotation)
    keys, values = cache
    keys[place.rows, :, place.columns] = key.transpose(1, 2)[place.there]
    values[place.rows, :, place.columns] = value[place.there]
    mixed = scaled_dot_product_attention(
        query,
        keys[place.slots, :, : place.span],
        values[place.slots, :, : place.span],
        attn_mask=place.visible,
        enable_gqa=True,
    )
    projected: Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return projected


@dataclass(slots=True)
class _Conversation:
    """An episode and its tokens."""

    number: int
    episode: Episode
    ids: list[int] = field(default_factory=list)
    read: int = 0
    """Tokens in the cache."""
    answer: int = 0
    """Where the answer that is being written begins."""
    heard: int = 0
    """Messages that are among the ids."""


class Sampler:
    """A policy, its tokenizer, and how it is sampled."""

    def __init__(
        self,
        model: Qwen3ForCausalLM,
        tokens: PreTrainedTokenizerFast,
        *,
        slots: int = 128,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Temperature 0: the likeliest token."""
        self.cache = Slots(model, slots)
        self.tokens = tokens
        self.slots = slots
        self.temperature = temperature
        self.chance = torch.Generator().manual_seed(seed)
        self.end = tokenizer.token_id(tokens, tokenizer.END)

    def play(
        self, environment: Environment, tasks: Iterable[TaskDefinition]
    ) -> Iterator[tuple[int, Episode, Grade]]:
        """Every task's number, finished episode and grade, as they get done."""
        waiting = enumerate(tasks)
        active: dict[int, _Conversation] = {}
        while True:
            for slot in sorted(set(range(self.slots)) - set(active)):
                if (entry := next(waiting, None)) is not None:
                    active[slot] = self._begin(environment, *entry)
            if not active:
                return
            self._advance(active)
            for slot in [slot for slot, one in active.items() if one.episode.turn is None]:
                done = active.pop(slot)
                yield done.number, done.episode, _graded(done.episode)

    def _begin(self, environment: Environment, number: int, task: TaskDefinition) -> _Conversation:
        begun = _Conversation(number, Episode(environment, task))
        system = Message(role="system", content=environment.policy(task))
        begun.ids = tokenizer.encode(self.tokens, tokenizer.rendered(self.tokens, [system]))
        self._listen(begun)
        return begun

    def _listen(self, one: _Conversation) -> None:
        """Let the user speak if it is their turn; then the policy reads what is new."""
        episode = one.episode
        if episode.turn is Party.USER:
            user = episode.environment.user(episode.task)
            episode.receive(user.reply(episode.view(Party.USER)))
        if episode.turn is None:
            return
        new = episode.messages[one.heard :]
        text = tokenizer.rendered(self.tokens, new, prompt=True)
        one.ids += tokenizer.encode(self.tokens, text)
        one.heard, one.answer = len(episode.messages), len(one.ids)
        if len(one.ids) + ANSWER > LENGTH:
            episode.stop(Termination.CONTEXT_OVERFLOW)

    def _advance(self, active: dict[int, _Conversation]) -> None:
        """One more token for each; those with much to read apart from those with little."""
        ahead = {slot: len(one.ids) - one.read for slot, one in active.items()}
        for batch in ([s for s in ahead if ahead[s] > 1], [s for s in ahead if ahead[s] == 1]):
            if batch:
                self._step({slot: active[slot] for slot in batch})

    def _step(self, batch: dict[int, _Conversation]) -> None:
        starts = torch.tensor([one.read for one in batch.values()])
        rows = [one.ids[one.read :] for one in batch.values()]
        with torch.no_grad():
            logits = self.cache.extend(torch.tensor(list(batch)), starts, rows)
        for one, token in zip(batch.values(), self._draw(logits).tolist(), strict=True):
            one.read = len(one.ids)
            one.ids.append(token)
            if token == self.end:
                self._answered(one)
            elif len(one.ids) - one.answer >= ANSWER:
                one.episode.stop(Termination.AGENT_ERROR, f"an answer of {ANSWER} tokens")

    def _draw(self, logits: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits.argmax(-1)
        chances = (logits.float() / self.temperature).softmax(-1)
        return torch.multinomial(chances, 1, generator=self.chance)[:, 0]

    def _answered(self, one: _Conversation) -> None:
        text = self.tokens.decode(one.ids[one.answer : -1], skip_special_tokens=False)
        one.episode.receive(spoken(str(text), len(one.episode.messages)))
        one.heard += 1
        self._listen(one)


def spoken(text: str, number: int = 0) -> Message:
    """An answer as a message: its tool calls, if all of them can be read, else the plain text."""
    calls = []
    for place, written in enumerate(_CALL.findall(text)):
        call = _call(written, f"call_{number}_{place}")
        if call is None:
            return Message(role="assistant", content=text)
        calls.append(call)
    said = _CALL.sub("", text).strip() if calls else text
    return Message(role="assistant", content=said or None, tool_calls=tuple(calls))


def _call(written: str, name: str) -> ToolCall | None:
    """None for what is no call."""
    try:
        match json.loads(written):
            case {"name": str(tool), "arguments": dict(arguments)}:
                return ToolCall(name=tool, arguments=arguments, id=name)
    except json.JSONDecodeError:
        pass
    return None


def _graded(episode: Episode) -> Grade:
    return grade(episode.environment, episode.task, episode.messages, episode.termination)
