"""Compute advantages from a batch's rewards, and select the groups that can change the policy.

A group is the rollouts of one task. Groups are selected by unshaped verdicts, or by the spread of
their rewards (DAPO's filter as in Structured Reflection, arXiv 2509.18847). Advantages come from
shaped rewards. An unjudged rollout is left out of both. Sources: GRPO, RLOO (leave one out), Dr.
GRPO (no scale), AReaL (batch). Plain floats, no torch: the sums are exact in any order.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from events.algorithm import AdvantageConfig, FilterConfig


def advantages(
    rewards: Sequence[float],
    groups: Sequence[str],
    config: AdvantageConfig,
    tokens: Sequence[int] | None = None,
) -> list[float]:
    """Return one advantage per rollout. `groups` names each rollout's group; `tokens` counts the
    tokens that each rollout wrote. Advantages are exactly 0 in a group of one rollout or of equal
    rewards, if the group's mean is the baseline. Raise ValueError for unequal lengths, rewards that
    are not finite, or a weight by tokens without `tokens`."""
    _check(rewards, groups, config, tokens)
    scaled = [(reward - config.reward.offset) * config.reward.factor for reward in rewards]
    weights = [float(count) for count in tokens or ()] if config.weight == "token" else None
    weights = weights or [1.0] * len(scaled)
    members = by_group(groups)
    centred = _center(scaled, members, weights, config)
    if config.scale == "none":
        return centred
    if config.scale == "batch":
        return _scale(centred, deviation(centred, weights, config.ddof), config.eps)
    values = centred.copy()
    for places in members.values():
        spread = deviation([scaled[place] for place in places], [1.0] * len(places), config.ddof)
        for place in places:
            values[place] = _scale([centred[place]], spread, config.eps)[0]
    return values


def by_group(groups: Sequence[str]) -> dict[str, list[int]]:
    """Return group -> indices of its members; groups are ordered by their first member."""
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    return members


def mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean; 0 if all weights are 0."""
    total = math.fsum(weights)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


def deviation(values: Sequence[float], weights: Sequence[float], ddof: int) -> float:
    """Return the weighted standard deviation; 0 for `ddof` values or fewer, or for equal values."""
    total = math.fsum(weights)
    if total <= ddof or min(values) == max(values):
        return 0.0
    centre = mean(values, weights)
    squares = math.fsum(w * (v - centre) ** 2 for v, w in zip(values, weights, strict=True))
    return math.sqrt(squares / (total - ddof))


def _center(
    rewards: list[float],
    members: dict[str, list[int]],
    weights: list[float],
    config: AdvantageConfig,
) -> list[float]:
    if config.center == "none":
        return rewards
    if config.center == "batch":
        centre = mean(rewards, weights)
        return [_difference(reward, centre, rewards) for reward in rewards]
    values = [0.0] * len(rewards)
    for places in members.values():
        own = [rewards[place] for place in places]
        centre, count = mean(own, [1.0] * len(own)), len(own)
        factor = count / (count - 1) if config.center == "loo" and count > 1 else 1.0
        for place in places:
            values[place] = factor * _difference(rewards[place], centre, own)
    return values


def _difference(value: float, centre: float, among: Sequence[float]) -> float:
    # The mean of equal numbers may differ from the number in floating point: 0.1 three times.
    return 0.0 if min(among) == max(among) else value - centre


def _scale(values: list[float], spread: float, eps: float) -> list[float]:
    # Equal values have deviation 0; dividing by eps alone would make advantages of a million.
    if spread == 0.0:
        return values
    return [value / (spread + eps) for value in values]


def _check(
    rewards: Sequence[float],
    groups: Sequence[str],
    config: AdvantageConfig,
    tokens: Sequence[int] | None,
) -> None:
    if len(rewards) != len(groups) or (tokens is not None and len(tokens) != len(rewards)):
        raise ValueError(
            f"{len(rewards)} rewards, {len(groups)} groups and "
            f"{'no' if tokens is None else len(tokens)} token counts do not belong together"
        )
    for reward, group in zip(rewards, groups, strict=True):
        if not math.isfinite(reward):
            raise ValueError(f"a reward of group {group} is {reward}; rewards are finite numbers")
    if config.weight == "token" and tokens is None:
        raise ValueError("advantages weighted by tokens need the number of each rollout's tokens")


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Groups of a batch that the filter kept, with figures about all groups."""

    groups: tuple[str, ...]
    mixed: frozenset[str]
    """Groups with both passed and failed rollouts."""
    informative: float
    """Share of groups with both passed and failed rollouts; 0 for an empty batch."""
    passed: float
    """Mean of the groups' pass rates; 0 for an empty batch."""


def keep(
    successes: Mapping[str, Sequence[bool]],
    config: FilterConfig,
    rewards: Mapping[str, Sequence[float]] | None = None,
) -> FilterResult:
    """Return the groups to train on, from group -> verdicts. Raise ValueError if the filter is on
    rewards and a group has none."""
    rates = {group: sum(own) / len(own) for group, own in successes.items() if own}
    informative = {group for group, rate in rates.items() if 0 < rate < 1}
    teaching = informative
    if config.on == "reward":
        teaching = _find_dispersed(rates, rewards or {}, config.min_dispersion)
    kept = tuple(
        group
        for group, rate in rates.items()
        if rate <= config.most and (group in teaching or not config.informative)
    )
    count = max(len(successes), 1)
    return FilterResult(
        groups=kept,
        mixed=frozenset(informative),
        informative=len(informative) / count,
        passed=math.fsum(rates.values()) / max(len(rates), 1),
    )


def _find_dispersed(
    groups: Iterable[str], rewards: Mapping[str, Sequence[float]], least: float
) -> set[str]:
    missing = [group for group in groups if not rewards.get(group)]
    if missing:
        raise ValueError(f"a filter on rewards needs those of group {missing[0]}; it has none")
    return {group for group in groups if max(rewards[group]) - min(rewards[group]) > least}
