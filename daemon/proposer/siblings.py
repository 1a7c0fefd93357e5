"""Replay of siblings: tasks like the passed ones that training on failures damages first.

    find_siblings(failed, passed)               passed task -> its weight
    find_regressions(differences)               task -> its weight
    draw_siblings(environment, near, 96, seed)  ids of fresh tasks like them

What is damaged is seen in the gate, and before it is known it is guessed from the words:

- A sibling of a failed task is one of another generator with nearly the same request, and often
  with another answer. For each failed task these are the `NEIGHBOURS` passed ones with the most
  common words, among all of them and among those with other gold writes. Likeness is the share of
  the words of both openings that both have (Jaccard). A failed task's weight is divided by its
  siblings.
- Regressions are the tasks on whose generators the last candidate passed less than the incumbent,
  on the whole of the tasks that both played for its gate.

Each of the two has half of the weight where there are both. Labels of the environment are not read.
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
"""Passed tasks that are taken for each failed one, and as many that have other gold writes."""
_WORD: Final = re.compile(r"\w+(?:'\w+)*")


@dataclass(frozen=True, slots=True)
class Request:
    """What a customer says first, and what a perfect agent writes for it."""

    task: str
    generator: str
    """What drew the task; the task itself where its id names none."""
    words: frozenset[str]
    writes: tuple[str, ...]
    """Tools of the gold writes, in their order."""

    @classmethod
    def of(cls, task: TaskDefinition, writes: Collection[str]) -> Self:
        """The request of a task; `writes` are the environment's tools that change the state."""
        opening = task.script.opening if task.script else task.scenario.reason_for_call
        gold = task.criteria.gold_actions or ()
        return cls(
            task=task.id,
            generator=find_kind(task.id) or task.id,
            words=frozenset(word for word in _WORD.findall(opening.lower()) if word.isalpha()),
            writes=tuple(action.name for action in gold if action.name in writes),
        )

    def compute_likeness(self, other: "Request") -> float:
        """Return the share of the words of both that both have, from 0 to 1."""
        return len(self.words & other.words) / max(1, len(self.words | other.words))


def find_siblings(failed: Mapping[Request, float], passed: Sequence[Request]) -> dict[str, float]:
    """Return passed task -> its weight, the sum of what failed ones (task -> weight) give it."""
    weights: dict[str, float] = {}
    for request, weight in failed.items():
        others = [other for other in passed if other.generator != request.generator]
        opposite = [other for other in others if other.writes != request.writes]
        near = [*_select_nearest(request, others), *_select_nearest(request, opposite)]
        for other in near:
            weights[other.task] = weights.get(other.task, 0.0) + weight / len(near)
    return weights


def find_regressions(differences: Mapping[str, float]) -> dict[str, float]:
    """Return task -> its weight, given the gain on each task (negative: a loss). The weights of a
    generator are its loss on all its tasks, shared by those on which it lost; those of generators
    that gained on the whole are left out, for a kind that is passed now and then is lost now and
    then."""
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
    """Return the ids of at most `count` tasks like those of the groups, each group equally often
    and its tasks in proportion to their weights; what has nothing like it is there itself. Raises
    UnknownTask."""
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
    """Of equally near ones the first by id."""
    return nsmallest(
        NEIGHBOURS, others, key=lambda other: (-request.compute_likeness(other), other.task)
    )
