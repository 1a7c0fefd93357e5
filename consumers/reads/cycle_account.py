"""Typed reads of the facts behind a finished cycle, for the account of its gain
(daemon/cycle/account).

Within one `database.read_transaction` all reads are of one moment. Rows are in a fixed order, so
equal tables give equal answers. Kinds are the environment's labels, for reports and not diagnosis.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

from sqlalchemy import Connection, case, func, literal, select

from consumers.diagnosis.labelled import label_columns, rollouts_with_repairs
from consumers.diagnosis.round_counts import of_agents
from consumers.folds.cycles import PROPOSED
from consumers.rows import split_ids
from consumers.tables import Cycle, Job, PatternRound, Rollout, Task
from events.learning import Mode
from events.rollouts import Purpose


@dataclass(frozen=True, slots=True)
class TrafficCount:
    """Number of judged rollouts in a round's traffic with one kind, pattern and verdict."""

    kind: str | None
    """Kind of the task; None if the rollout has no task or the task has no kind."""
    pattern: str | None
    """`category|pivot` of a failure; None if it passed or no rule labelled it."""
    success: bool
    rollouts: int


@dataclass(frozen=True, slots=True)
class RoundPattern:
    """A failure pattern at the end of a round."""

    pattern: str
    failures: int
    """Number of deduplicated failures in the round."""
    priority: float
    status: str


@dataclass(frozen=True, slots=True)
class WrittenTask:
    """A task that a cycle wrote and that passed its checks."""

    task: str
    pattern: str
    kind: str | None
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class JobRollout:
    """A recorded rollout of a job."""

    rollout: str
    task: str | None
    success: bool | None
    reward: float | None
    policy: str


@dataclass(frozen=True, slots=True)
class TaskPair:
    """The pass rates of a candidate and the incumbent on a task that both played."""

    task: str
    kind: str | None
    incumbent: float
    """Share of its trials that passed, as in `candidate`."""
    candidate: float


def read_round_traffic(
    connection: Connection, alias: str, base: str, number: int
) -> list[TrafficCount]:
    """Count an agent's judged rollouts in a round. As for pass^1, duplicates count."""
    rollouts = Rollout.table().c
    category, pivot = label_columns()
    pattern = case((rollouts.success.is_(False), category + literal("|") + pivot))
    judged = (
        select(rollouts.capability, pattern.label("pattern"), rollouts.success)
        .select_from(rollouts_with_repairs())
        .where(
            rollouts.alias == alias, rollouts.base == base, rollouts.round == number,
            rollouts.success.is_not(None), rollouts.outdated.is_(False), of_agents(rollouts),
        )
        .subquery()
    )  # fmt: skip
    columns = tuple(judged.c)
    rows = connection.execute(select(*columns, func.count().label("n")).group_by(*columns))
    counts = [TrafficCount(row.capability, row.pattern, row.success, row.n) for row in rows]
    return sorted(counts, key=lambda count: (count.kind or "", count.pattern or "", count.success))


def count_unjudged(connection: Connection, alias: str, base: str, number: int) -> int:
    """Count an agent's own rollouts in a round that have no verdict."""
    rollouts = Rollout.table().c
    query = select(func.count()).where(
        rollouts.alias == alias, rollouts.base == base, rollouts.round == number,
        rollouts.success.is_(None), of_agents(rollouts),
    )  # fmt: skip
    return int(connection.execute(query).scalar_one())


def read_round_patterns(
    connection: Connection, alias: str, base: str, number: int
) -> list[RoundPattern]:
    """Return an agent's failure patterns at the end of a round, the highest priority first."""
    table = PatternRound.table().c
    query = (
        select(table.pattern, table.failures, table.priority, table.status)
        .where(table.alias == alias, table.base == base, table.round == number)
        .order_by(table.priority.desc(), table.pattern)
    )
    return [RoundPattern(*row) for row in connection.execute(query)]


def read_written_tasks(connection: Connection, cycle: str) -> list[WrittenTask]:
    """Return the accepted tasks of a cycle in log order."""
    table = Task.table().c
    query = (
        select(table.task, table.pattern, table.capability, table.mode)
        .where(table.cycle == cycle, table.origin == PROPOSED)
        .order_by(table.offset, table.task)
    )
    return [WrittenTask(*row) for row in connection.execute(query)]


