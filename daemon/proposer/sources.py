"""Read from the tables the failed rollouts that new tasks follow, and the existing tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.reads import learning
from consumers.reads.evidence import last_outcomes, task_rates, tasks_of
from daemon.proposer.buffer import WINDOW, ModePool, PoolEntry
from daemon.proposer.candidate import FIRST_HELD_OUT, PriorTask, Source
from daemon.proposer.siblings import Request, find_siblings
from daemon.proposer.verification import seed_of
from envs.environment import Environment, UnknownTask
from envs.task import GENERATED, BadDefinition, is_content_id, read_body
from events.learning import Directive
from events.rollouts import Task

if TYPE_CHECKING:
    from sqlalchemy import Connection

_MOST_PASSED: Final = 4096
"""Most passed tasks of the traffic that are compared for siblings."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Tasks of an agent's own traffic in a round, which a job may draw."""

    tasks: Sequence[str]
    passed: Sequence[Request]
    """The first `_MOST_PASSED` tasks whose rollouts all passed."""


def sources(
    connection: "Connection", environment: Environment, directive: Directive
) -> dict[str, list[Source]]:
    """Return pattern -> the examples of its quota whose tasks the environment knows."""
    rollouts = [rollout for quota in directive.quotas for rollout in quota.examples]
    tasks = tasks_of(connection, rollouts)
    by_pattern: dict[str, list[Source]] = {}
    for quota in directive.quotas:
        by_pattern[quota.pattern] = []
        for rollout in quota.examples:
            if rollout not in tasks:
                continue
            try:
                task = environment.task(tasks[rollout])
            except UnknownTask:
                # The task is of another environment, or of a benchmark that is not installed.
                continue
            by_pattern[quota.pattern].append(Source(rollout, task))
    return by_pattern


def read_pool_entries(
    connection: "Connection",
    alias: str,
    base: str,
    *,
    repairs: Mapping[str, ModePool] | None = None,
    sealed: bool = False,
) -> list[PoolEntry]:
    """Return this agent's active written tasks, with their last rollouts on this base; a task
    outlives its base. `repairs` is task -> its own pool. If it is None, tasks that cycles wrote by
    the mode `repair` are left out, and an operator's are like others. `sealed` tells whether jobs
    can decrypt persons' tasks."""
    left_out = set(learning.read_inactive_tasks(connection, alias))
    if not sealed:
        left_out |= learning.read_sealed_tasks(connection, alias).keys()
    if repairs is None:
        left_out |= learning.read_repair_tasks(connection, alias)
    written = {
        task: pattern
        for task, pattern in learning.patterns_of(connection, alias).items()
        if task not in left_out
    }
    outcomes = last_outcomes(connection, alias, base, list(written), WINDOW)
    own_pools = repairs or {}
    return [
        PoolEntry(task, pattern, *outcomes.get(task, (0, 0)), own_pool=own_pools.get(task))
        for task, pattern in written.items()
    ]


def read_traffic(
    connection: "Connection", environment: Environment, alias: str, base: str, number: int
) -> Traffic:
    """Return the tasks of a round's own traffic: generated tasks of this environment. Left out are
    tasks written for a pattern, retired tasks, and seeds of reports and gates."""
    written = learning.patterns_of(connection, alias)
    inactive = learning.read_inactive_tasks(connection, alias)
    ids: list[str] = []
    passed: list[Request] = []
    for rate in task_rates(connection, alias, base, number):
        try:
            task = environment.task(rate.task)
        except UnknownTask:
            continue
        kept = (seed_of(task.id) or 0) >= FIRST_HELD_OUT
        if task.split != GENERATED or task.id in written or task.id in inactive or kept:
            continue
        ids.append(task.id)
        if rate.passes == rate.attempts and len(passed) < _MOST_PASSED:
            passed.append(Request.of(task, environment.writes))
    return Traffic(ids, passed)


def find_traffic_siblings(
    environment: Environment,
    directive: Directive,
    followed: Mapping[str, Sequence[Source]],
    traffic: Traffic,
) -> dict[str, float]:
    """Return passed task of the traffic -> weight, for those near a directive's failed tasks
    (siblings.py). A pattern's failed tasks share the weight of its quota."""
    failed: dict[Request, float] = {}
    for quota in directive.quotas:
        examples = followed.get(quota.pattern, ())
        for source in examples:
            request = Request.of(source.task, environment.writes)
            failed[request] = failed.get(request, 0.0) + quota.tasks / len(examples)
    return find_siblings(failed, traffic.passed)


def find_unplayable(environment: Environment, tasks: Sequence[str]) -> dict[str, str]:
    """Return task -> why this environment does not know it, for tasks with an id by content."""
    reasons = {}
    for task in filter(is_content_id, tasks):
        try:
            environment.task(task)
        except UnknownTask as error:
            reasons[task] = str(error)
    return reasons


def filter_known(environment: Environment, tasks: Sequence[str]) -> list[str]:
    """Return those tasks that this environment knows; it cannot make the others again."""
    known = []
    for name in tasks:
        try:
            environment.task(name)
        except UnknownTask:
            continue
        known.append(name)
    return known


def read_prior_tasks(connection: "Connection", alias: str, cycle: str) -> list[PriorTask]:
    """Return this agent's tasks of earlier cycles; the cycle's own must not keep a redo from
    writing them. Tasks by content have their prefix, to recognize the lesson of another rollout; a
    person's have only the id, which repeats."""
    prior: list[PriorTask] = []
    by_content: list[Task] = []
    for row in learning.tasks_of(connection, alias):
        if row.cycle == cycle:
            continue
        if is_content_id(row.task.id):
            by_content.append(row.task)
        else:
            prior.append(PriorTask.from_record(row.task.gold_actions, row.task.instruction))
    # After all rows are read: another query must not come between them.
    return prior + [_read_prior_task(connection, task) for task in by_content]


def _read_prior_task(connection: "Connection", task: Task) -> PriorTask:
    body = learning.read_task_body(connection, task.id)
    if body is not None:
        try:
            return PriorTask.of(read_body(task.id, body))
        except BadDefinition:
            pass  # the body is of another version, so only the record can be compared
    return PriorTask.from_record(task.gold_actions, task.instruction)
