"""The folds of the loop: leaders and cycles.

Several processes may believe that they lead, and each may repeat a step after it was killed. The
folds settle which decisions count, the same in every replay:

    epoch     a decision that carries another epoch than the current one is ignored as a whole; it
              uses up no id, so the next leader's redo of the same step counts
    first     of steps that happen once (a cycle's round, directive, job and end; a job's end and
              each of its rounds) the first event counts, and every later one is a redo
    one       a cycle starts only if its agent has no open cycle and its number is the next one


Events without an epoch (a person's, an import's, the role `work`'s) always count. Guarantee: folds
read only their event and tables that `learning` alone fills, so every log gives the same rows.
"""

import json
from typing import Any, Final

from sqlalchemy import and_, func, select

from consumers.batch import Batch, Row
from consumers.folds.record import FoldInput
from consumers.folds.task_states import name_plan, reject_task
from consumers.tables import Cycle, Job, JobRound, Leader, ProjectionTable, Rejection, Task
from events.canonical import exact_json
from events.learning import (
    CycleEnded,
    CycleStarted,
    DirectiveWritten,
    JobEnded,
    JobRequested,
    LeaderClaimed,
    PatternsDiagnosed,
    PoolsShifted,
    TaskProposed,
    TaskRejected,
)
from events.learning import JobRound as JobRoundName
from events.streams import LEARNING

LEADER: Final = "leader"
"""Primary key of the only row in the table `leaders`."""

PROPOSED: Final = "proposed"
"""Origin of a task that was written for a pattern."""


def is_stale_epoch(folding: FoldInput, batch: Batch) -> bool:
    """Return whether an event does not count, because its epoch is not the current leader's."""
    epoch = folding.event.envelope.epoch
    if folding.record.stream != LEARNING.name or epoch is None:
        return False
    return not isinstance(folding.event.data, LeaderClaimed) and epoch != _epoch(batch)


def fold_leader_claim(folding: FoldInput, data: LeaderClaimed, batch: Batch) -> None:
    """Store a claim to lead if its epoch is the next one. Ignore any other claim."""
    if data.epoch != _epoch(batch) + 1:
        return
    batch.stage(
        Leader,
        {
            "name": LEADER,
            "epoch": data.epoch,
            "holder": data.holder,
            "since": folding.time,
            **folding.place(),
        },
    )


def fold_cycle_start(folding: FoldInput, data: CycleStarted, batch: Batch) -> None:
    """Store a new open cycle; ignore a redundant event."""
    if _is_redundant(data, batch):
        return
    named = {
        "cycle", "alias", "base", "number", "environment", "trigger", "reason", "slot", "acted",
    }  # fmt: skip
    batch.stage(
        Cycle,
        {
            **Cycle.blank(),
            **data.model_dump(include=named),
            "position": exact_json(data.position),
            "accepted": 0,
            "rejected": 0,
            "event": folding.event.envelope.id,
            "started": folding.time,
            **folding.place(),
        },
    )


def awaits_round(data: PatternsDiagnosed, batch: Batch) -> bool:
    """Return whether an event may close a round: without a cycle, or for one that has none yet."""
    if data.cycle is None:
        return True
    row = find_open_cycle(batch, data.cycle)
    return row is not None and row["round"] is None


def store_cycle_round(
    folding: FoldInput, data: PatternsDiagnosed, number: int, batch: Batch
) -> None:
    """Store a round's number with its cycle. It is the last round's number if nothing was new."""
    row = None if data.cycle is None else find_open_cycle(batch, data.cycle)
    if row is not None:
        batch.stage(Cycle, {**row, "round": number, "diagnosed": folding.time})


