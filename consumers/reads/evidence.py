"""Typed reads of the rollouts in one agent's closed round, from which a directive is written.
Guarantee: rows are in a fixed order, so equal tables give equal answers. Deduplication is as in the
round's counts (diagnosis/round_counts.py)."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, ScalarSelect, case, func, select

from consumers.diagnosis import round_counts
from consumers.diagnosis.round_counts import LIVE_PURPOSES
from consumers.diagnosis.rule_versions import follows_newest_rules
from consumers.diagnosis.task_kinds import is_usable
from consumers.folds.cycles import PROPOSED
from consumers.rows import make_row, split_ids
from consumers.tables import Call, Rollout, Task
from events.messages import Action

_DIALOGUE_PURPOSES: Final = ("evaluate", "probe")
"""Purposes of rollouts with simulated users whose messages are in the log."""


@dataclass(frozen=True, slots=True)
class RoundRollout:
    """A deduplicated rollout of a round."""

    rollout: str
    task_key: str
    reward: float | None
    category: str | None
    """None if the rollout passed."""
    pivot: str
    client: str | None = None
    """Name of the API key that sent its calls; None for an import or without configured keys."""

    @property
    def pattern(self) -> str | None:
        """Return the pattern for which the rollout counts, if any."""
        return (
            None if self.category in (None, round_counts.OTHER) else f"{self.category}|{self.pivot}"
        )


@dataclass(frozen=True, slots=True)
class TaskRate:
    """Number of attempts and passes on one task in a round."""

    task: str
    gold: tuple[Action, ...] | None
    attempts: int
    passes: int


@dataclass(frozen=True, slots=True)
class PassedRollout:
    """A rollout that passed, and the partition and offset of its event in `rollouts`."""

    rollout: str
    task: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ErrorRollout:
    """A rollout in which a tool answered with an error."""

    rollout: str
    task: str | None
    purpose: str


def read_round_rollouts(
    connection: Connection,
    alias: str,
    base: str,
    number: int,
    kinds: Collection[str] | None = None,
) -> list[RoundRollout]:
    """Return a round's deduplicated judged rollouts, only on tasks of `kinds` if given."""
    seen = round_counts.representatives(number, kinds).c
    rows = connection.execute(
        select(
            seen.rollout, seen.task_key, seen.reward, seen.category, seen.pivot,
            select_client(seen).label("client"),
        )
        .where(seen.alias == alias, seen.base == base)
        .order_by(seen.rollout)
    )  # fmt: skip
    return [make_row(RoundRollout, row, pivot=row.pivot or "*") for row in rows]


def select_client(rollouts: Any) -> ScalarSelect[Any]:
    """Return a subquery of the API key that sent a rollout's calls, the first by name."""
    calls = Call.table().c
    return (
        select(func.min(calls.client))
        .where(calls.session == rollouts.session, calls.rollout == rollouts.rollout)
        .scalar_subquery()
    )


def read_clients(
    connection: Connection, rollouts: Collection[str], kinds: Collection[str] | None
) -> dict[str, str | None]:
    """Return rollout -> key, for those of the rollouts that are on a task of these kinds."""
    table = Rollout.table().c
    query = select(table.rollout, select_client(table).label("client"))
    return {
        row.rollout: row.client
        for part in split_ids(sorted(rollouts))
        for row in connection.execute(query.where(table.rollout.in_(part), is_usable(table, kinds)))
    }


