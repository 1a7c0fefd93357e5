"""The model as the learner sees it: log-probabilities of what was sampled.

Any causal language model of transformers, with or without adapters. Logits are computed only where
the model wrote something, and normalised in float32 at least: a conversation is mostly prompt, and
the vocabulary is its largest matrix.

Guarantee: the same numbers as the model's own forward, to rounding; `check` compares the two on a
probe and refuses a model that does more than its head (soft capping, scaled logits), and one with
dropout, whose log-probabilities would differ from call to call.
"""

from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

from daemon.solver.batch import Padded
from events.errors import KintsugiError


class UnsupportedModel(KintsugiError):
    """The learner cannot train this model."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a policy says about a micro-batch; both are 0 outside the mask."""

    logp: Tensor
    """(B, T - 1) log-probability of each written token, in nats."""
    entropy: Tensor
    """(B, T - 1) of the distribution it was drawn from, without gradient."""


def score(model: nn.Module, batch: Padded, temperature: float = 1.0) -> Scores:
    """The policy's log-probabilities of a micro-batch, with gradient where that is enabled."""
    body, head = parts(model)
    on = batch.mask > 0
    output: Any = body(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False)
    logits = head(output.last_hidden_state[:, :-1][on])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    picked = logits.gather(-1, batch.ids[:, 1:][on][:, None]).squeeze(-1)
    logp = torch.zeros_like(batch.mask, dtype=logits.dtype)
    entropy = torch.zeros_like(logp)
    logp[on] = picked - logits.logsumexp(-1)
    entropy[on] = _entropy(logits.detach())
    return Scores(logp, entropy)


def _entropy(logits: Tensor) -> Tensor:
    """(N,) in nats, of (N, V) logits."""
    each: Tensor = torch.special.entr(logits.softmax(-1))
    return each.sum(-1)


def parts(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The layers up to the last hidden state, and the head that makes logits of it."""
    base: Any = model
    if isinstance(model, PeftModel):
        base = model.get_base_model()
    head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
    if head is None:
        raise UnsupportedModel(f"{type(base).__name__} is no causal language model: it has no head")
    return base.get_decoder(), head


def check(model: nn.Module) -> None:
    """Refuse what the learner would train wrongly. Raises UnsupportedModel."""
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
        raise UnsupportedModel(
            f"{type(model).__name__} does more to its logits than its head (they differ by "
            f"{difference:g}); the learner would compute other probabilities than the sampler"
        )


def _check_dropout(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            raise UnsupportedModel(f"{name} drops out {module.p:g}; set it to 0")
    config: Any = getattr(model, "config", None)
    if getattr(config, "attention_dropout", 0.0):
        raise UnsupportedModel(
            f"attention_dropout is {config.attention_dropout:g} in the model's config; set it to 0"
        )


def check_ids(model: nn.Module, highest: int) -> None:
    """Refuse ids beyond the vocabulary, which would be read from somewhere else in memory."""
    _, head = parts(model)
    if isinstance(head.weight, Tensor) and highest >= head.weight.shape[0]:
        raise UnsupportedModel(
            f"token id {highest} is outside the model's vocabulary of {head.weight.shape[0]}: the "
            "trajectories are of another model"
        )
