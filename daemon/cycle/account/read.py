"""Read a finished cycle's facts, and account for it, within one `database.read_transaction`.

It reads only tables, so the result is the same on every machine and after a rebuild. Not covered:
what a job reported while it ran, such as the KL divergence of its updates.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from consumers.reads import cycle_account, learning, serving, succession
from consumers.reads.cycle_state import read_cycle_state
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.outcomes.canary import (
    canary_share,
    find_newest_rules,
    follows_rules,
    in_order,
    read_session_verdicts,
)
from consumers.reads.serving import AdapterRow
from daemon.cycle.account.account import CycleAccount, build_account
from daemon.cycle.account.facts import CanaryFacts, CycleFacts, PassCount, SampledRollout
from daemon.cycle.cost import minutes_between
from daemon.solver.journal import rollout_id
from events.jobs import TaskPool
from events.lifecycle import State

if TYPE_CHECKING:
    from sqlalchemy import Connection


def read_account(connection: "Connection", row: CycleRow) -> CycleAccount | None:
    """Return a cycle's account; None if it is open, or if its events have no times."""
    if row.outcome is None or row.started is None or row.ended is None:
        return None
    return build_account(read_facts(connection, row))


def read_facts(connection: "Connection", row: CycleRow) -> CycleFacts:
    """Read the facts about a finished cycle from the tables."""
    assert row.ended is not None, "only a finished cycle with times has facts"
    pair = (row.alias, row.base)
    jobs = _list_branch_jobs(connection, row.cycle)
    taught = [item for item in jobs if item.branch is not None]
    job = None if row.job is None else learning.job(connection, row.job)
    adapter = read_cycle_state(connection, row).adapter
    parent = None if job is None else _find_parent(connection, job)
    sampled, unplaced = _read_sampled(connection, taught or ([] if job is None else [job]))
    job = combine_jobs(taught) if taught else job
    written = cycle_account.read_written_tasks(connection, row.cycle)
    names = [task.task for task in written]
    rejections: Counter[str] = Counter(
        item.check for item in learning.rejections_of(connection, row.cycle)
    )
    probes = cycle_account.count_passes(connection, *pair, "probe", names).values()
    number = row.round
    return CycleFacts(
        row=row,
        traffic=()
        if number is None
        else tuple(cycle_account.read_round_traffic(connection, *pair, number)),
        unjudged=0 if number is None else cycle_account.count_unjudged(connection, *pair, number),
        patterns=()
        if number is None
        else tuple(cycle_account.read_round_patterns(connection, *pair, number)),
        written=tuple(written),
        rejections=rejections,
        probes=PassCount(sum(count for count, _ in probes), sum(passed for _, passed in probes)),
        job=job,
        jobs=tuple(jobs),
        parent=parent,
        kinds=_read_kinds(connection, row.alias, job, names),
        sampled=tuple(sampled),
        unplaced=unplaced,
        adapter=adapter,
        pairs=() if adapter is None else _read_pairs(connection, adapter, row.ended),
        canary=None if adapter is None else _read_canary(connection, row, adapter),
        successors=()
        if adapter is None
        else tuple(cycle_account.read_successors(connection, *pair, adapter.path)),
    )


def _list_branch_jobs(connection: "Connection", cycle: str) -> list[JobRow]:
    """Return the jobs of a cycle's branches and of its chooser; [] for a cycle with one job."""
    jobs = learning.list_cycle_jobs(connection, cycle)
    return jobs if any(job.branch is not None for job in jobs) else []


def _find_parent(connection: "Connection", job: JobRow) -> str | None:
    """Return the adapter that a job trained on from; None for the base or an unknown folder."""
    if job.spec.parent is None:
        return None
    row = succession.find_adapter_at(connection, job.spec.parent)
    return None if row is None else row.adapter


def _read_kinds(
    connection: "Connection", alias: str, job: JobRow | None, written: list[str]
) -> dict[str, str | None]:
    pools = () if job is None else job.spec.pools
    tasks = [task for pool in pools for task in pool.all_tasks]
    return cycle_account.read_task_kinds(connection, alias, tasks + written)


