"""A model's weights, fused for inference, with adapters merged in.

The matrices of transformers' modules are fused, so that a layer is four products. They are copies,
so later training changes nothing here. An adapter over a served base (`with_adapters`) shares the
matrices that it does not change. It is stored twice: merged, so that alone it costs no time per
token, and as factors, so that many adapters answer in one forward of their base (`Mixture`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from weakref import ref

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import PreTrainedModel

from events.errors import KintsugiError


class IncompatibleModel(KintsugiError):
    """The engine cannot compute the same logits as this model."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: H query heads, K key heads, each of width W; hidden states of width D."""

    qkv: Tensor
    """((H + 2 K) W, D)"""
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    """(W,)"""
    key_norm: Tensor | None
    out: Tensor
    """(D, H W)"""
    out_bias: Tensor | None
    gate_up: Tensor
    """(2 F, D), with F the width of the feed-forward part."""
    down: Tensor
    """(D, F)"""
    attention_norm: Tensor
    feed_norm: Tensor


MATRICES: Final = ("qkv", "out", "gate_up", "down")
"""Matrices of a layer that adapters change."""


@dataclass(frozen=True, slots=True)
class Factors:
    """An adapter's change of an (O, I) matrix: `up @ down`, of rank R. `up` includes the scale."""

    down: Tensor
    """(R, I)"""
    up: Tensor
    """(O, R)"""


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a model; policies that use the same cache must have equal ones."""

    layers: int
    heads: int
    key_heads: int
    width: int
    vocabulary: int
    context: int
    """Largest number of positions that the model's configuration names."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Weights:
    """All weights and constants that a forward of a model needs."""

    shape: Shape
    layers: tuple[Layer, ...]
    embedding: Tensor
    """(V, D)"""
    norm: Tensor
    """(D,)"""
    head: Tensor
    """(V, D); the same tensor as `embedding` if the model ties the two."""
    cos: Tensor
    """(context, W) cosines of the rotary embedding, by position; `sin` has the sines."""
    sin: Tensor
    eps: float
    base: "Weights | None" = None
    """The base's weights that an adapter was merged into; None for a base."""
    factors: tuple[Mapping[str, Factors], ...] = ()
    """For each layer: name of a matrix -> the adapter's change; empty for a base."""
    head_factors: "Factors | None" = None
    """An adapter's change of the head; never merged, as the head is the largest matrix."""

    @classmethod
    @torch.no_grad()
    def of(cls, model: PreTrainedModel) -> Self:
        """Copy a causal language model's present weights. Raise IncompatibleModel."""
        causal: Any = model
        body, head = causal.get_decoder(), causal.get_output_embeddings()
        base_head: Any = head.get_base_layer() if isinstance(head, LoraLayer) else head
        shape = _shape(causal.config)
        embedding = _snapshot(body.embed_tokens.weight)
        cos, sin = _rotation(body, shape.context, embedding)
        return cls(
            shape=shape,
            layers=tuple(_fuse(layer) for layer in body.layers),
            embedding=embedding,
            norm=_snapshot(body.norm.weight),
            head=embedding
            if base_head.weight is body.embed_tokens.weight
            else _snapshot(base_head.weight),
            cos=cos,
            sin=sin,
            eps=float(causal.config.rms_norm_eps),
            head_factors=_factor_head(head),
        )

    @torch.no_grad()
    def with_adapters(self, model: PreTrainedModel) -> "Weights":
        """Return these weights with the adapters that are attached to `model`, their model."""
        causal: Any = model
        theirs = causal.get_decoder().layers
        merged = (_merge(own, layer) for own, layer in zip(self.layers, theirs, strict=True))
        factors = tuple(_factor(layer) for layer in theirs)
        return replace(
            self,
            layers=tuple(merged),
            base=self,
            factors=factors,
            head_factors=_factor_head(causal.get_output_embeddings()),
        )

    def logits(self, hidden: Tensor, assignment: "Assignment | None" = None) -> Tensor:
        """Return (N, V) logits of (N, D) states, float32 or wider; a mixture needs `assignment`."""
        normed = rms_norm(hidden, self.norm.shape, self.norm, self.eps)
        logits = normed @ self.head.T
        if assignment is not None:
            assignment.add_to_head(logits, normed)
        elif self.head_factors is not None:
            logits += (normed @ self.head_factors.down.T) @ self.head_factors.up.T
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Mixture:
    """Adapters of one base, and the base, in one forward: each token adds its adapter's changes."""

    def __init__(self, members: Sequence[Weights]) -> None:
        """Prepare the factors of `members`: adapters of one base, and perhaps the base itself."""
        self.base = members[0].base or members[0]
        # An idle mixture must not keep an unloaded adapter's weights in memory.
        self._members = [ref(member) for member in members]
        self._stacks = [
            {
                name: _stack_factors([m.factors[number].get(name) if m.factors else None
                                      for m in members])
                for name in MATRICES
            }
            for number in range(len(self.base.layers))
        ]  # fmt: skip
        self._head = _stack_factors([member.head_factors for member in members])

    @property
    def changes_head(self) -> bool:
        """Whether a member changes the head; then `Weights.logits` needs an assignment."""
        return self._head is not None

    def is_of(self, members: Sequence[Weights]) -> bool:
        """Return whether these are its members, in this order."""
        return len(members) == len(self._members) and all(
            own() is member for own, member in zip(self._members, members, strict=True)
        )

    def assign(self, owners: Sequence[int]) -> "Assignment":
        """Return the assignment of N tokens. `owners` has the index of each token's member."""
        counts = [0] * len(self._members)
        places = []
        for owner in owners:
            places.append((owner, counts[owner]))
            counts[owner] += 1
        room = max(counts)
        device = self.base.embedding.device
        back = torch.tensor([owner * room + number for owner, number in places], device=device)
        # Places without a token read token 0, and their results are dropped.
        tokens = torch.zeros(len(counts) * room, dtype=torch.int64, device=device)
        tokens[back] = torch.arange(len(owners), device=device)
        return Assignment(self._stacks, self._head, tokens, back)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which member of a mixture each of N tokens belongs to, with the members' factors."""

    stacks: Sequence[Mapping[str, tuple[Tensor, Tensor] | None]]
    """Per layer: matrix -> (P, I, R) and (P, R, O) factors of P members; None if unchanged."""
    head: tuple[Tensor, Tensor] | None
    """Factors of the head, in the same shapes; None if no member changes it."""
    tokens: Tensor
    """(P room,) token indices, grouped by member; each group is padded to `room`."""
    back: Tensor
    """(N,) position of each token in `tokens`."""

    def add(self, product: Tensor, states: Tensor, layer: int, name: str) -> None:
        """Add each token's adapter to the base's (N, O) product of (N, I) states and a matrix."""
        self._add(product, states, self.stacks[layer][name])

    def add_to_head(self, logits: Tensor, states: Tensor) -> None:
        """Add each token's adapter to the (N, V) logits of (N, D) states."""
        self._add(logits, states, self.head)

    def _add(self, product: Tensor, states: Tensor, stack: tuple[Tensor, Tensor] | None) -> None:
        if stack is None:
            return
        down, up = stack
        states = states[self.tokens].view(len(down), -1, states.shape[1])
        product += torch.bmm(torch.bmm(states, down), up).flatten(0, 1)[self.back]


