"""The gate's tasks that begin after a refused call: lessons from seeds reserved for gates.

A lesson (envs/lessons) of a fresh task is the oracle's conversation up to a call, with a wrong call
in its place and the tools' refusal. Both policies of an evaluation begin there and play to the end;
the verdict counts. Guarantee: equal arguments give equal tasks, and a larger count adds tasks to
the same ones. Not covered: refusals in the agent's own conversations.
"""

from collections.abc import Mapping
from itertools import islice
from random import Random
from typing import Final

from envs.environment import Environment
from envs.lessons.checks import follows_refusal
from envs.lessons.making import make_lessons
from envs.lessons.operators import REFUSABLE
from envs.task import TaskDefinition

_SOURCES: Final = 20
"""Most fresh tasks that are tried for each lesson wanted."""
_REMEMBERED: Final = 16
"""Sets kept in memory (1.5 MB per 100 tasks), two per open evaluation; others are made again."""


class HeldOutLessons:
    """Makes the lessons of gates. It keeps the last sets, since an evaluation asks repeatedly."""

    remedy = (
        'add kinds to the traffic whose tools refuse wrong calls, or set improve.lessons = "off"'
    )
    """Advice for a person if an environment gives too few lessons."""

    def __init__(self) -> None:
        self._sets: dict[str, _LessonSet] = {}

    def draw(
        self,
        name: str,
        environment: Environment,
        shares: Mapping[str, float],
        seed: int,
        first: int,
        count: int,
    ) -> tuple[TaskDefinition, ...]:
        """Return the first `count` lessons of the set `name`, or fewer if there are no more. The
        other arguments decide the set: kinds have these `shares`, and seeds begin at `first`."""
        known = self._sets.pop(name, None) or _LessonSet()
        while len(self._sets) >= _REMEMBERED:
            del self._sets[next(iter(self._sets))]
        self._sets[name] = known
        most = _SOURCES * count
        tasks = islice(environment.mixture(shares, seed, first), known.looked_at, most)
        while len(known.lessons) < count:
            task = next(tasks, None)
            if task is None:
                break
            lesson = make_refused_lesson(environment, task, seed)
            if lesson is not None:
                known.lessons[known.looked_at] = lesson
            known.looked_at += 1
        # The set may hold more lessons, but the result must not depend on earlier calls.
        places = [place for place in known.lessons if place < most]
        return tuple(known.lessons[place] for place in places[:count])


class _LessonSet:
    def __init__(self) -> None:
        self.looked_at = 0
        """Number of fresh tasks tried so far."""
        self.lessons: dict[int, TaskDefinition] = {}
        """Number of a fresh task -> the lesson made of it, in order."""


def make_refused_lesson(
    environment: Environment, task: TaskDefinition, seed: int
) -> TaskDefinition | None:
    """Return a lesson, named by content, that begins after a refused call in `task`; else None."""
    report = make_lessons(environment, [task], len(REFUSABLE), seed, operators=REFUSABLE)
    lessons = [lesson for lesson in report.lessons if follows_refusal(lesson)]
    return Random(f"after an error {seed} {task.id}").choice(lessons) if lessons else None
