"""Typed reads of what a finished cycle rests on, from which its gain is accounted for
(daemon/cycle/account).

A caller reads within one `database.read_transaction`, which is one moment of the tables. Rows are
in a fixed order or are counts, so equal tables give equal answers, before and after a rebuild.
Kinds are the environment's labels: they are for reports, and no diagnosis reads them here. Not
covered: sessions of a canary (outcomes/canary.py).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Final

from sqlalchemy import Connection, case, func, literal, select

from consumers.diagnosis.labelled import label_columns, rollouts_with_repairs
from consumers.diagnosis.round_counts import of_agents
from consumers.folds.cycles import PROPOSED
from consumers.tables import Cycle, Job, PatternRound, Rollout, Task
from events.learning import Mode
from events.rollouts import Purpose

_IDS_PER_QUERY: Final = 1000


@dataclass(frozen=True, slots=True)
class TrafficCount:
    """Judged rollouts of a round's traffic that have one kind, pattern and verdict."""

    kind: str | None
    """None where the rollout names no task, or its task no kind."""
    pattern: str | None
    """`category|pivot` of a failure; None for one that passed, and where no rule ever labelled
    it."""
    success: bool
    rollouts: int


@dataclass(frozen=True, slots=True)
class RoundPattern:
    """A failure pattern as a round left it."""

    pattern: str
    failures: int
    """Deduplicated ones, of this round."""
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
    """A rollout that a job played and that was recorded."""

    rollout: str
    task: str | None
    success: bool | None
    reward: float | None
    policy: str


@dataclass(frozen=True, slots=True)
class TaskPair:
    """A task that a candidate and its incumbent both played."""

    task: str
    kind: str | None
    incumbent: float
    """Share of the trials that passed; so is the next."""
    candidate: float


def read_round_traffic(
    connection: Connection, alias: str, base: str, number: int
) -> list[TrafficCount]:
    """Count the judged rollouts of the agent's own traffic in a round, of policies that answered
    when it was closed. Each rollout counts, as in the agent's pass^1: nothing is deduplicated."""
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
    """Count the rollouts of the agent's own traffic in a round that have no verdict."""
    rollouts = Rollout.table().c
    query = select(func.count()).where(
        rollouts.alias == alias, rollouts.base == base, rollouts.round == number,
        rollouts.success.is_(None), of_agents(rollouts),
    )  # fmt: skip
    return int(connection.execute(query).scalar_one())


def read_round_patterns(
    connection: Connection, alias: str, base: str, number: int
) -> list[RoundPattern]:
    """The failure patterns of an agent as a round left them, the highest priority first."""
    table = PatternRound.table().c
    query = (
        select(table.pattern, table.failures, table.priority, table.status)
        .where(table.alias == alias, table.base == base, table.round == number)
        .order_by(table.priority.desc(), table.pattern)
    )
    return [RoundPattern(*row) for row in connection.execute(query)]


def read_written_tasks(connection: Connection, cycle: str) -> list[WrittenTask]:
    """The tasks that a cycle wrote and that passed their checks, in log order."""
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
    """Task -> its kind, of those that the agent's tables know."""
    table = Task.table().c
    return {
        row.task: row.capability
        for names in _chunks(tasks)
        for row in connection.execute(
            select(table.task, table.capability).where(table.alias == alias, table.task.in_(names))
        )
    }


def read_job_rollouts(connection: Connection, alias: str, base: str, job: str) -> list[JobRollout]:
    """The recorded rollouts of a job: a job calls its policy versions JOB-STEPS."""
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
    """Task -> judged rollouts for one purpose, and passed ones among them, of the tasks that have
    any."""
    table = Rollout.table().c
    passes = func.sum(case((table.success, 1), else_=0))
    return {
        row.task: (row.n, int(row.passes))
        for names in _chunks(tasks)
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
    """The tasks that both `players`, incumbent and candidate (names of policies), played for an
    evaluation up to a time, with the trials that both finished; by name. Tasks by content are left
    out: those of a gate begin behind a refused call, and no traffic does."""
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
    """Task -> its kind, and the verdict of each trial that was judged."""
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
    """The numbers of the cycles whose jobs trained on from the adapter in a folder, in log
    order."""
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


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the names without repetition, as many at once as a statement may hold."""
    unique = list(dict.fromkeys(names))
    for start in range(0, len(unique), _IDS_PER_QUERY):
        yield unique[start : start + _IDS_PER_QUERY]
