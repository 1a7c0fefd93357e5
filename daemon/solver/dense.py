"""The forward pass of a dense Qwen3 under a LoRA adapter, for training on a CPU.

Guarantee: it equals the model's own forward, to rounding, in value and gradient (tests). It stores
nothing for gradients of base weights. A linear layer is one product, with the adapter added to the
weights. After its attention, the last layer runs for scored tokens alone. `takes` tells whether a
model is of this kind; policy.py runs the others. No attention mask is needed: rows are padded on
the right, and a causal model never reads tokens to the right.
"""

from typing import Any, Final, cast

import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

_LINEAR: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_INNER: Final = ("gate_proj", "up_proj", "down_proj")


def takes(model: nn.Module) -> bool:
    """Return whether `compute_states` gives the same result as this model's own forward pass."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    if type(base) is not Qwen3ForCausalLM or _has_hooks(base):
        return False
    config = base.config
    if config.hidden_act != "silu" or set(config.layer_types or ()) != {"full_attention"}:
        return False
    whole = all(
        p.device.type == "cpu"
        and type(p) is nn.Parameter
        and p.dtype == torch.float32
        and ("lora_" in name or not p.requires_grad)
        for name, p in base.named_parameters()
    )
    return whole and all(map(_plain, _linears(base)))


def _has_hooks(model: nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def _linears(base: Any) -> list[nn.Module]:
    linears: list[nn.Module] = []
    for layer in base.model.layers:
        linears += (getattr(layer.self_attn, name) for name in _LINEAR)
        linears += (getattr(layer.mlp, name) for name in _INNER)
    return linears


def _plain(module: nn.Module) -> bool:
    if not isinstance(module, LoraLinear):
        return type(module) is nn.Linear and module.bias is None
    base = module.get_base_layer()
    if type(base) is not nn.Linear or base.bias is not None or module.merged:
        return False
    # A LoRA variant is DoRA or a similar method.
    return not module.lora_variant and not any(module.lora_bias.values())


def compute_states(model: nn.Module, ids: Tensor, on: Tensor) -> Tensor:
    """Return (N, D) normalised last hidden states of those (B, T) ids where (B, T) `on` is true."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    body = base.model
    batch, length = ids.shape
    x = body.embed_tokens(ids).reshape(batch * length, -1)
    places = torch.arange(length)[None]
    cos, sin = (
        angles[0, :, None, : angles.shape[-1] // 2] for angles in body.rotary_emb(x, places)
    )
    wanted = on.reshape(-1).nonzero().squeeze(-1)
    last = len(body.layers) - 1
    for number, layer in enumerate(body.layers):
        seen = _attention(layer, x, cos, sin, batch)
        if number == last:
            x, seen = x[wanted], seen[wanted]
        x = x + _apply_linear(layer.self_attn.o_proj, seen)
        x = x + _feed_forward(layer, x)
    return _normalize(body.norm, x)


def _attention(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, batch: int) -> Tensor:
    """Return (N, heads * size) attention outputs; each token attends to itself and earlier ones."""
    own, size = layer.self_attn, layer.self_attn.head_dim
    x = _normalize(layer.input_layernorm, x)

    shape = (batch, cos.shape[0], -1, size)
    q = _apply_linear(own.q_proj, x).view(shape)
    k = _apply_linear(own.k_proj, x).view(shape)
    v = _apply_linear(own.v_proj, x).view(shape)
    q = _rotate(_normalize(own.q_norm, q), cos, sin)
    k = _rotate(_normalize(own.k_norm, k), cos, sin)
    seen = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=True,
        scale=own.scaling,
        enable_gqa=True,
    )
    return seen.transpose(1, 2).reshape(x.shape[0], -1)


def _feed_forward(layer: Any, x: Tensor) -> Tensor:
    x = _normalize(layer.post_attention_layernorm, x)
    gate, up = _apply_linear(layer.mlp.gate_proj, x), _apply_linear(layer.mlp.up_proj, x)
    return _apply_linear(layer.mlp.down_proj, _swiglu(gate, up))


def _apply_linear(module: Any, x: Tensor) -> Tensor:
    if not isinstance(module, LoraLinear):
        return functional.linear(x, module.weight)
    base = cast(nn.Linear, module.get_base_layer()).weight
    names = [] if module.disable_adapters else module.active_adapters
    names = [name for name in names if name in module.lora_A]
    if not names:
        return functional.linear(x, base)
    down = torch.cat([_weight(module.lora_A[name]) for name in names])
    up = torch.cat([_weight(module.lora_B[name]) * module.scaling[name] for name in names], dim=1)
    return _apply(_LoraProduct, x, base, down, up)


def _weight(factor: nn.Module) -> Tensor:
    return cast(nn.Linear, factor).weight


def _apply(function: type[Function], *inputs: Any) -> Tensor:
    return cast(Tensor, function.apply(*inputs))  # type: ignore[no-untyped-call]


class _LoraProduct(Function):
    """Computes x (W + U D)^T for a fixed W. The backward pass computes the sum again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        return functional.linear(x, torch.addmm(weight, up, down))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor]:
        x, weight, down, up = ctx.saved_tensors
        back = grad @ torch.addmm(weight, up, down) if ctx.needs_input_grad[0] else None
        # The order of the products makes the sum run over the long side.
        of_up = ((x @ down.T).T @ grad).T
        of_down = (grad @ up).T @ x
        return back, None, of_down, of_up


def _normalize(norm: Any, x: Tensor) -> Tensor:
    return _apply(_Norm, x, norm.weight, norm.variance_epsilon)


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = (length.square_().div_(x.shape[-1]).add_(eps)).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return torch.mul(x, inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, weight, inverse = ctx.saved_tensors
        grad = grad * weight
        along = (grad * x).sum(-1, keepdim=True).mul_(inverse.pow(3)).div_(-x.shape[-1])
        return grad.mul_(inverse).addcmul_(x, along), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _apply(_Rotation, x, cos, sin)


class _Rotation(Function):
    """Rotary position embedding; each pair has one number of each half of a head."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate_pairs(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate_pairs(grad, cos, -sin), None, None


def _rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    result = torch.empty(x.shape, dtype=x.dtype)
    low, high = result.chunk(2, dim=-1)
    torch.mul(first, cos, out=low).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=high).addcmul_(first, sin)
    return result


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return _apply(_Swiglu, gate, up)


class _Swiglu(Function):
    """Computes silu(gate) * up, and stores only the two inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return of_gate, functional.silu(gate).mul_(grad)
