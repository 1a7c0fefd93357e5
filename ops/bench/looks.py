"""Simulated slices at all the looks that the gate may take at them.

    simulate_looks(most, trials, change, count, seed)    chances to pass, of one slice
    simulate_violations(expected, count, seed)           chances to fail by violations, of equals

A slice is played as daemon/evaluation/candidate_evaluation.py has it: the incumbent's pilot says
how many tasks the first look has, and each further look has twice as many, up to `most`. The bound
is that of envs/statistics.py, drawn by numpy and with fewer draws (`bound`), for it is drawn a
hundred thousand times here. `each=True` gives every look the level of a single one, which is how
the gate was before ADR 0044; so does `poisson=True` take the incumbent's violations for its rate.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import exp
from typing import Final

import numpy as np

from daemon.config.settings import Trial
from daemon.evaluation.binomial import conditional_binomial
from daemon.evaluation.gate.levels import LEVEL, level_of
from daemon.evaluation.gate.measurements import Looks
from daemon.evaluation.sample_size import looks_of, sizes_of
from daemon.evaluation.targets import Target
from events.gate import GateSettings
from ops.bench.pieces import Json
from ops.bench.simulation import SPREAD

DRAWS: Final = 4_000
PILOT: Final = 24
_TARGET: Final = "target"
_SLICE: Final = "slice"
_ROLLOUTS: Final = 200
"""How many rollouts each side has where violations are counted."""


def simulate_looks(
    most: int, trials: int, change: float, rate: float, count: int, seed: int, *, each: bool = False
) -> Json:
    """How many of `count` slices passed at any look, and at how many tasks: the incumbent passes
    `rate` of the trials, and the candidate `change` more on average."""
    chance = np.random.default_rng([most, trials, round(-1000 * change), round(1000 * rate), seed])
    settings = GateSettings()
    passed, tasks = 0, 0
    for _ in range(count):
        values, sizes = _draw_slice(chance, most, trials, change, rate)
        looks = Looks() if each else sizes
        level = LEVEL if each else level_of(looks.of(_SLICE))
        for size in _sizes(sizes.of_slice[_SLICE], values, most, each):
            if bound(tuple(values[:size]), level) > -settings.slice_margin:
                passed += 1
                break
        tasks += size
    return {"count": count, "passed": passed, "tasks": tasks}


def _sizes(looks: int, values: "_Slice", most: int, each: bool) -> Iterator[int]:
    size = values.first_each if each else values.first
    while size < most:
        yield size
        size *= 2
    yield most


class _Slice(list[float]):
    """The differences of all tasks, and how many of them are looked at first."""

    first: int
    first_each: int


def _draw_slice(
    chance: np.random.Generator, most: int, trials: int, change: float, rate: float
) -> tuple[_Slice, Looks]:
    before, after = _chances(chance, most, change, rate)
    values = _Slice((chance.binomial(trials, after) - chance.binomial(trials, before)) / trials)
    often = max(2, trials)
    rates, _ = _chances(chance, PILOT, change, rate)
    pilot = (chance.random((PILOT, often)) < rates[:, None]).tolist()
    trial, gate = Trial(trials=trials, pilot_tasks=PILOT, most_tasks=most), GateSettings()
    targets = (Target.of_kind(_TARGET),)
    sizes = sizes_of({_TARGET: pilot, _SLICE: pilot}, targets, trial, gate)
    values.first = sizes.tasks[_SLICE]
    # Before the levels were spent a slice began with what its margin needs, or `least_tasks`.
    plain = trial.model_copy(update={"gain": gate.slice_margin})
    alone = (Target.of_kind(_SLICE),)
    values.first_each = sizes_of({_SLICE: pilot}, alone, plain, gate).tasks[_SLICE]
    return values, looks_of(sizes, trial)


def _chances(
    chance: np.random.Generator, tasks: int, change: float, rate: float
) -> "tuple[np.ndarray, np.ndarray]":
    """Draw for each task the probabilities that incumbent and candidate pass it; 1 for a kind that
    is always passed."""
    sure = rate == 1
    before = np.ones(tasks) if sure else chance.beta(rate * 1.2, (1 - rate) * 1.2, tasks)
    after = before * (1 + change / rate)
    stray = np.minimum(SPREAD, np.minimum(after, 1 - after))
    return before, np.clip(after + chance.choice((-1, 1), tasks) * stray, 0.0, 1.0)


def bound(values: tuple[float, ...], level: float) -> float:
    """The bound of `gate.bound`, from the same draws for equal values whatever their order."""
    distinct, counts = np.unique(np.asarray(values), return_counts=True)
    lows = _lows(tuple(distinct.tolist()), tuple(counts.tolist()))
    return float(lows[int(DRAWS * level)])


@lru_cache(maxsize=50_000)
def _lows(values: tuple[float, ...], counts: tuple[int, ...]) -> "np.ndarray":
    chance = np.random.default_rng(len(values))
    weights = chance.gamma(np.asarray(counts)[:, None], 1.0, (len(counts), DRAWS))
    worth = ((np.asarray(values) + 1) / 2) @ weights
    low = worth / (weights.sum(axis=0) + chance.exponential(1.0, DRAWS))
    return np.sort(2 * low - 1)


def simulate_violations(expected: float, count: int, seed: int, *, poisson: bool = False) -> Json:
    """How many of `count` candidates fail by their violations, who violate as often as the
    incumbent: each `expected` times on average."""
    chance = np.random.default_rng([round(1000 * expected), seed])
    pairs = chance.binomial(_ROLLOUTS, expected / _ROLLOUTS, (count, 2)).tolist()
    failed = sum(
        after > _poisson_95(before)
        if poisson
        else conditional_binomial(after, before, 0.5) <= LEVEL
        for before, after in pairs
    )
    return {"count": count, "passed": failed}


def _poisson_95(expected: float) -> int:
    """The least count that a Poisson variable exceeds with a chance of at most 5 %."""
    term = total = exp(-expected)
    count = 0
    while total < 1 - LEVEL:
        count += 1
        term *= expected / count
        total += term
    return count
