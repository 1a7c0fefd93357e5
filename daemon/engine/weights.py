"""A model's weights laid together for inference, adapters merged in.

Fused from the modules of transformers, so that a layer is four products. What is read from a module
is copied: later training changes nothing here.

An adapter over a base that is served (`with_adapters`) shares with it whatever it does not change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor
from torch.nn.functional import rms_norm, silu
from transformers import PreTrainedModel

from events.errors import KintsugiError


class IncompatibleModel(KintsugiError):
    """The engine would compute something else than the model does."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. H heads, K of keys and values, each W wide; D the width of the stream."""

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
    """(2 F, D)"""
    down: Tensor
    """(D, F)"""
    attention_norm: Tensor
    feed_norm: Tensor

    def feed(self, hidden: Tensor, eps: float) -> Tensor:
        """The second half of the layer, residual included."""
        normed = rms_norm(hidden, self.feed_norm.shape, self.feed_norm, eps)
        gate, up = (normed @ self.gate_up.T).chunk(2, -1)
        return hidden + (silu(gate) * up) @ self.down.T


@dataclass(frozen=True, slots=True)
class Shape:
    """What two policies must have in common to share a cache."""

    layers: int
    heads: int
    key_heads: int
    width: int
    vocabulary: int
    context: int
    """Positions that the model is declared for."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything that a forward needs."""

    shape: Shape
    layers: tuple[Layer, ...]
    embedding: Tensor
    """(V, D)"""
    norm: Tensor
    """(D,)"""
    head: Tensor
    """(V, D); the embedding itself where the model ties the two."""
    cos: Tensor
    """(context, W) of every position's rotation."""
    sin: Tensor
    eps: float
    """Epsilon of every norm."""

    @classmethod
    @torch.no_grad()
    def of(cls, model: PreTrainedModel) -> Self:
        """Those of a causal language model as it is now. Raises IncompatibleModel."""
        causal: Any = model
        body, head = causal.get_decoder(), causal.get_output_embeddings()
        shape = _shape(causal.config)
        embedding = _snapshot(body.embed_tokens.weight)
        cos, sin = _rotation(body, shape.context, embedding)
        return cls(
            shape=shape,
            layers=tuple(_fuse(layer) for layer in body.layers),
            embedding=embedding,
            norm=_snapshot(body.norm.weight),
            head=embedding if head.weight is body.embed_tokens.weight else _effective(head),
            cos=cos,
            sin=sin,
            eps=float(causal.config.rms_norm_eps),
        )

    @torch.no_grad()
    def with_adapters(self, model: PreTrainedModel) -> "Weights":
        """These, with the adapters in that the model they were read from carries now."""
        causal: Any = model
        changed = zip(self.layers, causal.get_decoder().layers, strict=True)
        return replace(self, layers=tuple(_merge(own, layer) for own, layer in changed))

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, V) in float32 at least, from (N, D) states after the last layer."""
        normed = rms_norm(hidden, self.norm.shape, self.norm, self.eps)
        logits = normed @ self.head.T
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


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
    """A layer's matrices laid together. Raises IncompatibleModel where it has others."""
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
    """A base's layer with what adapters change of it."""
    attention, feed = layer.self_attn, layer.mlp
    return replace(
        own,
        qkv=_stack_linears(own.qkv, (attention.q_proj, attention.k_proj, attention.v_proj)),
        out=_stack_linears(own.out, (attention.o_proj,)),
        gate_up=_stack_linears(own.gate_up, (feed.gate_proj, feed.up_proj)),
        down=_stack_linears(own.down, (feed.down_proj,)),
    )


def _stack_linears(own: Tensor, linears: Sequence[Any]) -> Tensor:
    """The matrices of linear layers, one below the other, as they apply now: the base's own where
    no adapter is on them."""
    if not any(isinstance(linear, LoraLayer) for linear in linears):
        return own
    return torch.cat([_effective(linear) for linear in linears])


def _effective(linear: Any) -> Tensor:
    """The matrix that a linear layer applies now, adapters included; a copy."""
    if not isinstance(linear, LoraLayer):
        return _snapshot(linear.weight)
    base: Any = linear.get_base_layer()
    total: Tensor = base.weight.detach().float().clone()
    for delta in _deltas(linear):
        total += delta.float()
    return total.to(base.weight.dtype)


def _deltas(linear: Any) -> Iterator[Tensor]:
    """What the active adapters add to a matrix."""
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
    """(context, W) cosines and sines of every position, by the model's own rule."""
    positions = torch.arange(context, device=like.device)[None]
    cos, sin = body.rotary_emb(torch.zeros(1, dtype=like.dtype, device=like.device), positions)
    return cos[0], sin[0]
