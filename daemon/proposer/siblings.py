"""Replay of siblings: tasks like the passed ones that ask in nearly the words of failed ones.

    find_siblings(failed, passed)               passed task -> of how many failed ones it is near
    draw_siblings(environment, near, 96, seed)  ids of fresh tasks like them

A sibling is what training on a failure damages first: a task with nearly the same request, and
often with another answer. For each failed task these are the `NEIGHBOURS` passed ones with the most
common words, among all of them and among those with other gold writes. Likeness is the share of the
words of both openings that both have (Jaccard). Labels of the environment are not read.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from random import Random
from typing import Final, Self

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
            words=frozenset(word for word in _WORD.findall(opening.lower()) if word.isalpha()),
            writes=tuple(action.name for action in gold if action.name in writes),
        )

    def compute_likeness(self, other: "Request") -> float:
        """Return the share of the words of both that both have, from 0 to 1."""
        return len(self.words & other.words) / max(1, len(self.words | other.words))


def find_siblings(failed: Sequence[Request], passed: Sequence[Request]) -> Counter[str]:
    """Return passed task -> how often it is among the nearest of a failed one."""
    near: Counter[str] = Counter()
    for request in failed:
        opposite = [other for other in passed if other.writes != request.writes]
        for others in (passed, opposite):
            near.update(other.task for other in _select_nearest(request, others))
    return near


def draw_siblings(
    environment: Environment, near: Mapping[str, int], count: int, seed: str
) -> tuple[str, ...]:
    """Return the ids of at most `count` tasks like those of `near`, in proportion to their counts;
    what has nothing like it is there itself. Raises UnknownTask."""
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
