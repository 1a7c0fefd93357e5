"""What the Proposer reads of the tables: whom to follow, and what is there already."""

from typing import TYPE_CHECKING

from consumers.evidence import proposed_tasks, tasks_of
from daemon.proposer.examined import Known
from daemon.proposer.proposing import Source
from envs.environment import Environment, UnknownTask
from events.learning import Directive

if TYPE_CHECKING:
    from sqlalchemy import Connection


def sources(
    connection: "Connection", environment: Environment, directive: Directive
) -> dict[str, list[Source]]:
    """Pattern -> the examples of its quota whose task the environment knows."""
    rollouts = [rollout for quota in directive.quotas for rollout in quota.examples]
    tasks = tasks_of(connection, rollouts)
    found: dict[str, list[Source]] = {}
    for quota in directive.quotas:
        found[quota.pattern] = []
        for rollout in quota.examples:
            if rollout not in tasks:
                continue
            try:
                task = environment.task(tasks[rollout])
            except UnknownTask:
                # Of another environment, or of a benchmark that is not there: not to be followed.
                continue
            found[quota.pattern].append(Source(rollout, task))
    return found


def known(connection: "Connection", alias: str, base: str, cycle: str) -> list[Known]:
    """The tasks that were written for this agent before this cycle: what it has written itself must
    not keep a redo from writing the same."""
    return [
        Known.recorded(task.gold, task.instruction)
        for task in proposed_tasks(connection, alias, base)
        if task.cycle != cycle
    ]
