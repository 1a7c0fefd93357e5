"""Siblings: tasks like passed ones, which training on failures damages first.

The siblings of a failed task are tasks like the passed ones nearest to it in words (Jaccard index
of the openings): `NEIGHBOURS` among all of other generators, and as many among those with other
gold writes. They share the failed task's weight. Regressions are the tasks of generators on which
the last candidate passed fewer tasks than the incumbent in its gate. Siblings and regressions each
get half of the weight. Labels of the environment are not read.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from random import Random
from typing import Final, Self

from consumers.diagnosis.kinds import find_kind
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from envs.environment import Environment
from envs.task import TaskDefinition

NEIGHBOURS: Final = 3
"""Number of nearest passed tasks for each failed one, and of those with other gold writes."""
_WORD: Final = re.compile(r"\w+(?:'\w+)*")


@dataclass(frozen=True, slots=True)
class Request:
    """The words of a customer's opening, and the writes that a perfect agent makes."""

    task: str
    generator: str
    """Generator of the task; the task's id if that names no generator."""
    words: frozenset[str]
    writes: tuple[str, ...]
    """Tools of the gold writes, in order."""

    @classmethod
    def of(cls, task: TaskDefinition, writes: Collection[str]) -> Self:
        """Build the customer's request in a task. `writes` are the environment's writing tools."""
        opening = task.script.opening if task.script else task.scenario.reason_for_call
        gold = task.criteria.gold_actions or ()
        return cls(
            task=task.id,
            generator=find_kind(task.id) or task.id,
            words=frozenset(word for word in _WORD.findall(opening.lower()) if word.isalpha()),
            writes=tuple(action.name for action in gold if action.name in writes),
        )

    def compute_likeness(self, other: "Request") -> float:
        """Return the Jaccard index of the two requests' words."""
        return len(self.words & other.words) / max(1, len(self.words | other.words))


def find_siblings(failed: Mapping[Request, float], passed: Sequence[Request]) -> dict[str, float]:
    """Return passed task -> its weight: the sum of its parts of the failed tasks' weights."""
    weights: dict[str, float] = {}
    for request, weight in failed.items():
        others = [other for other in passed if other.generator != request.generator]
        opposite = [other for other in others if other.writes != request.writes]
        near = [*_select_nearest(request, others), *_select_nearest(request, opposite)]
        for other in near:
            weights[other.task] = weights.get(other.task, 0.0) + weight / len(near)
    return weights


def find_regressions(differences: Mapping[str, float]) -> dict[str, float]:
    """Return task -> weight, from each task's gain (negative: a loss). A generator's lost tasks
    share its total loss. Generators without a total loss are left out: chance also loses tasks."""
    by_generator: dict[str, dict[str, float]] = {}
    for task, gain in differences.items():
        by_generator.setdefault(find_kind(task) or task, {})[task] = gain
    weights: dict[str, float] = {}
    for own in by_generator.values():
        loss = -sum(own.values())
        lost = [task for task, gain in own.items() if gain < 0]
        if loss > 0:
            weights |= dict.fromkeys(lost, loss / len(lost))
    return weights


def draw_siblings(
    environment: Environment, groups: Iterable[Mapping[str, float]], count: int, seed: str
) -> tuple[str, ...]:
    """Return at most `count` tasks like those in `groups` (each: task -> weight), all groups
    equally often. A task that the environment cannot vary stands for itself. Raise UnknownTask."""
    near: dict[str, float] = {}
    for weights in groups:
        whole = sum(weights.values())
        for task, weight in weights.items():
            near[task] = near.get(task, 0.0) + weight / whole
    if not near:
        return ()
    chance, tasks = Random(f"siblings {seed}"), sorted(near)
    drawn = chance.choices(tasks, [near[task] for task in tasks], k=count)
    siblings: dict[str, None] = {}
    for task in drawn:
        fresh = environment.like(environment.task(task), chance.randint(FIRST_SEED, LAST_SEED))
        siblings[task if fresh is None else fresh.id] = None
    return tuple(siblings)


def _select_nearest(request: Request, others: Sequence[Request]) -> list[Request]:
    """Return the `NEIGHBOURS` requests nearest in words; ties are broken by task id."""
    return nsmallest(
        NEIGHBOURS, others, key=lambda other: (-request.compute_likeness(other), other.task)
    )