def _stack_factors(factors: "Sequence[Factors | None]") -> tuple[Tensor, Tensor] | None:
    known = [item for item in factors if item is not None]
    if not known:
        return None
    rank = max(len(item.down) for item in known)
    down = known[0].down.new_zeros(len(factors), known[0].down.shape[1], rank)
    up = down.new_zeros(len(factors), rank, len(known[0].up))
    for place, item in enumerate(factors):
        if item is not None:
            down[place, :, : len(item.down)] = item.down.T
            up[place, : len(item.down)] = item.up.T
    return down, up


def _shape(config: Any) -> Shape:
    heads = int(config.num_attention_heads)
    return Shape(
        layers=int(config.num_hidden_layers),
        heads=heads,
        key_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        width=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocabulary=int(config.vocab_size),
        context=int(config.max_position_embeddings),
    )


def _fuse(layer: Any) -> Layer:
    """Return a decoder layer with fused matrices. Raise IncompatibleModel for other layers."""
    try:
        attention, feed = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return Layer(
            qkv=torch.cat([_effective(linear) for linear in projections]),
            qkv_bias=_biases(projections),
            query_norm=_weight(getattr(attention, "q_norm", None)),
            key_norm=_weight(getattr(attention, "k_norm", None)),
            out=_effective(attention.o_proj),
            out_bias=_biases((attention.o_proj,)),
            gate_up=torch.cat([_effective(linear) for linear in (feed.gate_proj, feed.up_proj)]),
            down=_effective(feed.down_proj),
            attention_norm=_snapshot(layer.input_layernorm.weight),
            feed_norm=_snapshot(layer.post_attention_layernorm.weight),
        )
    except AttributeError as error:
        raise IncompatibleModel(
            f"{type(layer).__name__} is no decoder layer of Llama's kind ({error}); serve the "
            "model with vLLM"
        ) from error