def read_task_kinds(
    connection: Connection, alias: str, tasks: Iterable[str]
) -> dict[str, str | None]:
    """Return task -> kind for those of `tasks` that the agent has."""
    table = Task.table().c
    return {
        row.task: row.capability
        for names in split_ids(tasks)
        for row in connection.execute(
            select(table.task, table.capability).where(table.alias == alias, table.task.in_(names))
        )
    }


def read_job_rollouts(connection: Connection, alias: str, base: str, job: str) -> list[JobRollout]:
    """Return the recorded rollouts of a job, found by its policy names JOB-STEPS."""
    table = Rollout.table().c
    columns = (table.rollout, table.task, table.success, table.reward, table.policy)
    query = select(*columns).where(
        table.alias == alias, table.base == base, table.purpose == "train",
        table.policy.startswith(f"{job}-", autoescape=True),
    )  # fmt: skip
    return [JobRollout(*row) for row in connection.execute(query.order_by(table.rollout))]


def count_passes(
    connection: Connection, alias: str, base: str, purpose: Purpose, tasks: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return task -> (judged, passed) rollouts for one purpose, without tasks that have none."""
    table = Rollout.table().c
    passes = func.sum(case((table.success, 1), else_=0))
    return {
        row.task: (row.n, int(row.passes))
        for names in split_ids(tasks)
        for row in connection.execute(
            select(table.task, func.count().label("n"), passes.label("passes"))
            .where(
                table.task_key.in_(names), table.task.in_(names), table.alias == alias,
                table.base == base, table.purpose == purpose, table.success.is_not(None),
            )
            .group_by(table.task)
        )
    }  # fmt: skip


def read_task_pairs(
    connection: Connection, alias: str, base: str, players: tuple[str, str], until: str
) -> list[TaskPair]:
    """Return the tasks, by name, that both `players` (incumbent, candidate) played for an
    evaluation. Trials up to `until` that both finished count. Tasks by content are left out: in a
    gate they begin after a refused call, and no traffic does."""
    verdicts = {
        name: _read_verdicts(connection, alias, base, name, until)
        for name in dict.fromkeys(players)
    }
    before, after = (verdicts[name] for name in players)
    pairs = []
    for task in sorted(before.keys() & after.keys()):
        kind, first = before[task]
        second = after[task][1]
        trials = sorted(first.keys() & second.keys())
        if trials:
            rates = (mean(verdict[trial] for trial in trials) for verdict in (first, second))
            pairs.append(TaskPair(task, kind, *rates))
    return pairs


def _read_verdicts(
    connection: Connection, alias: str, base: str, policy: str, until: str
) -> dict[str, tuple[str | None, dict[int, bool]]]:
    """Return task -> (kind, trial -> whether it passed)."""
    table = Rollout.table().c
    query = select(table.task, table.capability, table.trial, table.success).where(
        table.alias == alias, table.base == base, table.purpose == "evaluate",
        table.policy == policy, table.time <= until, table.task.is_not(None),
        table.trial.is_not(None), table.success.is_not(None), table.task.not_like("%/=%"),
    )  # fmt: skip
    verdicts: dict[str, tuple[str | None, dict[int, bool]]] = {}
    for row in connection.execute(query.order_by(table.task, table.rollout)):
        verdicts.setdefault(row.task, (row.capability, {}))[1][row.trial] = row.success
    return verdicts


def read_successors(connection: Connection, alias: str, base: str, folder: str) -> list[int]:
    """Return the numbers of the cycles whose jobs continued a folder's adapter, in log order."""
    jobs, cycles = Job.table().c, Cycle.table().c
    query = (
        select(cycles.number, jobs.spec)
        .join_from(Job.table(), Cycle.table(), jobs.cycle == cycles.cycle)
        .where(
            jobs.alias == alias, jobs.base == base,
            # Few specs name the folder: only those are parsed.
            jobs.spec.contains(json.dumps(folder), autoescape=True),
        )
        .order_by(jobs.offset, jobs.job)
    )  # fmt: skip
    rows = connection.execute(query)
    return [row.number for row in rows if json.loads(row.spec)["parent"] == folder]