def combine_jobs(jobs: Sequence[JobRow]) -> JobRow:
    """Combine the jobs of a cycle's branches to one, with all pools and counts added up. Its
    outcome is "trained" if a job's is."""
    first = jobs[0]
    shares = 1 / len(jobs)
    pools: dict[str, TaskPool] = {}
    for job in jobs:
        for pool in job.spec.pools:
            known = pools.get(pool.name)
            share = pool.share * shares + (0.0 if known is None else known.share)
            tasks = (*(() if known is None else known.tasks), *pool.tasks)
            update = {"share": share, "tasks": tuple(dict.fromkeys(tasks))}
            pools[pool.name] = pool.model_copy(update=update)
    budget = sum(job.spec.sampler.rollouts for job in jobs)
    spec = first.spec.model_copy(
        update={
            "pools": tuple(pools.values()),
            "sampler": first.spec.sampler.model_copy(update={"rollouts": budget}),
        }
    )
    last = next((job for job in jobs if job.outcome == "trained"), first)
    return replace(
        first,
        spec=spec,
        outcome=last.outcome,
        reason="; ".join(f"{job.branch}: {job.reason}" for job in jobs if job.reason),
        steps=sum(job.steps or 0 for job in jobs),
        rollouts=sum(job.rollouts or 0 for job in jobs),
    )


def _read_sampled(
    connection: "Connection", jobs: Sequence[JobRow]
) -> tuple[list[SampledRollout], int]:
    """Return the rollouts that the jobs recorded, each job's in sampling order, and how many have
    no known place. Groups of later jobs are renumbered."""
    sampled: list[SampledRollout] = []
    unplaced, first = 0, 0
    for job in jobs:
        own, unknown = _read_sampled_by(connection, job)
        sampled += [replace(item, group=item.group + first) for item in own]
        unplaced, first = unplaced + unknown, first + job.spec.sampler.groups
    return sampled, unplaced


def _read_sampled_by(connection: "Connection", job: JobRow) -> tuple[list[SampledRollout], int]:
    """Return a job's recorded rollouts in sampling order, and how many have no known place."""
    rows = cycle_account.read_job_rollouts(connection, job.alias, job.base, job.job)
    sampler = job.spec.sampler
    # Reference trajectories use up the number of a batch and are not recorded.
    batches = ceil(len(rows) / job.spec.batch) + 1
    places = {
        rollout_id(job.job, f"{job.job}/{batch}/{group}/{member}"): (batch, group, member)
        for batch in range(batches)
        for group in range(sampler.groups)
        for member in range(sampler.size)
    }
    first = f"{job.job}-0"
    placed = sorted((places[row.rollout], row) for row in rows if row.rollout in places)
    sampled = [
        SampledRollout(batch, group, row.task, row.success, row.reward, row.policy == first)
        for (batch, group, _), row in placed
        if row.task is not None
    ]
    return sampled, len(rows) - len(sampled)


def _read_pairs(
    connection: "Connection", adapter: AdapterRow, until: str
) -> tuple[cycle_account.TaskPair, ...]:
    if adapter.gate is None:
        return ()
    players = (adapter.incumbent or adapter.base, adapter.adapter)
    return tuple(
        cycle_account.read_task_pairs(connection, adapter.alias, adapter.base, players, until)
    )


def _read_canary(
    connection: "Connection", row: CycleRow, adapter: AdapterRow
) -> CanaryFacts | None:
    assert row.ended is not None, "only a finished cycle with times has facts"
    since = next(
        (
            step.time
            for step in serving.adapter_steps(connection, adapter.adapter)
            if step.state is State.CANARY and step.refused is None and step.time is not None
        ),
        None,
    )
    if since is None or since > row.ended:
        return None
    verdicts = [
        verdict
        for verdict in read_session_verdicts(connection, row.alias, row.base, since)
        if (verdict.time or "") <= row.ended
    ]
    newest = find_newest_rules(verdicts)
    verdicts = [verdict for verdict in verdicts if follows_rules(verdict, newest)]
    arms = {name: [verdict.success for verdict in verdicts if verdict.adapter == name]
            for name in (adapter.adapter, adapter.incumbent)}  # fmt: skip
    players = adapter.adapter, adapter.incumbent or adapter.base
    drawn = (canary_share(item.shares, *players) for item in sorted(verdicts, key=in_order))
    return CanaryFacts(
        canary=_count_arm(arms[adapter.adapter]),
        incumbent=_count_arm(arms[adapter.incumbent]),
        shares=tuple(dict.fromkeys(share for share in drawn if share is not None)),
        minutes=minutes_between(since, row.ended),
    )


def _count_arm(verdicts: list[bool]) -> PassCount:
    return PassCount(len(verdicts), sum(verdicts))