def _merge(own: Layer, layer: Any) -> Layer:
    attention, feed = layer.self_attn, layer.mlp
    return replace(
        own,
        qkv=_stack_linears(own.qkv, (attention.q_proj, attention.k_proj, attention.v_proj)),
        out=_stack_linears(own.out, (attention.o_proj,)),
        gate_up=_stack_linears(own.gate_up, (feed.gate_proj, feed.up_proj)),
        down=_stack_linears(own.down, (feed.down_proj,)),
    )


def _stack_linears(own: Tensor, linears: Sequence[Any]) -> Tensor:
    """Stack linear layers' matrices with adapters merged in; without adapters, return `own`."""
    if not any(isinstance(linear, LoraLayer) for linear in linears):
        return own
    return torch.cat([_effective(linear) for linear in linears])


def _factor(layer: Any) -> dict[str, Factors]:
    attention, feed = layer.self_attn, layer.mlp
    linears = {
        "qkv": (attention.q_proj, attention.k_proj, attention.v_proj),
        "out": (attention.o_proj,),
        "gate_up": (feed.gate_proj, feed.up_proj),
        "down": (feed.down_proj,),
    }
    return {
        name: _stack_deltas(parts)
        for name, parts in linears.items()
        if any(isinstance(part, LoraLayer) for part in parts)
    }


def _factor_head(head: Any) -> Factors | None:
    if not isinstance(head, LoraLayer) or head.disable_adapters:
        return None
    has_own = any(adapter in head.lora_A for adapter in head.active_adapters)
    return _stack_deltas((head,)) if has_own else None


def _stack_deltas(linears: Sequence[Any]) -> Factors:
    """Return stacked layers' changes, in the base's type (PEFT has float32 for half precision)."""
    downs, ups, dtype = [], [], linears[0].weight.dtype
    for linear in linears:
        own = [
            (linear.lora_A[name].weight, linear.lora_B[name].weight * linear.scaling[name])
            for name in (linear.active_adapters if isinstance(linear, LoraLayer) else ())
            if name in linear.lora_A
        ]
        downs += [down.detach() for down, _ in own]
        base: Any = linear.get_base_layer() if isinstance(linear, LoraLayer) else linear
        ups.append(
            torch.cat([up.detach() for _, up in own], 1)
            if own
            else base.weight.new_zeros(len(base.weight), 0)
        )
    up = downs[0].new_zeros(sum(map(len, ups)), sum(each.shape[1] for each in ups))
    row = column = 0
    for each in ups:
        up[row : row + len(each), column : column + each.shape[1]] = each
        row, column = row + len(each), column + each.shape[1]
    return Factors(torch.cat(downs).to(dtype), up.to(dtype))


def _effective(linear: Any) -> Tensor:
    if not isinstance(linear, LoraLayer):
        return _snapshot(linear.weight)
    base: Any = linear.get_base_layer()
    total: Tensor = base.weight.detach().float().clone()
    for delta in _deltas(linear):
        total += delta.float()
    return total.to(base.weight.dtype)


def _deltas(linear: Any) -> Iterator[Tensor]:
    if linear.disable_adapters:
        return
    for adapter in linear.active_adapters:
        if adapter in linear.lora_A:
            yield linear.get_delta_weight(adapter).detach()


def _biases(linears: tuple[Any, ...]) -> Tensor | None:
    bases: list[Any] = [o.get_base_layer() if isinstance(o, LoraLayer) else o for o in linears]
    if bases[0].bias is None:
        return None
    return torch.cat([_snapshot(linear.bias) for linear in bases])


def _weight(norm: Any) -> Tensor | None:
    return None if norm is None else _snapshot(norm.weight)


def _snapshot(parameter: Tensor) -> Tensor:
    return parameter.detach().clone()


def _rotation(body: Any, context: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return (context, W) cosines and sines of all positions, by the model's rotary embedding."""
    positions = torch.arange(context, device=like.device)[None]
    cos, sin = body.rotary_emb(torch.zeros(1, dtype=like.dtype, device=like.device), positions)
    return cos[0], sin[0]
