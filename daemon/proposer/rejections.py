"""Build a cycle's rejections of unplayable tasks, and the entries of its new tasks."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from daemon.proposer.buffer import PoolEntry
from daemon.proposer.task_writer import TaskWriter
from events.envelope import derive_id
from events.learning import Decision, TaskProposed, TaskRejected
from events.rollouts import clip_reason

if TYPE_CHECKING:
    from consumers.reads.learning import CycleRow
    from envs.environment import Environment


def list_new_entries(
    new: Sequence[TaskProposed], written: Sequence[PoolEntry], writers: Sequence[TaskWriter]
) -> list[PoolEntry]:
    """Return the new tasks as pool entries, leaving out tasks that are already in `written`."""
    before = {entry.task for entry in written}
    own_pools = {str(writer.mode): writer.pool for writer in writers}
    return [
        PoolEntry(entry.task.id, entry.pattern, own_pool=own_pools.get(entry.mode or ""))
        for entry in new
        if entry.task.id not in before
    ]


def reject_bodies(
    environment: "Environment",
    cycle: "CycleRow",
    entries: Sequence[PoolEntry],
    reasons: Mapping[str, str],
    sealed: Collection[str],
) -> dict[str, Decision]:
    """Return event id -> rejection of a task that cannot be played. Tasks of the agent's former
    environment, and encrypted ones, whose key may be elsewhere, get no rejection."""
    return {
        derive_id("task rejected", cycle.cycle, entry.task): TaskRejected(
            cycle=cycle.cycle,
            alias=cycle.alias,
            base=cycle.base,
            pattern=entry.pattern,
            check="schema",
            reason=clip_reason(reasons[entry.task]),
            task=entry.task,
        )
        for entry in entries
        if entry.task in reasons
        and entry.task not in sealed
        and entry.task.startswith(f"{environment.name}/")
    }


def describe_rejections(decisions: Sequence[Decision]) -> str:
    """Return a text that says why a cycle has no task: the reasons of its rejections."""
    rejected = [data for data in decisions if isinstance(data, TaskRejected) and data.task is None]
    reasons = dict.fromkeys(f"{rejection.check}: {rejection.reason}" for rejection in rejected)
    return f"no task passed its checks ({len(rejected)} were rejected): {'; '.join(reasons)}"[:1000]
