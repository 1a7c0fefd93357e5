"""Simulated evaluations, with the spread that ALGORITHMS 6.3 gives tasks and trials."""

from collections.abc import Iterator
from random import Random

from daemon.evaluation.gate.pairs import Pair

MEAN, CONCENTRATION = 0.45, 1.2
"""Mean and concentration of the incumbent's chance to pass a task: a Beta distribution with most
tasks hard or easy."""
SPREAD = 0.1
"""Standard deviation of a candidate's true effect between tasks."""


def pairs(chance: Random, tasks: int, trials: int, gain: float) -> list[Pair]:
    """Verdicts of tasks whose true gains have this mean."""
    return [_pair(chance, f"t{n}", trials, *chances(chance, gain)) for n in range(tasks)]


def chances(chance: Random, gain: float) -> tuple[float, float]:
    """Draw a task's chances to be passed by the incumbent and by the candidate. A task gains in
    proportion to what it has to gain, and strays to both sides alike, so that no clipping pulls the
    mean away from `gain`."""
    before = chance.betavariate(MEAN * CONCENTRATION, (1 - MEAN) * CONCENTRATION)
    after = before + gain * (1 - before) / (1 - MEAN)
    return before, after + chance.choice((-1, 1)) * min(SPREAD, after, 1 - after)


def _pair(chance: Random, task: str, trials: int, before: float, after: float) -> Pair:
    return Pair(
        task,
        "target",
        tuple(chance.random() < before for _ in range(trials)),
        tuple(chance.random() < after for _ in range(trials)),
    )


def many(seed: int, count: int, tasks: int, trials: int, gain: float) -> Iterator[list[float]]:
    """The differences of `count` evaluations."""
    chance = Random(seed)
    for _ in range(count):
        yield [pair.difference for pair in pairs(chance, tasks, trials, gain)]
