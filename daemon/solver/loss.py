"""The policy loss: one function, and every published variant of it as a switch.

    L = aggregate( w * surrogate(r, A) + beta * KL(policy || reference) )

r is the ratio of the policy to the one recomputed before the update, A the advantage, and w the
weight of truncated importance sampling, which corrects for the sampler's arithmetic. Sources: PPO
(clip), dual clip (Ye et al. 2020), GSPO (sequence ratios), DAPO (asymmetric clip, token mean), Dr.
GRPO (`dr`), TIS and IcePop (`truncate`, `mask`), Schulman's k1, k2, k3. Shapes: B sequences of T
tokens. Tokens outside the mask are in no ratio, divergence or denominator.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from events.algorithm import KlConfig, Level, LossConfig, TisConfig


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of the loss of one micro-batch. Log-probabilities are in nats."""

    logp: Tensor
    """(B, T) log-probabilities under the policy, with gradient."""
    old_logp: Tensor
    """(B, T) log-probabilities recomputed by the learner before the update."""
    mask: Tensor
    """(B, T) 1 for tokens that the model wrote."""
    advantage: Tensor
    """(B,) advantage of each sequence."""
    sampler_logp: Tensor | None = None
    """(B, T) log-probabilities as the sampler reported them; needed by TIS."""
    ref_logp: Tensor | None = None
    """(B, T) log-probabilities of the reference; needed by the KL penalty."""
    rollout_tokens: Tensor | None = None
    """(B,) trainable tokens of the whole rollout; None: each sequence is a rollout."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """Divisors of the sums of a whole step, so that micro-batches and ranks add up."""

    tokens: float
    rollouts: float
    longest: float
    """Tokens of the longest sequence, trainable or not."""

    @classmethod
    def of(cls, mask: Tensor, rollout_tokens: Tensor | None = None) -> Self:
        """Return the denominators of one batch, which may be the step's batches concatenated."""
        own = mask.double().sum(-1)
        total = own if rollout_tokens is None else rollout_tokens.double()
        # A sequence counts as its share of its rollout, and a row without trainable tokens as none.
        share = own / total.clamp(min=1.0)
        return cls(float(own.sum()), float(share.sum()), float(mask.shape[-1]))


def policy_loss(batch: LossInputs, config: LossConfig, over: Denominators | None = None) -> Tensor:
    """Return the scalar loss of a batch, 0 without trainable tokens; `over`: the step's
    denominators (default: the batch's). Raise ValueError for missing log-probabilities."""
    mask = batch.mask.to(batch.logp.dtype)
    change = log_change(batch, config)
    ratio = log_ratio(batch.logp, change, mask, config.level).exp()
    loss = surrogate(ratio, batch.advantage[:, None], config)
    if config.tis.mode != "none":
        loss = loss * tis_weight(batch, mask, config.tis)
    if config.kl.beta > 0:
        loss = loss + config.kl.beta * divergence(batch, change, config.kl)
    over = over or Denominators.of(mask, batch.rollout_tokens)
    return aggregate(loss, mask, config, over, batch.rollout_tokens)


def log_change(batch: LossInputs, config: LossConfig) -> Tensor:
    """Return (B, T) logp - old, 0 outside the mask."""
    # Masked before exp: a padded log-probability may be infinite, and 0 * inf is NaN.
    change = torch.where(batch.mask > 0, batch.logp - batch.old_logp, 0.0)
    if config.log_ratio_clamp is None:
        return change
    return change.clamp(-config.log_ratio_clamp, config.log_ratio_clamp)


def log_ratio(logp: Tensor, change: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Return the (B, T) log ratio of each token, or of its whole sequence."""
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
    """Return PPO's (B, T) clipped loss with asymmetric bounds, and dual clip below."""
    clipped = ratio.clamp(1 - config.lo, 1 + config.hi)
    loss = torch.maximum(-advantage * ratio, -advantage * clipped)
    if config.dual is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -advantage * config.dual), loss)


def tis_weight(batch: LossInputs, mask: Tensor, config: TisConfig) -> Tensor:
    """Return the (B, T) detached weight exp(old - roll), truncated or masked."""
    weight = sampler_ratio(batch, mask, config)
    if config.mode == "truncate":
        return weight.clamp(config.lo, config.hi)
    return torch.where((weight >= config.lo) & (weight <= config.hi), weight, 0.0)


def sampler_ratio(batch: LossInputs, mask: Tensor, config: TisConfig) -> Tensor:
    """Return (B, T) detached exp(old - roll) of a token, or of its whole sequence."""
    if batch.sampler_logp is None:
        raise ValueError("TIS needs the sampler's log-probabilities; the batch has none")
    gap = torch.where(mask > 0, batch.old_logp - batch.sampler_logp, 0.0).detach()
    if config.level != "token":
        total = gap.sum(-1, keepdim=True)
        if config.level == "geometric":
            total = total / mask.sum(-1, keepdim=True).clamp(min=1.0)
        gap = total.expand_as(gap)
    return gap.exp()


def divergence(batch: LossInputs, change: Tensor, config: KlConfig) -> Tensor:
    """Return the (B, T) estimate of KL(policy || reference), 0 outside the mask."""
    if batch.ref_logp is None:
        raise ValueError("a KL penalty needs the reference's log-probabilities; the batch has none")
    x = torch.where(batch.mask > 0, batch.logp - batch.ref_logp, 0.0)
    penalty = estimate(x, config)
    return penalty * change.exp() if config.unbiased else penalty


def estimate(x: Tensor, config: KlConfig) -> Tensor:
    """Return the divergence from x = logp - ref per token. Source: Schulman, `Approximating KL`."""
    if config.estimator == "k1":
        return x
    if config.estimator == "k2":
        return x.square() / 2
    k3 = torch.exp(-x) - 1 + x
    if config.estimator == "k3":
        return k3
    k2 = x.square() / 2
    return k2 + (k3 - k2).detach()


def aggregate(
    loss: Tensor,
    mask: Tensor,
    config: LossConfig,
    over: Denominators,
    rollout_tokens: Tensor | None = None,
) -> Tensor:
    """Return the scalar loss; tokens outside the mask count nowhere."""
    loss = torch.where(mask > 0, loss, 0.0)
    if config.aggregation == "token-mean":
        return loss.sum() / (over.tokens or 1.0)
    per_sequence = loss.sum(-1)
    if config.aggregation == "seq-mean-token-mean":
        tokens = mask.sum(-1) if rollout_tokens is None else rollout_tokens.to(loss.dtype)
        per_sequence = per_sequence / tokens.clamp(min=1.0)
    elif config.aggregation == "dr":
        per_sequence = per_sequence / (config.t_max or over.longest)
    return per_sequence.sum() / (over.rollouts or 1.0)
