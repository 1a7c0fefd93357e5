"""Intervals over seeds and tasks, for figures that are weighted means over capabilities.

The hierarchical bootstrap: seeds are drawn with replacement, then, within each drawn seed and
capability, tasks. A run's tasks are its own, so a seed stands for its training and its tasks both.
Two arms are compared by their difference on each task of each seed, drawn together.

Percentiles of few seeds come out too narrow: with 5 the spread between seeds is understated by a
tenth ((n - 1) / n of the variance). The report therefore lists every seed's own figure too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envs.statistics import LEVEL, Interval
from ops.learning.evaluation import Outcomes

RESAMPLES: Final = 4_000

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TaskRates:
    """What an arm earned on each task: capability -> (seeds, tasks), all seeds with one count."""

    values: Mapping[str, Values]

    def __sub__(self, other: "TaskRates") -> "TaskRates":
        """Task by task; both arms met the same tasks."""
        return TaskRates({name: own - other.values[name] for name, own in self.values.items()})

    def by_seed(self, weights: Mapping[str, float]) -> list[float]:
        """The figure of each seed."""
        parts = [share * self.values[name].mean(axis=1) for name, share in _scale(weights)]
        return [float(value) for value in np.sum(parts, axis=0)]


def compute_task_rates(seeds: Sequence[Outcomes], k: int) -> TaskRates:
    """pass^k of every task, from each seed's outcomes.

    Raises ValueError where seeds differ in their capabilities or numbers of tasks.
    """
    shapes = [{name: len(tasks) for name, tasks in outcomes.items()} for outcomes in seeds]
    if not shapes or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"seeds must have the same capabilities and task counts, not {shapes}")
    return TaskRates(
        {
            name: np.array([[_all_of(t, k) for t in outcomes[name].values()] for outcomes in seeds])
            for name in shapes[0]
        }
    )


def average(arms: Sequence[TaskRates]) -> TaskRates:
    """Return the mean of some arms, task by task; all met the same tasks."""
    return TaskRates(
        {name: np.mean([arm.values[name] for arm in arms], axis=0) for name in arms[0].values}
    )


def _all_of(trials: Sequence[bool], k: int) -> float:
    """The chance that k of the trials, drawn without replacement, all passed."""
    return comb(sum(trials), k) / comb(len(trials), k)


def interval(rates: TaskRates, weights: Mapping[str, float], seed: int = 0) -> Interval:
    """The weighted mean with its 95 % percentile interval; `weights` are scaled to sum to 1."""
    drawn = np.sort(replicates(rates, weights, seed))
    tail = int(len(drawn) * (1 - LEVEL) / 2)
    value = float(np.mean(rates.by_seed(weights)))
    return Interval(value, float(drawn[tail]), float(drawn[-1 - tail]))


def replicates(rates: TaskRates, weights: Mapping[str, float], seed: int = 0) -> Values:
    """(RESAMPLES,): the figure in each imagined repetition. One seed draws alike for all arms."""
    chance = np.random.default_rng(seed)
    seeds = len(next(iter(rates.values.values())))
    drawn = chance.integers(seeds, size=(RESAMPLES, seeds))
    total = np.zeros(RESAMPLES)
    for name, share in _scale(weights):
        total += share * _resample(rates.values[name], drawn, chance)
    return total


def _resample(values: Values, drawn: NDArray[np.int64], chance: np.random.Generator) -> Values:
    """The mean over the drawn seeds of the mean over tasks drawn within each."""
    tasks = values.shape[1]
    counts = chance.multinomial(tasks, np.full(tasks, 1 / tasks), size=drawn.shape)
    means: Values = np.einsum("rst,rst->r", counts, values[drawn]) / (tasks * drawn.shape[1])
    return means


def _scale(weights: Mapping[str, float]) -> list[tuple[str, float]]:
    whole = sum(weights.values())
    return [(name, weight / whole) for name, weight in sorted(weights.items())]
