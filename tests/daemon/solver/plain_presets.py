"""What the algorithms of Structured Reflection, the two that it combines, and TRACE make of a
batch: NumPy, straight from their formulas, without our configuration.

Each takes rollouts and returns the loss. Written from arXiv 2509.18847 (equations 26 to 29), its
released program, DAPO (arXiv 2503.14476), GSPO (arXiv 2507.18071) and TRACE (arXiv 2604.05336).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rollout:
    """A rollout, its written tokens only."""

    group: str
    reward: float
    success: bool
    cut_off: bool
    logp: Array
    old: Array
    ref: Array


def sr_paper(rollouts: Sequence[Rollout]) -> float:
    """Mean over A of min(s A, clip(s) A): groups with dispersion, rollouts with |A| > 0."""
    terms = []
    for group in _by_group(rollouts):
        rewards = _rewards(group)
        if rewards.max() - rewards.min() <= 1e-6:
            continue
        for rollout, advantage in zip(group, _standardize(rewards, 1e-6), strict=True):
            if abs(advantage) > 1e-6 and not rollout.cut_off:
                terms.append(_clipped(_sequence_ratio(rollout), advantage, 0.2, 0.28))
    return float(-np.mean(terms))


def sr_code(rollouts: Sequence[Rollout]) -> float:
    """Token mean of the sequence's term and .05 k3; groups whose rewards differ."""
    total = tokens = 0.0
    for group in _by_group(rollouts):
        rewards = _rewards(group)
        if rewards.std() == 0:
            continue
        for rollout, advantage in zip(group, _standardize(rewards, 1e-4), strict=True):
            term = _clipped(_sequence_ratio(rollout), advantage, 0.2, 0.28)
            gap = rollout.ref - rollout.logp
            total += -len(gap) * term + 0.05 * float(np.sum(np.exp(gap) - gap - 1))
            tokens += len(gap)
    return total / tokens


def dapo(rollouts: Sequence[Rollout]) -> float:
    """Token mean of min(r A, clip(r) A); groups of both verdicts, nothing that was cut off."""
    total = tokens = 0.0
    for group in _by_group(rollouts):
        if not 0 < sum(rollout.success for rollout in group) < len(group):
            continue
        for rollout, advantage in zip(group, _standardize(_rewards(group), 1e-6), strict=True):
            if not rollout.cut_off:
                ratios = np.exp(rollout.logp - rollout.old)
                total += sum(_clipped(ratio, advantage, 0.2, 0.28) for ratio in ratios)
                tokens += len(ratios)
    return -total / tokens


def gspo(rollouts: Sequence[Rollout]) -> float:
    """Mean over all rollouts of min(s A, clip(s) A), with GSPO's narrow clip."""
    terms = []
    for group in _by_group(rollouts):
        for rollout, advantage in zip(group, _standardize(_rewards(group), 1e-6), strict=True):
            terms.append(_clipped(_sequence_ratio(rollout), advantage, 3e-4, 4e-4))
    return float(-np.mean(terms))


def trace_paper(rollouts: Sequence[Rollout]) -> float:
    """Mean over rollouts of the mean over tokens of min(r A, clip(r) A); A by the population's
    deviation; groups of both verdicts."""
    terms = []
    for group in _by_group(rollouts):
        if not 0 < sum(rollout.success for rollout in group) < len(group):
            continue
        rewards = _rewards(group)
        for rollout, advantage in zip(group, _standardize(rewards, 1e-8, ddof=0), strict=True):
            if not rollout.cut_off:
                ratios = np.exp(rollout.logp - rollout.old)
                terms.append(np.mean([_clipped(ratio, advantage, 0.2, 0.2) for ratio in ratios]))
    return float(-np.mean(terms))


FORMULAS: dict[str, Callable[[Sequence[Rollout]], float]] = {
    "sr_paper": sr_paper,
    "sr_code": sr_code,
    "dapo": dapo,
    "gspo": gspo,
    "trace_paper": trace_paper,
}


def _by_group(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    names = dict.fromkeys(rollout.group for rollout in rollouts)
    return [[rollout for rollout in rollouts if rollout.group == name] for name in names]


def _rewards(group: Sequence[Rollout]) -> Array:
    return np.array([rollout.reward for rollout in group])


def _standardize(rewards: Array, epsilon: float, ddof: int = 1) -> Array:
    if rewards.max() == rewards.min():
        return np.zeros_like(rewards)
    return np.asarray((rewards - rewards.mean()) / (rewards.std(ddof=ddof) + epsilon))


def _sequence_ratio(rollout: Rollout) -> float:
    return float(np.exp(np.mean(rollout.logp - rollout.old)))


def _clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return float(min(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage))
