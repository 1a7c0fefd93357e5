"""Choose from failure patterns what is trained: generators of failed tasks, and fresh seeds of
them.

A recorded task's id is `environment/generator/seed`. What stands before the seed made the task and
is taken as it is, an opaque string; no list of names is in this code, and the environment's labels
(`capability`) are not read, so they may be permuted and nothing here changes (a test does it).

    target    a generator whose recorded rollouts failed often enough, under its commonest pattern
    sibling   a generator of passed rollouts that ask in nearly the words of failed ones: what
              training would damage first, and what replay holds against it
    kept      the generators of all other passed rollouts

Quotas hang on generators, not on patterns: one pattern may hold failures of several generators,
including some that hardly ever fail, and one generator's failures may be spread over several
patterns.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Annotated, Final

from pydantic import Field

from envs.environment import Environment
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.messages import StrictModel
from ops.learning.diagnosis import Diagnosis, generator

_WORD: Final = re.compile(r"[a-z']+")


class NothingToTarget(KintsugiError):
    """No generator failed often enough."""


class Rule(StrictModel):
    """When a generator's failures are worth training on."""

    failures: Annotated[int, Field(ge=1)] = 2
    """Least number of failures with a pattern."""
    failed: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Share of its recorded rollouts, more than."""
    most: Annotated[int, Field(ge=1)] = 8
    """Targets, those of the highest-ranked patterns first."""
    neighbours: Annotated[int, Field(ge=1)] = 3
    """Passed tasks that are looked at for each failed one, and as many that want other writes."""


class Target(StrictModel):
    """A generator that is trained."""

    generator: str
    pattern: str
    """The one that most of its failures have; of several the highest-ranked."""
    failures: int
    attempts: int

    @property
    def pool(self) -> str:
        """Its name in a job and in figures."""
        return f"{self.pattern} {self.generator}"


class Targets(StrictModel):
    """What a diagnosis says to train, and what to keep."""

    targets: tuple[Target, ...]
    siblings: Mapping[str, int]
    """Generator -> how often it was the neighbour of a failed task."""
    kept: Mapping[str, int]
    """Generator -> passed rollouts; siblings are among them, targets are not."""


def choose(diagnosis: Diagnosis, environment: Environment, rule: Rule) -> Targets:
    """The targets of a round. Raises NothingToTarget, UnknownTask."""
    targets = tuple(_targets(diagnosis, rule))[: rule.most]
    if not targets:
        raise NothingToTarget(
            f"of {diagnosis.rollouts} recorded rollouts no generator has {rule.failures} explained "
            f"failures and more than {rule.failed:.0%} failed; diagnose more rollouts"
        )
    names = {target.generator for target in targets}
    passed = [task for task in diagnosis.passed if generator(task) not in names]
    failed = [failure.task for failure in diagnosis.failures if generator(failure.task) in names]
    return Targets(
        targets=targets,
        siblings=_siblings(environment, failed, passed, rule.neighbours),
        kept=Counter(map(generator, passed)),
    )


def _targets(diagnosis: Diagnosis, rule: Rule) -> Iterator[Target]:
    """Those that the rule admits, by the rank of their pattern, then by failures."""
    attempts, failed = diagnosis.attempts, diagnosis.failure_counts
    admitted = [
        name
        for name, count in sorted(failed.items())
        if count >= rule.failures and count > rule.failed * attempts[name]
    ]
    rank = {pattern: place for place, pattern in enumerate(diagnosis.patterns)}
    targets = [
        Target(
            generator=name,
            pattern=_commonest(diagnosis, name, rank),
            failures=failed[name],
            attempts=attempts[name],
        )
        for name in admitted
    ]
    yield from sorted(
        targets, key=lambda target: (rank[target.pattern], -target.failures, target.generator)
    )


def _commonest(diagnosis: Diagnosis, name: str, rank: Mapping[str, int]) -> str:
    counts = Counter(f.pattern for f in diagnosis.failures if generator(f.task) == name)
    return min(counts, key=lambda pattern: (-counts[pattern], rank[pattern]))


def _siblings(
    environment: Environment, failed: Sequence[str], passed: Sequence[str], neighbours: int
) -> Counter[str]:
    """Generators of the passed tasks nearest to each failed one: among all, and among those with
    other writes, whose answer is the opposite one."""
    candidates = [_Request(environment, environment.task(task)) for task in passed]
    counts: Counter[str] = Counter()
    for task in failed:
        asked = _Request(environment, environment.task(task))
        nearest = sorted(candidates, key=lambda other: (-asked.likeness(other), other.task))
        opposite = [other for other in nearest if other.writes != asked.writes]
        for near in (nearest, opposite):
            counts.update(generator(other.task) for other in near[:neighbours])
    return counts


class _Request:
    """What a customer says first, and what a perfect agent writes for it."""

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        opening = task.script.opening if task.script else task.scenario.reason_for_call
        self.task = task.id
        self.words = frozenset(_WORD.findall(opening.lower()))
        gold = task.criteria.gold_actions or ()
        self.writes = [action.name for action in gold if action.name in environment.writes]

    def likeness(self, other: "_Request") -> float:
        """Share of the words of both that both have (Jaccard)."""
        return len(self.words & other.words) / max(1, len(self.words | other.words))


def fresh(
    environment: Environment, weights: Mapping[str, float], first: int, count: int, seed: int
) -> tuple[str, ...]:
    """Ids of `count` new tasks of generators in these proportions, with seeds from `first` on.

    Raises UnknownTask for a generator that the environment does not have, ValueError for none.
    """
    if count and not any(weights.values()):
        raise ValueError(f"{count} tasks are asked for, and no generator passed or failed anything")
    names, shares = list(weights), list(weights.values())
    chance = Random(f"fresh tasks {seed} {first}")
    drawn = chance.choices(names, shares, k=count)
    ids = [f"{name}/{task_seed}" for task_seed, name in enumerate(drawn, first)]
    return tuple(environment.task(task).id for task in ids)
