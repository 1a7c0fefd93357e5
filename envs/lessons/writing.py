"""Write a lesson about a mistake as a task: prefix, reflection, and expected message.

A lesson is kept only if parsing its gold text restores its parts (gold.py). Its reflection must
name every key in which the wrong call differs from the right one, with values that the agent has
seen.
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
    """A task with a lesson, and its prefix as JSON."""

    task: TaskDefinition
    """The task with its id by content."""
    prefix: str
    """Its prefix as JSON. Lessons with equal prefixes are duplicates."""


class LessonWriter:
    """Writes the lessons of one trajectory. Their common parts are converted to JSON once."""

    def __init__(self, environment: Environment, trajectory: Trajectory) -> None:
        self._environment = environment
        self._trajectory = trajectory
        self._task = trajectory.task.model_copy(update={"prefix": (), "lesson": None})
        self._begin = count_greeting(environment, self._task)
        body = self._task.dump_body()
        self._before = "{" + "".join(f"{m}," for m in _write_members(body, "", "lesson"))
        """JSON of the task's body with sorted keys, up to the key `lesson`."""
        self._between = "".join(f",{m}" for m in _write_members(body, "lesson", "prefix"))
        """JSON of the members between the keys `lesson` and `prefix`."""
        self._behind = "".join(f",{m}" for m in _write_members(body, "prefix", "~")) + "}"
        self._read_back: dict[str, bool] = {}
        """Expected text and calls -> whether parsing restores them."""
        self._clean: dict[int, tuple[Message, Message, str]] = {}
        """id of a message -> the message (kept alive), the same without reflection, and its
        JSON."""

    def write(
        self, operator: Operator, mistake: Mistake, repair: Repair, place: Place | None
    ) -> WrittenLesson:
        """Return the lesson; `place` is the wrong call's in a trajectory. Raise NoLesson."""
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
        """Return whether parsing a lesson's text restores its parts; the answer is cached."""
        expected = repr((lesson.final, [(call.name, call.arguments) for call in lesson.calls]))
        if expected not in self._read_back:
            self._read_back[expected] = is_read_back(lesson)
        return self._read_back[expected]

    def _name(self, messages: Sequence[Message], lesson: Lesson) -> WrittenLesson:
        """Return the task with this prefix and lesson. Its id is that of `name_by_content`, made
        from JSON that was written before. Raise NoLesson."""
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
        """Raise NoLesson if the agent cannot yet know one of the right values."""
        rights = [c.right for c in changes if c.key != TOOL and c.right is not ABSENT]
        if place is not None:
            rights = [value for value in rights if not place.seen.has(value)]
        if not rights:
            return
        task = mistake.episode.task
        seen = SeenValues(mistake.episode.view(Party.AGENT))
        # Tools' schemas, the policy and the expected message show values too.
        shown = json.dumps(self._environment.schemas(task), ensure_ascii=False)
        shown += self._environment.policy(task) + repair.message.text
        for text in find_texts(rights):
            if not seen.has(text) and text not in shown:
                raise NoLesson(UNSEEN)


def _write_members(body: Mapping[str, Any], above: str, below: str) -> Iterator[str]:
    """Yield members of an object as JSON, sorted by key: those whose key lies between two texts."""
    for key in sorted(body):
        if above < key < below:
            yield f'"{key}":{exact_json(body[key])}'


def _find_right(mistake: Mistake, repair: Repair, place: Place | None) -> ToolCall | None:
    """Return the right call in place of the wrong one; None after a repeated or needless call.
    Raise NoLesson if the oracle makes another call than the trajectory."""
    if mistake.is_repeated:
        return None
    call = repair.next_call
    if place is None:
        # After a user's answer, a call repairs the wrong one only if its tool is the same.
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
