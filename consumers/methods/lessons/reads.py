"""Typed reads of the lessons of an agent's buffer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from consumers.folds.cycles import PROPOSED
from consumers.reads.learning import (
    read_inactive_tasks,
    read_repair_tasks,
    read_sealed_tasks,
    read_task_body,
)
from consumers.tables import Task, TaskBody


@dataclass(frozen=True, slots=True)
class StoredLesson:
    """The lesson in the body of a task by content."""

    operator: str
    source: str
    """Task that was played in the conversation of the lesson."""
    reflection: str
    rollout: str | None
    """Rollout with the wrong call; None if an operator (a rule) inserted the call."""
    keyid: str | None = None
    """Id of the key with which the body is sealed; then no table has the reflection."""


def read_lessons(connection: Connection, alias: str | None = None) -> dict[str, StoredLesson]:
    """Return task -> lesson, for the tasks of an agent, or of all agents."""
    bodies, tasks = TaskBody.table().c, Task.table().c
    query = select(bodies.task, bodies.body, bodies.keyid).where(bodies.operator.is_not(None))
    if alias is not None:
        query = query.where(bodies.task.in_(select(tasks.task).where(tasks.alias == alias)))
    lessons = {}
    for row in connection.execute(query.order_by(bodies.task)):
        lesson = json.loads(row.body)["lesson"]
        lessons[row.task] = StoredLesson(
            operator=str(lesson["operator"]),
            source=str(lesson.get("source", "")),
            reflection=str(lesson.get("reflection", "")),
            rollout=lesson.get("rollout"),
            keyid=row.keyid,
        )
    return lessons


def read_lesson_tasks(connection: Connection, alias: str) -> set[str]:
    """Return the ids of the tasks with a lesson in an agent's buffer, in any state."""
    bodies, tasks = TaskBody.table().c, Task.table().c
    query = (
        select(bodies.task)
        .join_from(TaskBody.table(), Task.table(), tasks.task == bodies.task)
        .where(tasks.alias == alias, tasks.origin == PROPOSED, bodies.operator.is_not(None))
    )
    return set(connection.execute(query).scalars())


def count_drawn_lessons(
    connection: Connection, alias: str, *, written: bool, sealed: bool = True
) -> int:
    """Count the lessons of an agent that are neither retired nor rejected. `written` includes
    lessons that cycles wrote, `sealed` lessons made from persons' sessions."""
    drawn = read_lesson_tasks(connection, alias) - read_inactive_tasks(connection, alias).keys()
    if not sealed:
        drawn -= read_sealed_tasks(connection, alias).keys()
    if not written:
        drawn -= read_repair_tasks(connection, alias)
    return len(drawn)


def describe_pools(pools: Sequence[dict[str, Any]]) -> str:
    """Return a description of a job's pools that draw lessons, or "" if no pool does."""
    parts = [
        f"{pool['name']}: {len(pool['tasks']) + len(pool['references'])}"
        for pool in pools
        if pool.get("reward") in ("repair", "both")
    ]
    return f"draws lessons ({', '.join(parts)})" if parts else ""


def describe_content(connection: Connection, task: str) -> str:
    """Return a description of the wrong call in a task's lesson, or "" without a lesson."""
    body = read_task_body(connection, task)
    lesson = None if body is None else json.loads(body).get("lesson")
    if lesson is None:
        return ""
    if lesson["operator"] == "recorded":
        return f"lesson of a call that was refused in a conversation about {lesson['source']}"
    return f"lesson: {lesson['operator']} in a conversation about {lesson['source']}"
