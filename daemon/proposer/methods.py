"""Add the methods' checks of their own tasks to the Proposer's checks."""

from collections.abc import Callable, Mapping
from typing import Final

from daemon.proposer.candidate import CandidateFacts, CheckFailure
from envs.lessons.checks import BadLesson, check_lesson
from envs.task import TaskDefinition, find_split
from events.learning import Check


def find_test_source(task: TaskDefinition) -> str | None:
    """Return why a lesson is kept for tests; None if it is not, or if the task is no lesson."""
    if task.lesson is None or find_split(task.source) != "test":
        return None
    return f"the lessons of {task.source} are kept for tests"


def _check_lesson(examined: CandidateFacts) -> str | None:
    """Check V11, that a lesson is right; None for other tasks. Raise CheckFailure."""
    if examined.task.lesson is None:
        return None
    try:
        check_lesson(examined.environment, examined.task)
    except BadLesson as error:
        raise CheckFailure(str(error)) from error
    return ""


METHOD_CHECKS: Final[Mapping[Check, Callable[[CandidateFacts], str | None]]] = {
    "lesson": _check_lesson
}
"""Checks in order, called as in verification.py. Each returns None for a task of another method."""
