"""The key-value cache of many conversations, and a model's forward pass over it.

Each conversation has a slot: one row of every layer's tensors. `extend` appends tokens to some
slots and overwrites what they held beyond `start`, so that going back is free. Where most slots
take one token each, the whole tensor is read in place: gathering rows would cost more than a small
model's arithmetic. Tokens of several adapters may share a forward (`Mixture`): they share the
base's products, and the adapters' small ones are added in one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from daemon.engine.weights import Assignment, Layer, Mixture, Shape, Weights


class Cache:
    """Memory for `slots` conversations of at most `length` tokens."""

    def __init__(self, weights: Weights, slots: int, length: int) -> None:
        if length > weights.shape.context:
            raise ValueError(
                f"a cache of {length} tokens is longer than the model's {weights.shape.context}"
            )
        shape = weights.shape
        self.shape: Shape = shape
        self.slots = slots
        self.length = length
        # One more column, which is never read: slots that take no token write there.
        size = (slots, shape.key_heads, length + 1, shape.width)
        dtype, device = weights.embedding.dtype, weights.embedding.device
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    @torch.inference_mode()
    def extend(
        self,
        weights: Weights | Mixture,
        slots: Sequence[int],
        starts: Sequence[int],
        rows: Sequence[Sequence[int]],
        owners: Sequence[int] = (),
    ) -> Tensor:
        """Append row i to slot i, which holds `starts[i]` tokens; return (B, V) logits after its
        last. For a mixture, `owners[i]` is the index of the adapter that reads row i."""
        if all(len(row) == 1 for row in rows) and max(slots) < 2 * len(slots):
            return self._one_each(weights, slots, starts, [row[0] for row in rows], owners)
        return self._several(weights, slots, starts, rows, owners)

    def copy(self, slot: int, length: int) -> None:
        """Copy the first `length` tokens of a slot into all others."""
        for tensor in (*self.keys, *self.values):
            tensor[:, :, :length] = tensor[slot, :, :length].clone()

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Zero a slot's row: a NaN there would spoil other slots' results, though masked."""
        for tensor in (*self.keys, *self.values):
            tensor[slot] = 0

    def _one_each(
        self,
        model: Weights | Mixture,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[int],
        owners: Sequence[int],
    ) -> Tensor:
        """Append one token to most slots: every slot up to the highest one takes part."""
        weights = model.base if isinstance(model, Mixture) else model
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
            there=None,
            bias=_bias(hidden_from[:, None], weights.embedding.dtype),
        )
        assignment = last = None
        if isinstance(model, Mixture):
            # Slots that take no token may have any adapter.
            every = [owners[0]] * count
            for slot, owner in zip(slots, owners, strict=True):
                every[slot] = owner
            assignment = model.assign(every)
            last = model.assign(owners) if model.changes_head else None
        return weights.logits(self._through(weights, ids, place, assignment)[where], last)

    def _several(
        self,
        model: Weights | Mixture,
        slots: Sequence[int],
        starts: Sequence[int],
        rows: Sequence[Sequence[int]],
        owners: Sequence[int],
    ) -> Tensor:
        weights = model.base if isinstance(model, Mixture) else model
        device = weights.embedding.device
        lengths = torch.tensor([len(row) for row in rows], device=device)
        first = torch.tensor(starts, device=device)
        where = torch.tensor(slots, device=device)
        steps = torch.arange(int(lengths.max()), device=device)
        there = steps < lengths[:, None]
        positions = first[:, None] + steps
        span = int((first + lengths).max())
        hidden_from = torch.arange(span, device=device) > positions[..., None]
        place = _Place(
            rows=where[:, None].expand_as(there)[there],
            columns=positions[there],
            read=where,
            there=there,
            bias=_bias(hidden_from, weights.embedding.dtype),
        )
        ids = torch.tensor([token for row in rows for token in row], device=device)
        assignment = last = None
        if isinstance(model, Mixture):
            pairs = zip(owners, rows, strict=True)
            assignment = model.assign([owner for owner, row in pairs for _ in row])
            last = model.assign(owners) if model.changes_head else None
        hidden = self._through(weights, ids, place, assignment)
        return weights.logits(hidden[lengths.cumsum(0) - 1], last)

    def _through(
        self, weights: Weights, ids: Tensor, place: "_Place", assignment: Assignment | None
    ) -> Tensor:
        """Return (N, D) states of N new tokens after all layers; store their keys and values."""
        hidden = weights.embedding[ids]
        # Slots that take no token write into the column that is never read.
        positions = place.columns.clamp(max=self.length - 1)
        rotation = weights.cos[positions][:, None], weights.sin[positions][:, None]
        caches = zip(weights.layers, self.keys, self.values, strict=True)
        for number, (layer, keys, values) in enumerate(caches):
            products = _Products(layer, number, assignment)
            query, key, value = self._project(weights, products, hidden, rotation)
            keys[place.rows, :, place.columns] = key
            values[place.rows, :, place.columns] = value
            projected = products.multiply(_attend(query, keys, values, place), "out")
            if layer.out_bias is not None:
                projected += layer.out_bias
            hidden = _feed(products, hidden + projected, weights.eps)
        return hidden

    def _project(
        self,
        weights: Weights,
        products: "_Products",
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (N, H, W), keys and values (N, K, W), turned to their positions."""
        shape, layer = self.shape, products.layer
        normed = rms_norm(hidden, layer.attention_norm.shape, layer.attention_norm, weights.eps)
        joint = products.multiply(normed, "qkv")
        if layer.qkv_bias is not None:
            joint += layer.qkv_bias
        joint = joint.view(len(joint), -1, shape.width)
        sizes = [shape.heads, shape.key_heads, shape.key_heads]
        query, key, value = torch.split(joint, sizes, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, layer.query_norm.shape, layer.query_norm, weights.eps)
            key = rms_norm(key, layer.key_norm.shape, layer.key_norm, weights.eps)
        return _rotate(query, rotation), _rotate(key, rotation), value


@dataclass(frozen=True, slots=True)
class _Products:
    layer: Layer
    number: int
    assignment: Assignment | None
    """Assignment of tokens to adapters; None for a single policy."""

    def multiply(self, states: Tensor, name: str) -> Tensor:
        """Return (N, O): (N, I) states times the (O, I) matrix of this name."""
        matrix: Tensor = getattr(self.layer, name)
        product = states @ matrix.T
        if self.assignment is not None:
            self.assignment.add(product, states, self.number, name)
        return product


def _feed(products: _Products, hidden: Tensor, eps: float) -> Tensor:
    norm = products.layer.feed_norm
    normed = rms_norm(hidden, norm.shape, norm, eps)
    gate, up = products.multiply(normed, "gate_up").chunk(2, -1)
    return hidden + products.multiply(silu(gate) * up, "down")


@dataclass(frozen=True, slots=True)
class _Place:
    """Positions of N new tokens in B slots, and which earlier tokens each may attend to."""

    rows: Tensor
    """(N,) slot of each token."""
    columns: Tensor
    """(N,) position of each token in its slot."""
    read: Tensor | slice
    there: Tensor | None
    """(B, T): places of the tokens in a padded batch; None for one token each."""
    bias: Tensor
    """(B, T, span): 0 for tokens that may be attended to, -inf for all others."""


def _bias(hidden_from: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden_from.shape, dtype=dtype, device=hidden_from.device).masked_fill_(
        hidden_from, float("-inf")
    )


def _rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Embed positions by rotation, of halves as in transformers."""
    cos, sin = rotation
    first, second = states.chunk(2, -1)
    return states * cos + torch.cat((-second, first), -1) * sin


def _attend(query: Tensor, keys: Tensor, values: Tensor, place: _Place) -> Tensor:
    """Return (N, H W): attention of (N, H, W) queries. For one token per conversation, two products
    and a softmax are faster on a CPU than the fused kernel, which repeats keys for each head."""
    _, heads, width = query.shape
    batch, tokens, span = place.bias.shape
    key_heads = keys.shape[1]
    group = heads // key_heads
    keys, values = keys[:, :, :span][place.read], values[:, :, :span][place.read]
    if place.there is not None:
        padded = query.new_zeros(batch, tokens, heads, width)
        padded[place.there] = query
        query = padded
    # (B, K, group * T, W): all queries of the same keys in one product.
    asked = query.view(batch, tokens, key_heads, group, width).permute(0, 2, 3, 1, 4)
    scores = asked.reshape(batch, key_heads, group * tokens, width) @ keys.transpose(-1, -2)
    scores = (scores * width**-0.5).view(batch, key_heads, group, tokens, span)
    chances = (scores + place.bias[:, None, None]).softmax(-1).flatten(2, 3)
    mixed: Tensor = (chances @ values).view(batch, key_heads, group, tokens, width)
    mixed = mixed.permute(0, 3, 1, 2, 4).flatten(2)
    return mixed[:, 0] if place.there is None else mixed[place.there]
