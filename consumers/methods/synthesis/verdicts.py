"""Reads for finding the fault of a failure: tasks that fail, their siblings, and verdicts.
Guarantee: rows are in a fixed order, so equal tables give equal answers."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select

from consumers.folds.cycles import PROPOSED
from consumers.rows import make_row, split_ids
from consumers.tables import Rollout, Task, TrajectoryVerdict
from events.learning import PlanName

_USER_ERROR: Final = "user_error"
"""Termination of a rollout that ended without a verdict by a fault of its user."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """The number of a task's last rollouts, and the failures among them."""

    attempts: int
    failures: tuple[str, ...]
    """Ids of the rollouts that failed or were ended by a fault of the user, newest first."""


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """Source of a buffered task: the plan or the failed rollout from which it was written."""

    task: str
    plan: PlanName | None
    source: str | None
    """Task of the failed rollout from which it was written; the rollout if that has no task."""


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """The fault of a rollout, and a model's opinion of it."""

    rollout: str
    task: str
    fault: str | None
    """None if the rollout was accepted."""
    rule: str
    reason: str
    opinion_by: str | None
    """Model that was asked, if any."""
    opinion: str | None
    """Fault in the model's opinion; None if it accepts the rollout or was not asked."""
    opinion_reason: str | None
    agrees: bool | None
    trouble: str
    siblings: tuple[str, ...]

    def describe(self) -> str:
        """Return the verdict in one line."""
        whose = {None: "accepted", "trajectory": "the agent's fault"}.get(
            self.fault, f"the {self.fault}'s fault"
        )
        parts = [f"{whose} ({self.rule}): {self.reason}" if self.fault else whose]
        if self.opinion_by is not None:
            word = {None: "accepts it", "trajectory": "blames the agent"}.get(
                self.opinion, f"blames the {self.opinion}"
            )
            parts.append(f"{self.opinion_by} {word}")
        if self.siblings:
            parts.append(f"{len(self.siblings)} siblings reviewed")
        return "; ".join(parts)


def read_last_failures(
    connection: Connection, alias: str, base: str, tasks: Sequence[str], window: int
) -> dict[str, FailureRecord]:
    """Return task -> failures among its last `window` rollouts with a verdict or a user's fault."""
    rollouts = Rollout.table().c
    place = func.row_number().over(
        partition_by=rollouts.task_key,
        order_by=(rollouts.time.desc().nulls_last(), rollouts.rollout.desc()),
    )
    rows: dict[str, list[Any]] = {}
    for part in split_ids(tasks):
        ranked = (
            select(
                rollouts.task_key, rollouts.rollout, rollouts.success, place.label("place")
            )
            .where(
                rollouts.alias == alias,
                rollouts.base == base,
                rollouts.success.is_not(None) | (rollouts.termination == _USER_ERROR),
                rollouts.task_key.in_(part),
            )
            .subquery()
        )  # fmt: skip
        query = select(ranked).where(ranked.c.place <= window).order_by(ranked.c.place)
        for row in connection.execute(query):
            rows.setdefault(row.task_key, []).append(row)
    return {
        task: FailureRecord(len(own), tuple(row.rollout for row in own if not row.success))
        for task, own in rows.items()
    }


def read_tasks_with_verdict(connection: Connection, alias: str) -> set[str]:
    """Return the tasks of an agent of which a rollout has a verdict on its fault."""
    verdicts = TrajectoryVerdict.table().c
    query = select(verdicts.task).where(verdicts.alias == alias).distinct()
    return set(connection.execute(query).scalars())


def read_reviewed_siblings(connection: Connection, alias: str) -> set[str]:
    """Return the tasks of an agent that were reviewed because a sibling task was at fault."""
    verdicts = TrajectoryVerdict.table().c
    query = select(verdicts.siblings).where(verdicts.alias == alias, verdicts.fault == "task")
    lists = connection.execute(query.distinct()).scalars()
    return {task for siblings in lists for task in json.loads(siblings)}


def read_task_origins(connection: Connection, alias: str) -> dict[str, TaskOrigin]:
    """Return task -> origin for the tasks in an agent's buffer, in log order."""
    tasks, rollouts = Task.table().c, Rollout.table().c
    query = (
        select(
            tasks.task, tasks.plans, tasks.plan, tasks.plan_revision, tasks.source_rollout,
            rollouts.task.label("source_task"),
        )
        .select_from(
            Task.table().outerjoin(Rollout.table(), rollouts.rollout == tasks.source_rollout)
        )
        .where(tasks.alias == alias, tasks.origin == PROPOSED)
        .order_by(tasks.offset, tasks.task)
    )  # fmt: skip
    return {
        row.task: TaskOrigin(
            row.task,
            None
            if row.plan is None
            else PlanName(plans=row.plans, plan=row.plan, revision=row.plan_revision),
            row.source_task or row.source_rollout,
        )
        for row in connection.execute(query)
    }


def list_siblings(origins: Iterable[TaskOrigin], origin: TaskOrigin) -> list[str]:
    """Return the other tasks of the same plan (in any revision) or of the same source, in order."""

    def has_same(other: TaskOrigin) -> bool:
        mine, its = origin.plan, other.plan
        of_plan = mine is not None and its is not None and (mine.plans, mine.plan) == (
            its.plans, its.plan
        )  # fmt: skip
        return of_plan or (origin.source is not None and origin.source == other.source)

    return [other.task for other in origins if other.task != origin.task and has_same(other)]


def read_task_verdicts(
    connection: Connection, task: str, alias: str | None = None
) -> list[VerdictLine]:
    """Return the verdicts on rollouts of a task in log order, for one agent or all."""
    verdicts = TrajectoryVerdict.table().c
    query = select(TrajectoryVerdict.table()).where(verdicts.task == task)
    if alias is not None:
        query = query.where(verdicts.alias == alias)
    rows = connection.execute(query.order_by(verdicts.offset, verdicts.rollout))
    return [make_row(VerdictLine, row, siblings=tuple(json.loads(row.siblings))) for row in rows]