def fold_directive(folding: FoldInput, data: DirectiveWritten, batch: Batch) -> None:
    """Store the directive of a cycle, or of a new round of its job if the event names one."""
    row = find_open_cycle(batch, data.cycle)
    if data.job_round is not None:
        if row is not None:
            _begin_job_round(folding, data, data.job_round, batch)
        return
    if row is None or row["directive"] is not None:
        return
    values = data.model_dump(mode="json", include={"directive", "findings"})
    batch.stage(
        Cycle,
        {
            **row,
            "directive": exact_json(values["directive"]),
            "findings": exact_json(values["findings"]),
            "summary": data.summary,
            "analyzer": data.analyzer,
            "trouble": data.trouble,
            "directed": folding.time,
        },
    )


def _begin_job_round(
    folding: FoldInput, data: DirectiveWritten, name: JobRoundName, batch: Batch
) -> None:
    jobs = Job.table().c
    of_cycle = _exists(batch, Job, (jobs.job == name.job) & (jobs.cycle == data.cycle))
    if not of_cycle or _job_round(batch, name) is not None:
        return
    batch.stage(
        JobRound,
        {
            **name.model_dump(),
            "cycle": data.cycle,
            "directive": exact_json(data.directive.model_dump(mode="json")),
            "tasks": "[]",
            "rejected": 0,
            **dict.fromkeys(("rollouts", "failures", "unread", "pools")),
            "time": folding.time,
            **folding.place(),
        },
    )


def fold_pool_shift(folding: FoldInput, data: PoolsShifted, batch: Batch) -> None:
    """Close a round of a job: store its counts, and the task pools that the job draws from next."""
    row = _job_round(batch, data.job_round)
    if row is None or row["pools"] is not None:
        return
    pools = [pool.model_dump(mode="json") for pool in data.pools]
    counts = data.model_dump(include={"rollouts", "failures", "unread"})
    batch.stage(JobRound, {**row, **counts, "pools": exact_json(pools)})


def accepts_task(folding: FoldInput, data: TaskProposed, batch: Batch) -> bool:
    """Return whether a proposed task counts: it is no repetition and its cycle, if any, is open.
    Add it to the counts of its cycle and job round unless it was proposed before."""
    tasks = Task.table().c
    if _exists(batch, Task, tasks.event == folding.event.envelope.id):
        return False
    if data.cycle is None:
        return True
    row = find_open_cycle(batch, data.cycle)
    if row is None:
        return False
    same = (tasks.alias == data.alias) & (tasks.task == data.task.id) & (tasks.origin == PROPOSED)
    if not _exists(batch, Task, same):
        batch.stage(Cycle, {**row, "accepted": row["accepted"] + 1})
        if (round_row := _job_round(batch, data.job_round)) is not None:
            tasks_so_far = [*json.loads(round_row["tasks"]), data.task.id]
            batch.stage(JobRound, {**round_row, "tasks": exact_json(tasks_so_far)})
    return True


def fold_task_rejection(folding: FoldInput, data: TaskRejected, batch: Batch) -> bool:
    """Store a rejected try, or reject a buffered task that cannot be played any more. Return
    whether it is a new rejected try of an open cycle."""
    if data.task is not None:
        reject_task(folding, data.alias, data.task, data.reason, batch)
        return False
    assert data.cycle is not None, "the event names a task or a cycle"
    event = folding.event.envelope.id
    row = find_open_cycle(batch, data.cycle)
    if row is None or _exists(batch, Rejection, Rejection.table().c.event == event):
        return False
    batch.stage(Cycle, {**row, "rejected": row["rejected"] + 1})
    if (round_row := _job_round(batch, data.job_round)) is not None:
        batch.stage(JobRound, {**round_row, "rejected": round_row["rejected"] + 1})
    columns = {**data.model_dump(exclude={"job_round", "task", "plan"}), **name_plan(data.plan)}
    batch.stage(
        Rejection,
        {**columns, "event": event, "time": folding.time, **folding.place()},
    )
    return True


