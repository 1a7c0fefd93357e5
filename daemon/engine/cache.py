"""The keys and values of many conversations, and a model's forward on them.

A conversation stands in a slot: one row of every layer's tensors. `extend` appends tokens to some
slots and gives the logits after each one's last token; what a slot held beyond its `start` is
overwritten, so going back is free.

Where most slots take one token each, which is nearly always, the whole tensor is read in place:
gathering rows would cost more than the arithmetic of a small model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from daemon.engine.weights import Layer, Shape, Weights


class Cache:
    """Room for `slots` conversations of at most `length` tokens."""

    def __init__(self, weights: Weights, slots: int, length: int) -> None:
        if length > weights.shape.context:
            raise ValueError(
                f"a cache of {length} tokens is longer than the model's {weights.shape.context}"
            )
        shape = weights.shape
        self.shape: Shape = shape
        self.slots = slots
        self.length = length
        # One column more: where the slots that take no token write what nobody reads.
        size = (slots, shape.key_heads, length + 1, shape.width)
        dtype, device = weights.embedding.dtype, weights.embedding.device
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    @torch.inference_mode()
    def extend(
        self,
        weights: Weights,
        slots: Sequence[int],
        starts: Sequence[int],
        rows: Sequence[Sequence[int]],
    ) -> Tensor:
        """Append row i to slot i, which holds `starts[i]` tokens; (B, V) logits after its last."""
        if all(len(row) == 1 for row in rows) and max(slots) < 2 * len(slots):
            return self._one_each(weights, slots, starts, [row[0] for row in rows])
        return self._several(weights, slots, starts, rows)

    def _one_each(
        self, weights: Weights, slots: Sequence[int], starts: Sequence[int], tokens: Sequence[int]
    ) -> Tensor:
        """One token for most slots: every slot up to the highest takes part."""
        count, device = max(slots) + 1, weights.embedding.device
        where = torch.tensor(slots, device=device)
        ids = torch.zeros(count, dtype=torch.int64, device=device)
        columns = torch.full((count,), self.length, device=device)
        ids[where] = torch.tensor(tokens, device=device)
        columns[where] = torch.tensor(starts, device=device)
        span = max(starts) + 1
        hidden_from = torch.arange(span, device=device) > columns[:, None]
        place = _Place(
            rows=torch.arange(count, device=device),
            columns=columns,
            read=slice(0, count),
            span=span,
            bias=_bias(hidden_from[:, None, None], weights.embedding.dtype),
        )
        hidden = weights.embedding[ids][:, None]
        # Slots that take no token see the column of the last position; nobody reads the result.
        positions = columns.clamp(max=self.length - 1)[:, None]
        hidden = self._through(weights, hidden, positions, place, None)
        return weights.logits(hidden[where, 0])

    def _several(
        self,
        weights: Weights,
        slots: Sequence[int],
        starts: Sequence[int],
        rows: Sequence[Sequence[int]],
    ) -> Tensor:
        """Rows of any length for any slots."""
        device = weights.embedding.device
        lengths = torch.tensor([len(row) for row in rows], device=device)
        width = int(lengths.max())
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
        first = torch.tensor(starts, device=device)
        positions = first[:, None] + torch.arange(width, device=device)
        there = torch.arange(width, device=device) < lengths[:, None]
        span = int((first + lengths).max())
        where = torch.tensor(slots, device=device)
        hidden_from = torch.arange(span, device=device) > positions[..., None]
        place = _Place(
            rows=where[:, None].expand_as(ids)[there],
            columns=positions[there],
            read=where,
            span=span,
            bias=_bias(hidden_from[:, None], weights.embedding.dtype),
        )
        positions = positions.clamp(max=self.length - 1)
        hidden = self._through(weights, weights.embedding[ids], positions, place, there)
        return weights.logits(hidden[torch.arange(len(rows), device=device), lengths - 1])

    def _through(
        self,
        weights: Weights,
        hidden: Tensor,
        positions: Tensor,
        place: "_Place",
        there: Tensor | None,
    ) -> Tensor:
        """(B, T, D) states after every layer; keys and values of what is `there` are kept."""
        rotation = weights.cos[positions][:, :, None], weights.sin[positions][:, :, None]
        for number, layer in enumerate(weights.layers):
            query, key, value = self._projected(weights, layer, hidden, rotation)
            keys, values = self.keys[number], self.values[number]
            keys[place.rows, :, place.columns] = key.flatten(0, 1) if there is None else key[there]
            values[place.rows, :, place.columns] = (
                value.flatten(0, 1) if there is None else value[there]
            )
            mixed = _attend(query, keys[place.read], values[place.read], place)
            projected = mixed @ layer.out.T
            if layer.out_bias is not None:
                projected += layer.out_bias
            hidden = layer.feed(hidden + projected, weights.eps)
        return hidden

    def _projected(
        self, weights: Weights, layer: Layer, hidden: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, T, H, W), keys and values (B, T, K, W), turned to their positions."""
        shape = self.shape
        normed = rms_norm(hidden, layer.attention_norm.shape, layer.attention_norm, weights.eps)
        joint = normed @ layer.qkv.T
        if layer.qkv_bias is not None:
            joint += layer.qkv_bias
        joint = joint.view(*joint.shape[:2], -1, shape.width)
        sizes = [shape.heads, shape.key_heads, shape.key_heads]
        query, key, value = torch.split(joint, sizes, dim=2)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, layer.query_norm.shape, layer.query_norm, weights.eps)
            key = rms_norm(key, layer.key_norm.shape, layer.key_norm, weights.eps)
        return _turned(query, rotation), _turned(key, rotation), value


@dataclass(frozen=True, slots=True)
class _Place:
    """Where new keys and values go, and what each new token may look at."""

    rows: Tensor
    """Slot of each new token."""
    columns: Tensor
    """Its position."""
    read: Tensor | slice
    """Slots of the batch."""
    span: int
    """Positions that anybody looks at."""
    bias: Tensor
    """(B, 1, T, span): 0 for what a token may look at, -inf for the rest."""


def _bias(hidden_from: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden_from.shape, dtype=dtype, device=hidden_from.device).masked_fill_(
        hidden_from, float("-inf")
    )


def _turned(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, of halves as in transformers."""
    cos, sin = rotation
    first, second = states.chunk(2, -1)
    return states * cos + torch.cat((-second, first), -1) * sin


def _attend(query: Tensor, keys: Tensor, values: Tensor, place: _Place) -> Tensor:
    """(B, T, H W): what each token takes from the positions it may look at.

    Two batched products and a softmax: for one token per conversation they are faster on a CPU than
    the fused kernel, which repeats the keys for every head of a group.
    """
    batch, tokens, heads, width = query.shape
    key_heads = keys.shape[1]
    group = heads // key_heads
    keys, values = keys[:, :, : place.span], values[:, :, : place.span]
    # (B, K, group * T, W): all queries that look at the same keys in one product.
    asked = query.view(batch, tokens, key_heads, group, width).permute(0, 2, 3, 1, 4)
    scores = asked.reshape(batch, key_heads, group * tokens, width) @ keys.transpose(-1, -2)
    scores = (scores * width**-0.5).view(batch, key_heads, group, tokens, place.span)
    chances = (scores + place.bias[:, :, None]).softmax(-1).flatten(2, 3)
    mixed: Tensor = (chances @ values).view(batch, key_heads, group, tokens, width)
    return mixed.permute(0, 3, 1, 2, 4).flatten(2)
