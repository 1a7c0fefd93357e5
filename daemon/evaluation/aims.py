"""The training aims of a candidate: its jobs, and the tasks that their cycle wrote for them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from consumers.reads import learning, serving, succession
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow

if TYPE_CHECKING:
    from sqlalchemy import Connection


def list_jobs(connection: "Connection", row: AdapterRow) -> list[JobRow]:
    """Return the job that made a candidate, or the jobs of its cycle that made its members."""
    if row.has_files:
        job = None if row.job is None else learning.job(connection, row.job)
        return [] if job is None else [job]
    cycle = learning.find_version_cycle(connection, row.adapter)
    jobs = [] if cycle is None else learning.list_cycle_jobs(connection, cycle)
    left = [(job, serving.read_job_adapter(connection, job.job)) for job in jobs]
    members = row.members.items()
    return [job for job, made in left if made is not None and (job.branch, made.adapter) in members]


def list_aims(connection: "Connection", jobs: Sequence[JobRow]) -> list[tuple[str, str]]:
    """Return (pattern, task id) of the tasks that the cycle wrote for these jobs. For a branch,
    only its patterns' tasks; without any it retrains a member and has its own targets."""
    aims: dict[tuple[str, str], None] = {}
    for job in jobs:
        if job.cycle is None:
            continue
        written = succession.list_written_tasks(connection, job.cycle)
        if job.branch is not None:
            targets = job.spec.target_pools
            own = {task for pool in targets for task in pool.all_tasks}
            patterns = {pattern for pattern, task in written if task in own}
            written = [item for item in written if item[0] in patterns] or [
                (pool.name, task)
                for pool in targets
                if pool.has_verdict_reward
                for task in pool.all_tasks
            ]
        aims |= dict.fromkeys(written)
    return list(aims)