def task_rates(
    connection: Connection,
    alias: str,
    base: str,
    number: int,
    kinds: Collection[str] | None = None,
) -> list[TaskRate]:
    """Return the attempts and passes of each task in a round, only of `kinds` if given. A pass is a
    success that no rule labels, as in the round's own counts."""
    rollouts, tasks = Rollout.table().c, Task.table().c
    query = (
        select(rollouts.task, rollouts.success, rollouts.category, tasks.gold_actions)
        .join_from(
            Rollout.table(),
            Task.table(),
            (tasks.alias == rollouts.alias) & (tasks.task == rollouts.task),
        )
        .where(
            rollouts.alias == alias,
            rollouts.base == base,
            rollouts.round == number,
            rollouts.success.is_not(None),
            rollouts.purpose.in_(LIVE_PURPOSES),
            is_usable(rollouts, kinds),
        )
        .order_by(rollouts.task)
    )
    by_task: dict[str, list[Any]] = {}
    for row in connection.execute(query):
        by_task.setdefault(row.task, []).append(row)
    return [
        TaskRate(
            task=task,
            gold=_actions(rows[0].gold_actions),
            attempts=len(rows),
            passes=sum(bool(row.success and row.category is None) for row in rows),
        )
        for task, rows in by_task.items()
    ]


def last_outcomes(
    connection: Connection, alias: str, base: str, tasks: Sequence[str], window: int
) -> dict[str, tuple[int, int]]:
    """Return task -> (attempts, passes) of its last `window` rollouts under its newest rules."""
    rollouts = Rollout.table().c
    place = func.row_number().over(
        partition_by=rollouts.task_key,
        order_by=(rollouts.time.desc().nulls_last(), rollouts.rollout.desc()),
    )
    outcomes: dict[str, tuple[int, int]] = {}
    for part in split_ids(tasks):
        ranked = (
            select(
                rollouts.task_key, rollouts.success, rollouts.category, place.label("place")
            )
            .where(
                rollouts.alias == alias,
                rollouts.base == base,
                rollouts.success.is_not(None),
                follows_newest_rules(rollouts),
                rollouts.task_key.in_(part),
            )
            .subquery()
        )  # fmt: skip
        passed = case((ranked.c.success & ranked.c.category.is_(None), 1), else_=0)
        for row in connection.execute(
            select(ranked.c.task_key, func.count().label("n"), func.sum(passed).label("c"))
            .where(ranked.c.place <= window)
            .group_by(ranked.c.task_key)
        ):
            outcomes[row.task_key] = (row.n, int(row.c))
    return outcomes


def read_trial_differences(
    connection: Connection, alias: str, base: str, candidate: str, incumbent: str
) -> dict[str, float]:
    """Return task -> candidate's minus incumbent's pass rate, for tasks that both played."""
    rollouts = Rollout.table().c
    played = (
        rollouts.alias == alias,
        rollouts.base == base,
        rollouts.purpose == "evaluate",
        rollouts.success.is_not(None),
    )
    tasks = select(rollouts.task).where(*played, rollouts.policy == candidate)
    passed = case((rollouts.success, 1.0), else_=0.0)
    query = (
        select(rollouts.task, rollouts.policy, func.avg(passed).label("rate"))
        .where(*played, rollouts.policy.in_((candidate, incumbent)), rollouts.task.in_(tasks))
        .group_by(rollouts.task, rollouts.policy)
        .order_by(rollouts.task)
    )
    rates: dict[str, dict[str, float]] = {}
    for row in connection.execute(query):
        rates.setdefault(row.task, {})[row.policy] = float(row.rate)
    return {task: own[candidate] - own[incumbent] for task, own in rates.items() if len(own) == 2}


def read_evaluated_tasks(connection: Connection, alias: str) -> list[tuple[Action, ...]]:
    """Return the gold actions of each task that was played in an evaluation. Tasks of the buffer
    are left out, which a person may evaluate too."""
    tasks, rollouts = Task.table().c, Rollout.table().c
    played = select(rollouts.task).where(
        rollouts.alias == alias, rollouts.purpose == "evaluate", rollouts.task.is_not(None)
    )
    query = select(tasks.gold_actions).where(
        tasks.alias == alias, tasks.origin != PROPOSED, tasks.task.in_(played)
    )
    stored = connection.execute(query.order_by(tasks.task)).scalars()
    return [actions for text in stored if (actions := _actions(text)) is not None]