def fold_job_request(folding: FoldInput, data: JobRequested, batch: Batch) -> None:
    """Store a requested job. A cycle has one job, or one job for each of its branches."""
    if _exists(batch, Job, Job.table().c.job == data.job):
        return
    if data.cycle is not None:
        row = find_open_cycle(batch, data.cycle)
        if row is None or not _awaits_job(data, row, batch):
            return
        if row["job"] is None:
            batch.stage(Cycle, {**row, "job": data.job})
    batch.stage(
        Job,
        {
            **Job.blank(),
            **data.model_dump(include={"job", "cycle", "alias", "base", "capability", "minutes"}),
            **data.branch_columns,
            "spec": exact_json(data.spec.model_dump(mode="json")),
            "event": folding.event.envelope.id,
            "requested": folding.time,
            **folding.place(),
        },
    )


def _awaits_job(data: JobRequested, cycle: Row, batch: Batch) -> bool:
    """Return whether an open cycle takes a job: its first, or the first of another branch."""
    if cycle["job"] is None:
        return True
    jobs = Job.table().c
    of_cycle = jobs.cycle == data.cycle
    without_branch = and_(*(jobs[name].is_(None) for name in data.branch_columns))
    if not any(data.branch_columns.values()) or _exists(batch, Job, of_cycle & without_branch):
        return False
    same = (jobs[name].is_not_distinct_from(value) for name, value in data.branch_columns.items())
    return not _exists(batch, Job, and_(of_cycle, *same))


def fold_job_end(folding: FoldInput, data: JobEnded, batch: Batch) -> None:
    """Store the outcome of a job; only its first end counts."""
    row = find_row(batch, Job, Job.table().c.job == data.job)
    if row is not None and row["outcome"] is None:
        batch.stage(Job, {**row, **data.model_dump(), "ended": folding.time})


def fold_cycle_end(folding: FoldInput, data: CycleEnded, batch: Batch) -> None:
    """Store the outcome of an open cycle; only its first end counts."""
    row = find_open_cycle(batch, data.cycle)
    if row is not None:
        how: Row = {"outcome": data.outcome, "ended_because": data.reason, "ended": folding.time}
        batch.stage(Cycle, {**row, **how})


def _is_redundant(data: CycleStarted, batch: Batch) -> bool:
    """Return whether the agent has an open cycle, this cycle is known, or its number is wrong."""
    cycles = Cycle.table().c
    is_open = (cycles.alias == data.alias) & cycles.outcome.is_(None)
    if _exists(batch, Cycle, is_open | (cycles.cycle == data.cycle)):
        return True
    last = select(func.max(cycles.number)).where(
        cycles.alias == data.alias, cycles.base == data.base
    )
    return data.number != (batch.connection.execute(last).scalar() or 0) + 1


# Reads of the tables: every event of `learning` is flushed before the next one is folded.


def _epoch(batch: Batch) -> int:
    """Return the current epoch; 0 before the first leader."""
    epoch: int | None = batch.connection.execute(select(Leader.table().c.epoch)).scalar()
    return epoch or 0


def find_open_cycle(batch: Batch, cycle: str) -> Row | None:
    """Return the row of an open cycle; None if it is over or unknown."""
    cycles = Cycle.table().c
    return find_row(batch, Cycle, (cycles.cycle == cycle) & cycles.outcome.is_(None))


def find_cycle(batch: Batch, cycle: str) -> Row | None:
    """Return the row of a cycle; None if it is unknown."""
    return find_row(batch, Cycle, Cycle.table().c.cycle == cycle)


def find_row(batch: Batch, table: type[ProjectionTable], where: Any) -> Row | None:
    """Return the first row of a table for which the condition `where` holds, or None."""
    row = batch.connection.execute(select(table.table()).where(where)).mappings().first()
    return None if row is None else dict(row)


def _job_round(batch: Batch, name: JobRoundName | None) -> Row | None:
    if name is None:
        return None
    rounds = JobRound.table().c
    return find_row(batch, JobRound, (rounds.job == name.job) & (rounds.number == name.number))


def _exists(batch: Batch, table: type[ProjectionTable], where: Any) -> bool:
    return find_row(batch, table, where) is not None
