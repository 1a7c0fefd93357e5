"""Turn trajectories into the tensors of an update: filter, weigh, cut into micro-batches, pad.

Padding is on the right, so positions are those of the sampler. Column t of a (B, T - 1) tensor of
log-probabilities is about the token at t + 1.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from daemon.solver.advantage import FilterResult, advantages, keep
from daemon.solver.loss import Denominators
from daemon.solver.trajectory import Refusal, TokenSequence, Trajectory, sequences, trainable
from events.algorithm import Algorithm


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of an update."""

    sequence: TokenSequence
    advantage: float
    rollout_tokens: int
    """Trainable tokens of the whole rollout; of the row alone if each turn is a rollout."""

    @property
    def length(self) -> int:
        """Number of tokens that the model read and wrote."""
        return len(self.sequence.ids)


@dataclass(frozen=True, slots=True)
class BatchSelection:
    """The rollouts of a batch that an update may use."""

    judged: tuple[Trajectory, ...]
    """All trainable rollouts, also those of groups that were not selected."""
    kept: FilterResult
    refused: tuple[Refusal, ...]


def choose(
    trajectories: Sequence[Trajectory],
    algorithm: Algorithm,
    ends: frozenset[int],
    temperature: float = 1.0,
) -> BatchSelection:
    """Return the trainable rollouts, the groups to train on, and refusals with reasons. An
    untrainable rollout does not count as a failure."""
    judged, refused = trainable(trajectories, ends, temperature)
    verdicts: dict[str, list[bool]] = {}
    rewards: dict[str, list[float]] = {}
    for trajectory in judged:
        verdicts.setdefault(trajectory.group, []).append(bool(trajectory.success))
        assert trajectory.reward is not None, "a trainable trajectory has a reward"
        rewards.setdefault(trajectory.group, []).append(trajectory.reward)
    kept = keep(verdicts, algorithm.filter, rewards)
    return BatchSelection(tuple(judged), kept, tuple(refused))


def rows(chosen: BatchSelection, algorithm: Algorithm, groups: Sequence[str]) -> list[list[Row]]:
    """Return the rollouts of `groups` as rows, one list per rollout, in the batch's order.
    Advantages come from all rollouts of a group, also from those that `overlong` = `mask` leaves
    out. With `filter.uniform` = `zero`, they are 0 in a group whose verdicts are all equal. A
    rollout is left out if its advantage is at most `filter.min_advantage` from 0."""
    wanted = frozenset(groups)
    used = [trajectory for trajectory in chosen.judged if trajectory.group in wanted]
    values = advantages(
        [float(trajectory.reward or 0.0) for trajectory in used],
        [trajectory.group for trajectory in used],
        algorithm.advantage,
        [trajectory.tokens for trajectory in used],
    )
    if algorithm.filter.uniform == "zero":
        mixed = chosen.kept.mixed
        values = [
            value if trajectory.group in mixed else 0.0
            for trajectory, value in zip(used, values, strict=True)
        ]
    least = -1.0 if algorithm.filter.min_advantage is None else algorithm.filter.min_advantage
    return [
        _rows_of(trajectory, advantage, algorithm)
        for trajectory, advantage in zip(used, values, strict=True)
        if not (trajectory.is_incomplete and algorithm.overlong == "mask")
        and abs(advantage) > least
    ]


def _rows_of(trajectory: Trajectory, advantage: float, algorithm: Algorithm) -> list[Row]:
    parts = sequences(trajectory, algorithm.unit)
    by_turn = algorithm.unit == "turn"
    return [Row(part, advantage, part.tokens if by_turn else trajectory.tokens) for part in parts]


def mini_batches(rollouts: Sequence[list[Row]], count: int) -> Iterator[list[Row]]:
    """Yield `count` parts with nearly equal numbers of rollouts, or fewer parts: none is empty."""
    count = min(count, len(rollouts))
    for number in range(count):
        part = rollouts[number * len(rollouts) // count : (number + 1) * len(rollouts) // count]
        yield [row for rows_of_rollout in part for row in rows_of_rollout]


def micro_batches(batch: Sequence[Row], budget: int) -> list[list[Row]]:
    """Group rows of similar length into batches of `budget` padded tokens; a longer row is
    alone."""
    batches: list[list[Row]] = []
    for row in sorted(batch, key=lambda row: -row.length):
        longest = batches[-1][0].length if batches else 0
        if batches and longest * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def denominators(batch: Sequence[Row]) -> Denominators:
    """Return the divisors of the loss's sums over these rows, however they are cut."""
    return Denominators(
        tokens=float(sum(row.sequence.tokens for row in batch)),
        rollouts=math.fsum(row.sequence.tokens / row.rollout_tokens for row in batch),
        longest=float(max(row.length for row in batch) - 1),
    )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of B rows, the longest of T tokens."""

    ids: Tensor
    """(B, T) int64 token ids; 0 for padding."""
    attention: Tensor
    """(B, T) int64, 1 for tokens, 0 for padding."""
    mask: Tensor
    """(B, T - 1) float32, 1 where the predicted token was written by the model."""
    sampler_logp: Tensor
    """(B, T - 1) float32, the sampler's log-probabilities; 0 outside the mask."""
    advantage: Tensor
    """(B,) float32 advantage of each row."""
    rollout_tokens: Tensor
    """(B,) float32 trainable tokens of each row's whole rollout."""


def pad(batch: Sequence[Row], device: torch.device | str = "cpu") -> MicroBatch:
    """Return rows as padded tensors. Raise ValueError for no rows."""
    if not batch:
        raise ValueError("an update needs at least one sequence")
    width = max(row.length for row in batch)

    def tensor(values: list[Sequence[float]], dtype: torch.dtype) -> Tensor:
        filled = [[*row, *[0] * (width - len(row))] for row in values]
        return torch.tensor(filled, dtype=dtype, device=device)

    return MicroBatch(
        ids=tensor([row.sequence.ids for row in batch], torch.int64),
        attention=tensor([[1] * row.length for row in batch], torch.int64),
        mask=tensor([row.sequence.written for row in batch], torch.float32)[:, 1:],
        sampler_logp=tensor([row.sequence.logprobs for row in batch], torch.float32)[:, 1:],
        advantage=torch.tensor([row.advantage for row in batch], device=device),
        rollout_tokens=torch.tensor([float(row.rollout_tokens) for row in batch], device=device),
    )
