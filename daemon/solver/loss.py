"""The policy loss: one function, with a switch for each published variant.

    L = aggregate( w * surrogate(r, A) + beta * KL(policy || reference) )

r is the ratio of a token's probabilities after and before the update, both computed by the learner.
A is the advantage. w is the weight of truncated importance sampling: it corrects for the sampler's
arithmetic. Sources: PPO (clip), dual clip (Ye et al. 2020), GSPO (sequence ratios), DAPO
(asymmetric clip, token mean), Dr. GRPO (`dr`), TIS and IcePop (`truncate`, `mask`), Schulman's k1,
k2, k3. Shapes: B sequences of T tokens. Tokens outside the mask never count.
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
    """(B, T) 1 for tokens that the model wrote, else 0."""
    advantage: Tensor
    """(B,) advantage of each sequence."""
    sampler_logp: Tensor | None = None
    """(B, T) log-probabilities as the sampler reported them; needed by TIS."""
    ref_logp: Tensor | None = None
    """(B, T) log-probabilities of the reference; needed by the KL penalty."""
    rollout_tokens: Tensor | None = None
    """(B,) trainable tokens of each sequence's whole rollout; None: each sequence is a rollout."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """Divisors for the sums of a whole step, so that micro-batches and processes add up."""

    tokens: float
    rollouts: float
    longest: float
    """Tokens of the longest sequence, trainable or not."""

    @classmethod
    def of(cls, mask: Tensor, rollout_tokens: Tensor | None = None) -> Self:
        """Return the denominators of a batch, for example of all micro-batches together."""
        own = mask.double().sum(-1)
        total = own if rollout_tokens is None else rollout_tokens.double()
        # A sequence counts as its part of its rollout's tokens; a row without trainable tokens
        # counts as 0.
        share = own / total.clamp(min=1.0)
        return cls(float(own.sum()), float(share.sum()), float(mask.shape[-1]))


def policy_loss(batch: LossInputs, config: LossConfig, over: Denominators | None = None) -> Tensor:
    """Return the scalar loss of a batch; 0 without trainable tokens. `over`: denominators of the
    step (default: of this batch). Raise ValueError if needed log-probabilities are missing."""
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
    # The mask comes before exp: a padded log-probability may be infinite, and 0 * inf is NaN.
    change = torch.where(batch.mask > 0, batch.logp - batch.old_logp, 0.0)
    if config.log_ratio_clamp is None:
        return change
    return change.clamp(-config.log_ratio_clamp, config.log_ratio_clamp)


def log_ratio(logp: Tensor, change: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Return (B, T) log ratios: each token's own, or that of its whole sequence at each token."""
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
    """Return PPO's (B, T) clipped loss with asymmetric bounds; dual clip bounds it where A < 0."""
    clipped = ratio.clamp(1 - config.lo, 1 + config.hi)
    loss = torch.maximum(-advantage * ratio, -advantage * clipped)
    if config.dual is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -advantage * config.dual), loss)


def tis_weight(batch: LossInputs, mask: Tensor, config: TisConfig) -> Tensor:
    """Return the (B, T) detached weight exp(old_logp - sampler_logp), truncated or masked."""
    weight = sampler_ratio(batch, mask, config)
    if config.mode == "truncate":
        return weight.clamp(config.lo, config.hi)
    return torch.where((weight >= config.lo) & (weight <= config.hi), weight, 0.0)


def sampler_ratio(batch: LossInputs, mask: Tensor, config: TisConfig) -> Tensor:
    """Return (B, T) detached exp(old_logp - sampler_logp), per token or per whole sequence."""
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
    """Return the divergence per token from x = logp - ref_logp. Source: Schulman, `Approximating
    KL`."""
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
    """Return the scalar loss from (B, T) `loss`; tokens outside the mask do not count."""
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
