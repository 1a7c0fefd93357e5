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
    """The lesson of a task by content, from the task's body."""

    operator: str
    source: str
    """Task that its trajectory is of."""
    reflection: str
    rollout: str | None
    """Rollout with the wrong call; None for a call that an operator put in."""
    keyid: str | None = None
    """Id of the key that its body is sealed with; then no table has the reflection."""


def read_lessons(connection: Connection, alias: str | None = None) -> dict[str, StoredLesson]:
    """Return task -> its lesson, of an agent's tasks by content or of all."""
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
    """Return the tasks of an agent's buffer that have a lesson, in any state."""
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
    """Count the lessons of an agent that are neither retired nor rejected. `written` includes those
    that cycles wrote, `sealed` those that are made of persons' sessions."""
    drawn = read_lesson_tasks(connection, alias) - read_inactive_tasks(connection, alias).keys()
    if not sealed:
        drawn -= read_sealed_tasks(connection, alias).keys()
    if not written:
        drawn -= read_repair_tasks(connection, alias)
    return len(drawn)


def describe_pools(pools: Sequence[dict[str, Any]]) -> str:
    """Describe the pools of a job that draw lessons; return "" if none does."""
    parts = [
        f"{pool['name']}: {len(pool['tasks']) + len(pool['references'])}"
        for pool in pools
        if pool.get("reward") in ("repair", "both")
    ]
    return f"draws lessons ({', '.join(parts)})" if parts else ""


def describe_content(connection: Connection, task: str) -> str:
    """Describe the source of the wrong call in a task's lesson; return "" without one."""
    body = read_task_body(connection, task)
    lesson = None if body is None else json.loads(body).get("lesson")
    if lesson is None:
        return ""
    if lesson["operator"] == "recorded":
        return f"lesson of a call that was refused in a conversation about {lesson['source']}"
    return f"lesson: {lesson['operator']} in a conversation about {lesson['source']}"
