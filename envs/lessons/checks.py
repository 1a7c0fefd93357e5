"""Check a task that has a lesson, from any source.

A lesson is right if all of this holds. Its prefix ends with an answered call of the agent. Its
expected message is the oracle's next one, and its calls succeed. Its reflection is well-formed, and
names every key in which the wrong call differs from the right one. Parsing its gold text gives its
parts again. Check V7 of docs/proposing.md shows that the oracle then succeeds.
"""

from collections.abc import Sequence
from itertools import takewhile

from envs.environment import Environment
from envs.episode import Episode, Party
from envs.lessons.gold import is_read_back
from envs.lessons.reflections import Change, find_changes, find_fault, find_unnamed
from envs.task import Lesson, TaskDefinition
from events.errors import KintsugiError
from events.messages import Action, ExecutedCall, Message, ToolCall, executed_calls


class BadLesson(KintsugiError):
    """A task has no lesson, or its lesson is wrong."""


def get_lesson(task: TaskDefinition) -> Lesson:
    """Return the lesson of a task. Raise BadLesson if it has none."""
    if task.lesson is None:
        raise BadLesson(f"task {task.id} has no lesson")
    return task.lesson


def follows_refusal(task: TaskDefinition) -> bool:
    """Return whether a task's prefix ends with a call of the agent that failed."""
    results = takewhile(lambda message: message.role == "tool", reversed(task.prefix))
    return any(message.error for message in results)


def check_lesson(environment: Environment, task: TaskDefinition) -> None:
    """Check a task's lesson. Raise BadLesson, or PrefixMismatch if the prefix does not replay."""
    lesson = get_lesson(task)
    check_reflection(lesson.reflection)
    if not lesson.calls and not lesson.final.strip():
        raise BadLesson("the lesson expects neither a call nor a text; give one of them")
    if not is_read_back(lesson):
        raise BadLesson("the gold text of the lesson is not read back as it was written")
    if not lesson.source.startswith(f"{task.environment}/"):
        raise BadLesson(f"the lesson's source {lesson.source!r} is no task of {task.environment}")
    episode = Episode(environment, task)
    wrong = _find_wrong(episode)
    right = _play_expected(environment, episode, lesson)
    changes = find_key_changes(lesson, wrong, right)
    unnamed = find_unnamed(lesson.reflection, changes, with_values=False)
    if unnamed:
        raise BadLesson(
            f"the reflection does not name {', '.join(unnamed)}, in which the wrong call differs "
            "from the right one; name each"
        )


def check_reflection(reflection: str) -> None:
    """Raise BadLesson if a text is not well-formed as a reflection."""
    fault = find_fault(reflection)
    if fault is not None:
        raise BadLesson(f"this text is no reflection: {fault}; write one or two plain sentences")


def find_key_changes(
    lesson: Lesson, wrong: ToolCall, right: ToolCall | Action | None
) -> tuple[Change, ...]:
    """Return the differences that a reflection must name; none for a repeated or needless call."""
    if lesson.operator == "redundant" or right is None:
        return ()
    return find_changes(wrong, right)


def _find_wrong(episode: Episode) -> ToolCall:
    """Return the first failed call of the prefix's last message, else its last one. Raise
    BadLesson."""
    calls = executed_calls(episode.messages)
    last: Sequence[ExecutedCall] = [item for item in calls if item.turn == calls[-1].turn]
    if (
        not last
        or episode.turn is not Party.AGENT
        or episode.messages[-1].role != "tool"
        or last[0].requestor != "assistant"
    ):
        raise BadLesson("the prefix does not end with a call of the agent and its result")
    return next((item for item in last if item.failed), last[-1]).call


def _play_expected(environment: Environment, episode: Episode, lesson: Lesson) -> ToolCall | None:
    """Make the expected message, and return the right call in place of the wrong one. Raise
    BadLesson if the oracle writes another message, or if a call of it fails."""
    wrong = _find_wrong(episode)
    oracle, user = environment.oracle(episode.task), environment.user(episode.task)
    expected = oracle.reply(episode.view(Party.AGENT))
    if _outline(expected) != (lesson.final, [(c.name, c.arguments) for c in lesson.calls]):
        raise BadLesson(f"a perfect agent writes another message there: {_show(expected)}")
    begin = len(episode.messages)
    episode.receive(expected)
    if any(item.failed for item in executed_calls(episode.messages[begin:])):
        raise BadLesson("a call that the lesson expects fails")
    if expected.tool_calls:
        return expected.tool_calls[0]
    while episode.turn is not None:
        party = oracle if episode.turn is Party.AGENT else user
        message = party.reply(episode.view(episode.turn))
        if episode.turn is Party.AGENT and message.tool_calls:
            call = message.tool_calls[0]
            # After a user's answer, a call is the right one only if its tool is the same.
            return call if call.name == wrong.name else None
        episode.receive(message)
    return None


def _outline(message: Message) -> tuple[str, list[tuple[str, object]]]:
    return message.text, [(call.name, call.arguments) for call in message.tool_calls]


def _show(message: Message) -> str:
    text, calls = _outline(message)
    return repr([*([text] if text else []), *calls])[:300]
