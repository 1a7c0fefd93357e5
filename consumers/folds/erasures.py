"""Erased persons: the fold of PersonErased, and reads of their keys, sealed tasks and dependent
adapters. The fold changes only `erasures`: a person's content is sealed in the log and never opened
by a fold (diagnosis/labels.py)."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, or_, select

from consumers.batch import Batch
from consumers.folds.adapters import has_members, read_compositions
from consumers.folds.record import FoldInput
from consumers.folds.task_states import ACTIVE
from consumers.rows import split_ids
from consumers.tables import Adapter, Cycle, Erasure, Job, Rollout, Task, TaskBody, TaskState
from events.learning import PersonErased


def fold_person_erasure(folding: FoldInput, data: PersonErased, batch: Batch) -> None:
    """Store that a person's key is destroyed; a repeated event changes nothing."""
    batch.stage(
        Erasure,
        {
            "keyid": data.keyid,
            "events": data.events,
            "rollouts": data.rollouts,
            "time": folding.time,
            **folding.place(),
        },
    )


def read_erasure_keys(connection: Connection) -> frozenset[str]:
    """Return the ids of the keys of erased persons."""
    return frozenset(connection.execute(select(Erasure.table().c.keyid)).scalars())


@dataclass(frozen=True, slots=True)
class SealedTask:
    """A task of an agent's buffer that was made from a person's session."""

    alias: str
    task: str
    keyid: str
    is_live: bool
    """Whether new jobs may draw the task."""


def find_sealed_tasks(connection: Connection, keyids: Collection[str]) -> list[SealedTask]:
    """Return the tasks that are sealed with any of these keys, by agent and id."""
    tasks, bodies, states = Task.table().c, TaskBody.table().c, TaskState.table().c
    of_both = (states.alias == tasks.alias) & (states.task == tasks.task)
    query = (
        select(tasks.alias, tasks.task, bodies.keyid, states.state)
        .select_from(
            TaskBody.table()
            .join(Task.table(), tasks.task == bodies.task)
            .outerjoin(TaskState.table(), of_both)
        )
        .where(bodies.keyid.is_not(None))
        .order_by(tasks.alias, tasks.task)
    )
    return [
        SealedTask(row.alias, row.task, row.keyid, row.state in (None, ACTIVE))
        for row in connection.execute(query)
        if row.keyid in keyids
    ]


@dataclass(frozen=True, slots=True)
class AdapterDependence:
    """An adapter whose training depended on the rollouts that were asked about."""

    adapter: str
    state: str
    job: str | None
    cycle: str | None
    because: tuple[str, ...]
    """Reasons. `counted`: its cycle's round judged such a rollout. `example`: its directive names
    one. `task`: a task was written after one. `drawn`: its job drew or showed such a task.
    `parent`: it continues, merges or contains an adapter of this list."""


def find_dependent_adapters(
    connection: Connection, rollouts: Collection[str], tasks: Collection[str] = ()
) -> list[AdapterDependence]:
    """Return the adapters that depend on any of `rollouts`, or of `tasks` made from them."""
    cycles = _cycles(connection, frozenset(rollouts))
    jobs, adapters = Job.table().c, Adapter.table().c
    query = (
        select(
            adapters.adapter, adapters.state, adapters.path, adapters.merge,
            jobs.job, jobs.cycle, jobs.spec,
        )
        .join_from(Adapter.table(), Job.table(), jobs.job == adapters.job, isouter=True)
        .where(or_(jobs.job.is_not(None), adapters.merge.is_not(None), has_members()))
        .order_by(adapters.adapter)
    )  # fmt: skip
    rows = connection.execute(query).all()
    parents = {row.adapter: _list_parents(row.spec, row.merge) for row in rows}
    for name, composition in read_compositions(connection).items():
        parents[name] += composition.parts
    reasons = {row.adapter: cycles[row.cycle] for row in rows if row.cycle in cycles}
    for row in rows:
        if row.spec is not None and not _list_drawn(row.spec).isdisjoint(tasks):
            reasons[row.adapter] = (*reasons.get(row.adapter, ()), "drawn")
    while True:
        named = {
            name
            for row in rows
            if row.adapter in reasons
            for name in (row.adapter, row.path)
            if name
        }
        heirs = [
            row.adapter
            for row in rows
            if not named.isdisjoint(parents[row.adapter])
            and "parent" not in reasons.get(row.adapter, ())
        ]
        if not heirs:
            break
        reasons |= {name: (*reasons.get(name, ()), "parent") for name in heirs}
    return [
        AdapterDependence(row.adapter, row.state, row.job, row.cycle, reasons[row.adapter])
        for row in rows
        if row.adapter in reasons
    ]


def _list_parents(spec: str | None, merge: str | None) -> list[str]:
    members = [] if merge is None else json.loads(merge)["members"]
    parent = None if spec is None else json.loads(spec)["parent"]
    merged = (member["adapter"] for member in members)
    return [*([] if parent is None else [parent]), *merged]


def _list_drawn(spec: str) -> set[str]:
    pools = json.loads(spec)["pools"]
    return {task for pool in pools for task in (*pool["tasks"], *pool.get("references", ()))}


def _cycles(connection: Connection, rollouts: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
    """Return cycle -> the reasons why it depends on these rollouts (AdapterDependence.because)."""
    reasons: dict[str, tuple[str, ...]] = {}
    for cycle, why in _parts(connection, rollouts):
        if why not in reasons.get(cycle, ()):
            reasons[cycle] = (*reasons.get(cycle, ()), why)
    return reasons


def _parts(connection: Connection, rollouts: frozenset[str]) -> Iterator[tuple[str, str]]:
    seen, cycles, tasks = Rollout.table().c, Cycle.table().c, Task.table().c
    counted = (
        select(cycles.cycle)
        .distinct()
        .join_from(
            Cycle.table(),
            Rollout.table(),
            (seen.round == cycles.round)
            & (seen.alias == cycles.alias)
            & (seen.base == cycles.base),
        )
    )
    for some in split_ids(sorted(rollouts)):
        judged = counted.where(seen.success.is_not(None), seen.rollout.in_(some))
        for row in connection.execute(judged.order_by(cycles.cycle)):
            yield row.cycle, "counted"
    directed = select(cycles.cycle, cycles.directive).where(cycles.directive.is_not(None))
    for row in connection.execute(directed):
        quotas = json.loads(row.directive)["quotas"]
        if any(name in rollouts for quota in quotas for name in quota["examples"]):
            yield row.cycle, "example"
    written = select(tasks.cycle, tasks.source_rollout).where(tasks.source_rollout.is_not(None))
    for row in connection.execute(written):
        if row.source_rollout in rollouts and row.cycle is not None:
            yield row.cycle, "task"