def passed_sessions(
    connection: Connection, alias: str, base: str, most: int
) -> list[PassedRollout]:
    """Return the last `most` live sessions that passed under the newest rules and that no rule of
    diagnosis labels, newest first."""
    rollouts = Rollout.table().c
    query = (
        select(rollouts.rollout, rollouts.task, rollouts.partition, rollouts.offset)
        .where(
            rollouts.alias == alias,
            rollouts.base == base,
            rollouts.purpose == "live",
            rollouts.success.is_(True),
            follows_newest_rules(rollouts),
            rollouts.category.is_(None),
            rollouts.session.is_not(None),
            rollouts.task.is_not(None),
        )
        .order_by(rollouts.time.desc().nulls_last(), rollouts.rollout.desc())
        .limit(most)
    )
    return [PassedRollout(*row) for row in connection.execute(query)]


def list_dialogue_successes(
    connection: Connection, alias: str, environment: str
) -> list[PassedRollout]:
    """Return an agent's simulated rollouts that passed and have no label, newest first."""
    rollouts = Rollout.table().c
    query = (
        select(rollouts.rollout, rollouts.task, rollouts.partition, rollouts.offset)
        .where(*_are_dialogue_successes(alias, environment))
        .order_by(rollouts.time.desc().nulls_last(), rollouts.rollout.desc())
    )
    return [PassedRollout(*row) for row in connection.execute(query)]


def list_dialogue_tasks(connection: Connection, alias: str, environment: str) -> list[str]:
    """Return the ids of the different tasks in `list_dialogue_successes`."""
    rollouts = Rollout.table().c
    query = select(rollouts.task).where(*_are_dialogue_successes(alias, environment)).distinct()
    return list(connection.execute(query).scalars())


def _are_dialogue_successes(alias: str, environment: str) -> list[ColumnElement[bool]]:
    rollouts = Rollout.table().c
    return [
        rollouts.alias == alias,
        rollouts.environment == environment,
        rollouts.purpose.in_(_DIALOGUE_PURPOSES),
        rollouts.success.is_(True),
        rollouts.category.is_(None),
        rollouts.session.is_(None),
        rollouts.task.is_not(None),
        rollouts.messages > 0,
    ]


def count_session_successes(connection: Connection, alias: str, environment: str) -> int:
    """Count an agent's real sessions that passed a task of an environment."""
    rollouts = Rollout.table().c
    query = select(func.count()).where(
        rollouts.alias == alias,
        rollouts.environment == environment,
        rollouts.success.is_(True),
        rollouts.session.is_not(None),
    )
    return int(connection.execute(query).scalar_one())


def read_error_rollouts(
    connection: Connection, alias: str, most: int, among: Sequence[str] | None = None
) -> list[ErrorRollout]:
    """Return the last `most` live and training rollouts (of `among`, if given) in which a tool
    answered with an error, newest first."""
    rollouts = Rollout.table().c
    query = (
        select(rollouts.rollout, rollouts.task, rollouts.purpose)
        .where(
            rollouts.alias == alias,
            rollouts.purpose.in_(("live", "train")),
            rollouts.tool_errors > 0,
        )
        .order_by(rollouts.time.desc().nulls_last(), rollouts.rollout.desc())
        .limit(most)
    )
    if among is not None:
        query = query.where(rollouts.rollout.in_(among))
    return [ErrorRollout(*row) for row in connection.execute(query)]


def tasks_of(connection: Connection, rollouts: Sequence[str]) -> dict[str, str]:
    """Return rollout -> task, for those of `rollouts` that have a task."""
    table = Rollout.table().c
    query = select(table.rollout, table.task).where(
        table.rollout.in_(rollouts), table.task.is_not(None)
    )
    return {row.rollout: row.task for row in connection.execute(query.order_by(table.rollout))}


def _actions(stored: str | None) -> tuple[Action, ...] | None:
    if stored is None:
        return None
    return tuple(Action.model_validate(action) for action in json.loads(stored))
