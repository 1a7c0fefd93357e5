"""Compute log-probabilities of sampled tokens with any causal language model of `transformers`.

Logits are computed only for written tokens, since a conversation is mostly prompt, and normalised
in float32 or wider. Guarantee: the numbers equal those of the model's own forward, to rounding.
`check` compares the two on a probe. It refuses a model that changes logits after its head (soft
capping, scaling), and one with dropout, because its log-probabilities would vary.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeGuard, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.autograd import Function

from daemon.solver import dense
from daemon.solver.batch import MicroBatch
from events.errors import KintsugiError

_TILE: Final = 2**24
"""Number of logits in memory at once: 64 MiB of them."""


class IncompatibleModel(KintsugiError):
    """The learner cannot train this model."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities and entropies of a micro-batch, 0 outside the mask."""

    logp: Tensor
    """(B, T - 1) log-probability of each written token, in nats."""
    entropy: Tensor
    """(B, T - 1) entropy of the distribution each token was drawn from, without gradient."""


def score(model: nn.Module, batch: MicroBatch, temperature: float = 1.0) -> Scores:
    """Return log-probabilities and entropies of a micro-batch, with gradient if autograd is on."""
    on = batch.mask > 0
    head = parts(model)[1]
    hidden, written = _compute_states(model, batch.ids, on), batch.ids[:, 1:][on]
    if _is_constant(head):
        picked, of_each = _score_tokens(hidden, head.weight, written, temperature)
    else:
        logits = head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        picked = logits.log_softmax(-1).gather(-1, written[:, None]).squeeze(-1)
        of_each = _entropy(logits.detach())
    logp = torch.zeros_like(batch.mask, dtype=picked.dtype)
    entropy = torch.zeros_like(logp)
    logp[on], entropy[on] = picked, of_each
    return Scores(logp, entropy)


def _compute_states(model: nn.Module, ids: Tensor, on: Tensor) -> Tensor:
    """Return (N, D) last hidden states that predict written tokens. No padding mask is needed: rows
    are padded on the right, and a causal model never reads to the right."""
    if dense.takes(model):
        return dense.compute_states(model, ids, nn.functional.pad(on, (0, 1)))
    output: Any = parts(model)[0](input_ids=ids, use_cache=False)
    hidden: Tensor = output.last_hidden_state[:, :-1][on]
    return hidden


def _entropy(logits: Tensor) -> Tensor:
    """Return the (N,) entropies in nats of (N, V) logits."""
    each: Tensor = torch.special.entr(logits.softmax(-1))
    return each.sum(-1)


def _is_constant(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether `head` is a plain matrix without gradient that lies whole on this device."""
    if type(head) is not nn.Linear or head.bias is not None:
        return False
    return type(head.weight) is nn.Parameter and not head.weight.requires_grad


def _score_tokens(
    hidden: Tensor, weight: Tensor, written: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return (N,) log-probabilities of the written ids, and (N,) entropies."""
    scores = _TokenScores.apply(hidden, weight, written, temperature)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], scores)


class _TokenScores(Function):
    """Computes log-probabilities through a fixed head in tiles; the (N, V) matrix is never built
    whole. Stores their gradient by hidden states, d log p(y) / d h = (e_y - p) W / temperature."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, written: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        size = max(_TILE // weight.shape[0], 128)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        logps, entropies = [], []
        for at in range(0, len(hidden), size):
            part = slice(at, at + size)
            logp, entropy, down = _tile(hidden[part], weight, written[part], temperature)
            logps.append(logp)
            entropies.append(entropy)
            if slope is not None:
                slope[part] = (down.to(weight.dtype) @ weight).div_(temperature)
        ctx.save_for_backward(slope)
        kind = torch.promote_types(hidden.dtype, torch.float32)
        empty = [hidden.new_empty(0, dtype=kind)]
        result = torch.cat(logps or empty), torch.cat(entropies or empty)
        ctx.mark_non_differentiable(result[1])
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return (slope * grad[:, None]).to(slope.dtype), None, None, None


def _tile(
    hidden: Tensor, weight: Tensor, written: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's log-probability and entropy, and (N, V) gradients of logits: e_y - p."""
    logits = hidden @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature)
    logits.sub_(logits.amax(-1, keepdim=True))
    # Logits are taken relative to the largest, which becomes 0, so that nothing overflows.
    chances = logits.exp()
    total = chances.sum(-1, keepdim=True)
    chances.div_(total)
    size = total.log().squeeze(-1)
    logp = logits.gather(-1, written[:, None]).squeeze(-1) - size
    entropy = size - torch.linalg.vecdot(chances, logits)
    down = chances.neg_()
    return logp, entropy, down.scatter_add_(-1, written[:, None], torch.ones_like(total))


def parts(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the model's layers up to the last hidden state, and the head that computes logits."""
    base: Any = model
    if isinstance(model, PeftModel):
        base = model.get_base_model()
    head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
    if head is None:
        raise IncompatibleModel(
            f"{type(base).__name__} is no causal language model: it has no head"
        )
    return base.get_decoder(), head


def check(model: nn.Module) -> None:
    """Raise IncompatibleModel for a model that the learner would train wrongly."""
    _check_dropout(model)
    body, head = parts(model)
    size = head.weight.shape[0] if isinstance(head.weight, Tensor) else 1
    device = next(model.parameters()).device
    probe = (torch.arange(8, device=device) * 31 % int(size))[None]
    with torch.no_grad():
        own: Any = model(input_ids=probe, use_cache=False)
        ours = head(body(input_ids=probe, use_cache=False).last_hidden_state)
    difference = float((own.logits - ours).abs().max())
    if not difference <= 1e-3 * float(own.logits.abs().max()):
        raise IncompatibleModel(
            f"{type(model).__name__} does more to its logits than its head (they differ by "
            f"{difference:g}); the learner would compute other probabilities than the sampler"
        )


def _check_dropout(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            raise IncompatibleModel(f"{name} drops out {module.p:g}; set it to 0")
    config: Any = getattr(model, "config", None)
    if getattr(config, "attention_dropout", 0.0):
        raise IncompatibleModel(
            f"attention_dropout is {config.attention_dropout:g} in the model's config; set it to 0"
        )


def check_ids(model: nn.Module, highest: int) -> None:
    """Raise IncompatibleModel if the highest id is outside the model's vocabulary."""
    _, head = parts(model)
    if isinstance(head.weight, Tensor) and highest >= head.weight.shape[0]:
        raise IncompatibleModel(
            f"token id {highest} is outside the model's vocabulary of {head.weight.shape[0]}: the "
            "spec or the trajectories are of another model"
        )
