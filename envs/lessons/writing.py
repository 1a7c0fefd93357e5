"""Write the lesson of a mistake: its prefix, its reflection and what is expected, as a task.

    task = write_lesson(environment, trajectory, wrong, mistake, repair)     or NoLesson

A lesson is kept only if its reflection names every key in which the wrong call differs from the
right one, with values that the agent has seen, and if the gold text is read back (gold.py).
"""

import json
from collections.abc import Iterator
from typing import Final

from envs.database import ABSENT
from envs.environment import Environment
from envs.episode import Party
from envs.lessons.gold import is_read_back
from envs.lessons.reflections import (
    TOOL,
    Change,
    describe_changes,
    describe_mistake,
    find_cause,
    find_changes,
    find_fault,
    find_unnamed,
)
from envs.lessons.repairs import Mistake, NoLesson, Repair
from envs.lessons.trajectories import Trajectory, clean_messages, count_greeting
from envs.lessons.values import SeenValues, find_texts
from envs.task import Lesson, Operator, TaskDefinition

UNSEEN: Final = "a right value was not seen"
UNNAMED: Final = "the reflection names not every key"
MALFORMED: Final = "the reflection is malformed"
NOT_READ_BACK: Final = "the gold text is not read back"


def write_lesson(
    environment: Environment,
    trajectory: Trajectory,
    operator: Operator,
    mistake: Mistake,
    repair: Repair,
) -> TaskDefinition:
    """Return the task, under its id by content. Raises NoLesson."""
    changes = find_mistake_changes(mistake, repair)
    _check_seen(environment, mistake, repair, changes)
    reflection = _write_reflection(mistake, repair, changes)
    if find_fault(reflection) is not None:
        raise NoLesson(MALFORMED)
    if find_unnamed(reflection, changes):
        raise NoLesson(UNNAMED)
    lesson = Lesson.model_construct(
        operator=operator,
        reflection=reflection,
        calls=repair.calls,
        final=repair.message.text,
        source=trajectory.source,
        rollout=trajectory.rollout if operator == "recorded" else None,
    )
    if not is_read_back(lesson):
        raise NoLesson(NOT_READ_BACK)
    episode = mistake.episode
    begin = count_greeting(environment, episode.task)
    prefix = clean_messages(episode.messages[begin:])
    return trajectory.task.model_copy(
        update={"prefix": prefix, "lesson": lesson}
    ).name_by_content()


def find_mistake_changes(mistake: Mistake, repair: Repair) -> tuple[Change, ...]:
    """Return where the wrong call differs from the right one: the oracle's next call. A repetition
    differs in nothing, and neither does a call where none was due."""
    right = repair.continuation.next_call
    if mistake.is_repeated or right is None:
        return ()
    return find_changes(mistake.wrong.call, right)


def _check_seen(
    environment: Environment, mistake: Mistake, repair: Repair, changes: tuple[Change, ...]
) -> None:
    """Raises NoLesson where a right value is one that the agent can only know later."""
    rights = [c.right for c in changes if c.key != TOOL and c.right is not ABSENT]
    if not rights:
        return
    episode = mistake.episode
    seen = SeenValues(episode.view(Party.AGENT))
    unseen = [value for value in rights if not seen.has(value)]
    if not unseen:
        return
    # What the tools' descriptions list was seen as well, and what the expected message says.
    shown = json.dumps(environment.schemas(episode.task)) + repair.message.text
    shown += environment.policy(episode.task)
    if not all(text in shown for value in unseen for text in _find_unseen(value, seen)):
        raise NoLesson(UNSEEN)


def _find_unseen(value: object, seen: SeenValues) -> Iterator[str]:
    return (text for text in find_texts(value) if not seen.has(text))


def _write_reflection(mistake: Mistake, repair: Repair, changes: tuple[Change, ...]) -> str:
    wrong, right = mistake.wrong, repair.continuation.next_call
    error = next((item.result.text for item in mistake.calls if item.failed and item.result), None)
    cause = None if error is None else find_cause(error)
    happened = describe_mistake(wrong.call.name, cause, mistake.is_repeated)
    if mistake.is_repeated:
        todo = "One call is enough."
    elif right is None:
        todo = "The next step is an answer and no call."
    elif not changes:
        todo = "The same call can be made later."
    elif mistake.comes_too_early and right.name != wrong.call.name:
        todo = f"{right.name} must come before {wrong.call.name}."
    else:
        todo = describe_changes(changes)
    return f"{happened} {todo}"
