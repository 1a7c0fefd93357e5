"""The policy loss: one function, and every published variant of it as a switch.

    L = aggregate( w * surrogate(r, A) + beta * KL(policy || reference) )

with the ratio r of the policy to the one recomputed before the update, the advantage A, and the
weight w of truncated importance sampling, which corrects for the sampler's own arithmetic. Sources
of the switches: PPO (clip), dual clip (Ye et al. 2020), GSPO (sequence ratios), DAPO (asymmetric
clip, token mean), Dr. GRPO (`dr`), TIS and IcePop (`truncate`, `mask`), Schulman's k1, k2, k3.

Shapes: B sequences of T tokens. Tokens outside the mask (what the model did not write) are in no
ratio, no divergence and no denominator.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from events.messages import Frozen

Level = Literal["token", "sequence", "sequence_token", "sequence_sum"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "dr"]


class TisConfig(Frozen):
    """Correction for the difference between sampler and learner: w from exp(old - roll)."""

    mode: Literal["none", "truncate", "mask"] = "none"
    """`truncate` clamps the weight to [lo, hi]; `mask` drops what is outside."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Of each token, of the whole sequence (product), or its geometric mean."""
    lo: float = Field(default=0.0, ge=0)
    hi: float = Field(default=2.0, gt=0)


class KlConfig(Frozen):
    """Penalty for leaving the reference policy."""

    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of x = logp - ref: x; x^2/2; exp(-x) - 1 + x."""
    beta: float = Field(default=0.0, ge=0)
    unbiased: bool = False
    """Whether the estimate is weighted by the ratio to the recomputed policy."""


class LossConfig(Frozen):
    """Every switch of the loss."""

    level: Level = "token"
    lo: Annotated[float, Field(ge=0, le=1)] = 0.2
    hi: Annotated[float, Field(ge=0)] = 0.28
    dual: Annotated[float, Field(gt=1)] | None = None
    """Bound of the loss of a negative advantage, in multiples of it; None: no bound."""
    log_ratio_clamp: Annotated[float, Field(gt=0)] | None = None
    """Largest |log ratio|; None: unbounded."""
    tis: TisConfig = TisConfig()
    kl: KlConfig = KlConfig()
    aggregation: Aggregation = "seq-mean-token-mean"
    t_max: Annotated[int, Field(gt=0)] | None = None
    """Of `dr`: the constant length that sums are divided by; None: the batch's T."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What the loss of one micro-batch needs. Log-probabilities are in nats."""

    logp: Tensor
    """(B, T) under the policy, with gradient."""
    old: Tensor
    """(B, T) recomputed by the learner before the update."""
    mask: Tensor
    """(B, T) 1 for tokens the model wrote."""
    advantage: Tensor
    """(B,)"""
    roll: Tensor | None = None
    """(B, T) as the sampler reported them; needed by TIS."""
    ref: Tensor | None = None
    """(B, T) of the reference; needed by the KL penalty."""
    weight: Tensor | None = None
    """(B,) share of a sequence in its rollout, where one rollout became several sequences."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """What sums are divided by: of the whole step, so that micro-batches and ranks add up."""

    tokens: float
    """Trainable tokens."""
    sequences: float
    """Sequences (or rollouts, where sequences have weights)."""


def denominators(mask: Tensor, weight: Tensor | None = None) -> Denominators:
    """Of one batch, or of the step's batches laid together."""
    count = float(mask.shape[0]) if weight is None else float(weight.sum())
    return Denominators(max(float(mask.sum()), 1.0), max(count, 1.0))


def policy_loss(batch: Batch, config: LossConfig, over: Denominators | None = None) -> Tensor:
    """The loss of a batch, a scalar; `over` are the step's denominators, by default its own."""
    mask = batch.mask.to(batch.logp.dtype)
    # Masked before exp: a padded log-probability may be infinite, and 0 * inf is NaN.
    change = torch.where(mask > 0, batch.logp - batch.old, 0.0)
    if config.log_ratio_clamp is not None:
        change = change.clamp(-config.log_ratio_clamp, config.log_ratio_clamp)
    ratio = log_ratio(batch.logp, change, mask, config.level).exp()
    loss = surrogate(ratio, batch.advantage[:, None], config)
    if config.tis.mode != "none":
        loss = loss * tis_weight(batch, mask, config.tis)
    if config.kl.beta > 0:
        loss = loss + config.kl.beta * divergence(batch, mask, change, config.kl)
    return aggregate(loss, mask, config, over or denominators(mask, batch.weight), batch.weight)


def log_ratio(logp: Tensor, change: Tensor, mask: Tensor, level: Level) -> Tensor:
    """(B, T) log ratio of each token, or of its whole sequence."""
    if level == "token":
        return change
    total = (change * mask).sum(-1, keepdim=True)
    if level == "sequence_sum":
        return total.expand_as(change)
    mean = total / mask.sum(-1, keepdim=True).clamp(min=1.0)
    if level == "sequence":
        return mean.expand_as(change)
    own = torch.where(mask > 0, logp - logp.detach(), 0.0)
    return own + mean.detach()


def surrogate(ratio: Tensor, advantage: Tensor, config: LossConfig) -> Tensor:
    """(B, T) PPO's clipped loss with asymmetric bounds, and dual clip below."""
    clipped = ratio.clamp(1 - config.lo, 1 + config.hi)
    loss = torch.maximum(-advantage * ratio, -advantage * clipped)
    if config.dual is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -advantage * config.dual), loss)


def tis_weight(batch: Batch, mask: Tensor, config: TisConfig) -> Tensor:
    """(B, T) detached weight exp(old - roll), truncated or masked."""
    if batch.roll is None:
        raise ValueError("TIS needs the sampler's log-probabilities; the batch has none")
    gap = torch.where(mask > 0, batch.old - batch.roll, 0.0).detach()
    if config.level != "token":
        total = gap.sum(-1, keepdim=True)
        if config.level == "geometric":
            total = total / mask.sum(-1, keepdim=True).clamp(min=1.0)
        gap = total.expand_as(gap)
    weight = gap.exp()
    if config.mode == "truncate":
        return weight.clamp(config.lo, config.hi)
    return torch.where((weight >= config.lo) & (weight <= config.hi), weight, 0.0)


def divergence(batch: Batch, mask: Tensor, change: Tensor, config: KlConfig) -> Tensor:
    """(B, T) estimate of KL(policy || reference)."""
    if batch.ref is None:
        raise ValueError("a KL penalty needs the reference's log-probabilities; the batch has none")
    x = torch.where(mask > 0, batch.logp - batch.ref, 0.0)
    found = {"k1": x, "k2": x.square() / 2, "k3": torch.exp(-x) - 1 + x}[config.estimator]
    return found * change.exp() if config.unbiased else found


def aggregate(
    loss: Tensor,
    mask: Tensor,
    config: LossConfig,
    over: Denominators,
    weight: Tensor | None = None,
) -> Tensor:
    """The scalar; tokens outside the mask count nowhere."""
    loss = torch.where(mask > 0, loss, 0.0)
    if config.aggregation == "token-mean":
        return loss.sum() / over.tokens
    per_sequence = loss.sum(-1)
    if config.aggregation == "seq-mean-token-mean":
        per_sequence = per_sequence / mask.sum(-1).clamp(min=1.0)
    elif config.aggregation == "dr":
        per_sequence = per_sequence / (config.t_max or loss.shape[-1])
    if weight is not None:
        per_sequence = per_sequence * weight
    return per_sequence.sum() / over.sequences
