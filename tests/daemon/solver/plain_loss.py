"""The loss and its gradient once more: NumPy, token by token, derivatives by hand.

Written from the formulas, not from daemon/solver/loss.py, so that a mistake would have to be made
twice to go unseen.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from events.algorithm import KlConfig, LossConfig, TisConfig

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Arrays:
    """A batch: B x T arrays, advantage and rollout_tokens of length B."""

    logp: Array
    old: Array
    roll: Array
    ref: Array
    mask: Array
    advantage: Array
    rollout_tokens: Array | None = None


def plain_loss(batch: Arrays, config: LossConfig) -> tuple[float, Array]:
    """The loss of a batch and its gradient with respect to logp."""
    rows, width = batch.logp.shape
    tokens = batch.mask.sum(axis=1)
    of_rollout = tokens if batch.rollout_tokens is None else batch.rollout_tokens
    rollouts = sum(tokens[i] / of_rollout[i] for i in range(rows) if tokens[i])
    loss, gradient = 0.0, np.zeros((rows, width))
    for i in range(rows):
        at = np.flatnonzero(batch.mask[i])
        if not len(at):
            continue
        share = {
            "token-mean": 1 / tokens.sum(),
            "seq-mean-token-mean": 1 / (of_rollout[i] * rollouts),
            "seq-mean-token-sum": 1 / rollouts,
            "dr": 1 / ((config.t_max or width) * rollouts),
        }[config.aggregation]
        values, slopes = _sequence(batch, i, at, config)
        loss += share * values.sum()
        gradient[i, at] = share * slopes
    return float(loss), gradient


def _sequence(batch: Arrays, i: int, at: Any, config: LossConfig) -> tuple[Array, Array]:
    """The loss of each trainable token, and the derivative of their sum by each one's logp."""
    logp, old, roll, ref = (a[i, at] for a in (batch.logp, batch.old, batch.roll, batch.ref))
    count, advantage = len(at), float(batch.advantage[i])
    bound = config.log_ratio_clamp or np.inf
    change = np.clip(logp - old, -bound, bound)
    moves = (np.abs(logp - old) <= bound).astype(float)
    ratio, jacobian = _ratio(change, moves, config.level)
    weight = _weights(old - roll, config.tis)
    values, slopes = np.zeros(count), np.zeros(count)
    for t in range(count):
        value, by_ratio = _surrogate(float(ratio[t]), advantage, config)
        values[t] += weight[t] * value
        slopes += weight[t] * by_ratio * ratio[t] * jacobian[t]
    penalty, by_logp = _penalty(logp - ref, change, moves, config.kl)
    return values + config.kl.beta * penalty, slopes + config.kl.beta * by_logp


def _ratio(change: Array, moves: Array, level: str) -> tuple[Array, Array]:
    """The ratio of each token, and d log ratio[t] / d logp[s]."""
    count = len(change)
    if level == "token":
        return np.exp(change), np.diag(moves)
    if level == "sequence_sum":
        return np.full(count, np.exp(change.sum())), np.tile(moves, (count, 1))
    mean = np.full(count, np.exp(change.sum() / count))
    if level == "sequence":
        return mean, np.tile(moves / count, (count, 1))
    return mean, np.eye(count)


def _surrogate(ratio: float, advantage: float, config: LossConfig) -> tuple[float, float]:
    clipped = min(max(ratio, 1 - config.lo), 1 + config.hi)
    if -advantage * ratio >= -advantage * clipped:
        value, slope = -advantage * ratio, -advantage
    else:
        value, slope = -advantage * clipped, 0.0
    if config.dual is not None and advantage < 0 and value > -advantage * config.dual:
        return -advantage * config.dual, 0.0
    return value, slope


def _weights(gap: Array, config: TisConfig) -> Array:
    if config.mode == "none":
        return np.ones_like(gap)
    if config.level == "sequence":
        gap = np.full_like(gap, gap.sum())
    elif config.level == "geometric":
        gap = np.full_like(gap, gap.mean())
    weight = np.exp(gap)
    if config.mode == "truncate":
        return np.clip(weight, config.lo, config.hi)
    return np.where((weight < config.lo) | (weight > config.hi), 0.0, weight)


def _penalty(x: Array, change: Array, moves: Array, config: KlConfig) -> tuple[Array, Array]:
    """The divergence of each token and its derivative by that token's logp."""
    values = {"k1": x, "k2": x**2 / 2}.get(config.estimator, np.expm1(-x) + x)
    slopes = {"k1": np.ones_like(x), "k3": 1 - np.exp(-x)}.get(config.estimator, x)
    if not config.unbiased:
        return values, slopes
    return values * np.exp(change), (slopes + values * moves) * np.exp(change)
