"""Write the lesson of a mistake as a task: its prefix, its reflection and what is expected.

A lesson is kept only if its reflection names every key in which the wrong call differs from the
right one, with values that the agent has seen. Its gold text must also be read back (gold.py).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    has_half_pair,
)
from envs.lessons.repairs import Mistake, NoLesson, Repair
from envs.lessons.trajectories import Place, Trajectory, clean_message, count_greeting
from envs.lessons.values import SeenValues, find_texts
from envs.task import Lesson, Operator, TaskDefinition
from events.canonical import exact_json, sha256
from events.messages import Message, ToolCall

UNSEEN: Final = "a right value was not seen"
OTHER_CALL: Final = "the oracle makes another call"
UNNAMED: Final = "the reflection names not every key"
MALFORMED: Final = "the reflection is malformed"
NOT_STORABLE: Final = "a text of it cannot be stored"
NOT_READ_BACK: Final = "the gold text is not read back"


@dataclass(frozen=True, slots=True)
class WrittenLesson:
    """A lesson as a task."""

    task: TaskDefinition
    """The task under its id by content."""
    prefix: str
    """Its prefix as JSON: lessons with equal ones are the same."""


class LessonWriter:
    """Writes the lessons of one trajectory. What they share is converted once."""

    def __init__(self, environment: Environment, trajectory: Trajectory) -> None:
        self._environment = environment
        self._trajectory = trajectory
        self._task = trajectory.task.model_copy(update={"prefix": (), "lesson": None})
        self._begin = count_greeting(environment, self._task)
        body = self._task.dump_body()
        self._before = "{" + "".join(f"{m}," for m in _write_members(body, "", "lesson"))
        """The task's body as JSON with sorted keys, up to the lesson."""
        self._between = "".join(f",{m}" for m in _write_members(body, "lesson", "prefix"))
        """The body's JSON between lesson and prefix."""
        self._behind = "".join(f",{m}" for m in _write_members(body, "prefix", "~")) + "}"
        self._read_back: dict[str, bool] = {}
        """Text and calls that are expected -> whether they are read back."""
        self._clean: dict[int, tuple[Message, Message, str]] = {}
        """id of a message -> the message (kept alive), its form in a prefix, and its JSON."""

    def write(
        self, operator: Operator, mistake: Mistake, repair: Repair, place: Place | None
    ) -> WrittenLesson:
        """Return the lesson; `place` is the wrong call's, if any. Raise NoLesson."""
        right = _find_right(mistake, repair, place)
        changes = () if right is None else find_changes(mistake.wrong.call, right)
        self._check_seen(mistake, repair, place, changes)
        reflection = _write_reflection(mistake, right, changes)
        if find_fault(reflection) is not None:
            raise NoLesson(MALFORMED)
        if find_unnamed(reflection, changes):
            raise NoLesson(UNNAMED)
        lesson = Lesson(
            operator=operator,
            reflection=reflection,
            calls=repair.calls,
            final=repair.message.text,
            source=self._trajectory.source,
            rollout=self._trajectory.rollout if operator == "recorded" else None,
        )
        if not self._is_read_back(lesson):
            raise NoLesson(NOT_READ_BACK)
        return self._name(mistake.episode.messages[self._begin :], lesson)

    def _is_read_back(self, lesson: Lesson) -> bool:
        """Return whether a lesson's text has its parts again; one per expectation is tested."""
        expected = repr((lesson.final, [(call.name, call.arguments) for call in lesson.calls]))
        if expected not in self._read_back:
            self._read_back[expected] = is_read_back(lesson)
        return self._read_back[expected]

    def _name(self, messages: Sequence[Message], lesson: Lesson) -> WrittenLesson:
        """Return the task with this prefix and lesson. Its id equals `name_by_content`'s, made of
        parts written before. Raise NoLesson."""
        parts = [self._clean_message(message) for message in messages]
        prefix = f"[{','.join(text for _, _, text in parts)}]"
        written = (
            f'{self._before}"lesson":{exact_json(lesson.model_dump(mode="json"))}'
            f'{self._between},"prefix":{prefix}{self._behind}'
        )
        if has_half_pair(written):
            raise NoLesson(NOT_STORABLE)
        task = self._task.model_copy(
            update={
                "id": f"{self._task.environment}/={sha256(written)}",
                "prefix": tuple(clean for _, clean, _ in parts),
                "lesson": lesson,
            }
        )
        return WrittenLesson(task, prefix)

    def _clean_message(self, message: Message) -> tuple[Message, Message, str]:
        known = self._clean.get(id(message))
        if known is None:
            clean = clean_message(message)
            known = message, clean, exact_json(clean.model_dump(mode="json"))
            self._clean[id(message)] = known
        return known

    def _check_seen(
        self, mistake: Mistake, repair: Repair, place: Place | None, changes: Sequence[Change]
    ) -> None:
        """Raise NoLesson where a right value is one that the agent can only know later."""
        rights = [c.right for c in changes if c.key != TOOL and c.right is not ABSENT]
        if place is not None:
            rights = [value for value in rights if not place.seen.has(value)]
        if not rights:
            return
        task = mistake.episode.task
        seen = SeenValues(mistake.episode.view(Party.AGENT))
        # What the tools' descriptions list was seen as well, and what the expected message says.
        shown = json.dumps(self._environment.schemas(task), ensure_ascii=False)
        shown += self._environment.policy(task) + repair.message.text
        for text in find_texts(rights):
            if not seen.has(text) and text not in shown:
                raise NoLesson(UNSEEN)


def _write_members(body: Mapping[str, Any], above: str, below: str) -> Iterator[str]:
    """Yield the members of an object whose keys are between two texts, as JSON, sorted."""
    for key in sorted(body):
        if above < key < below:
            yield f'"{key}":{exact_json(body[key])}'


def _find_right(mistake: Mistake, repair: Repair, place: Place | None) -> ToolCall | None:
    """Return the right call in place of the wrong one; None for a repetition or a needless call.
    Raise NoLesson where the oracle makes another call than the trajectory has."""
    if mistake.is_repeated:
        return None
    call = repair.next_call
    if place is None:
        # Behind an answer of the user, only a call of the same tool is the wrong one's repair.
        same = call is not None and call.name == mistake.wrong.call.name
        return call if repair.message.tool_calls or same else None
    if call is None or (call.name, call.arguments) != (place.call.name, place.call.arguments):
        raise NoLesson(OTHER_CALL)
    return call


def _write_reflection(mistake: Mistake, right: ToolCall | None, changes: Sequence[Change]) -> str:
    wrong = mistake.wrong
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
