"""Reads of an alias' promoted adapters in order, and of the adapters that later jobs may need.
Within one `database.read_transaction` all reads are of one moment."""

from pathlib import PurePath

from sqlalchemy import Connection, or_, select

from consumers.folds.cycles import PROPOSED
from consumers.reads import learning, serving
from consumers.reads.serving import AdapterRow
from consumers.tables import Adapter, Cycle, Job, LifecycleStep, Task
from events.jobs import AdapterUser
from events.learning import BRANCH
from events.lifecycle import SERVING, State


def list_promotions(connection: Connection, alias: str, base: str) -> list[AdapterRow]:
    """Return the promoted adapters of an alias on a base in order, without rolled-back ones."""
    adapters, steps = Adapter.table().c, LifecycleStep.table().c
    query = (
        select(steps.subject, steps.state)
        .join(Adapter.table(), adapters.adapter == steps.subject)
        .where(
            steps.kind == "adapter",
            steps.state.in_((State.PROMOTED.value, State.ROLLED_BACK.value)),
            adapters.alias == alias,
            adapters.base == base,
        )
        .order_by(steps.offset, steps.subject)
    )
    promoted: dict[str, None] = {}
    rolled_back: set[str] = set()
    for row in connection.execute(query):
        if row.state == State.ROLLED_BACK:
            rolled_back.add(row.subject)
        else:
            promoted.setdefault(row.subject)
    rows = (serving.adapter_row(connection, name) for name in promoted if name not in rolled_back)
    return [row for row in rows if row is not None]


def find_last_candidate(
    connection: Connection, alias: str, branch: str | None = None
) -> AdapterRow | None:
    """Return the adapter of an alias' newest job for a branch; None if the job made no adapter
    (yet). `branch` is None for jobs that train for a whole cycle."""
    jobs = Job.table().c
    query = select(jobs.job).where(
        jobs.alias == alias, jobs[BRANCH].is_not_distinct_from(branch), jobs.teaches.is_(None)
    )
    newest = query.order_by(jobs.offset.desc(), jobs.job).limit(1)
    name = connection.execute(newest).scalar()
    return None if name is None else serving.read_job_adapter(connection, name)


def has_served(connection: Connection, adapter: str) -> bool:
    """Return whether an adapter ever answered sessions, all or a share."""
    steps = LifecycleStep.table().c
    query = select(steps.state).where(
        steps.kind == "adapter",
        steps.subject == adapter,
        steps.state.in_([state.value for state in SERVING]),
    )
    return connection.execute(query.limit(1)).first() is not None


def find_adapter_at(connection: Connection, path: str) -> AdapterRow | None:
    """Return the adapter whose recorded folder is `path`, or is the last two parts of `path`."""
    adapters = Adapter.table().c
    inside = str(PurePath(*PurePath(path).parts[-2:]))
    query = (
        select(adapters.adapter)
        .where(adapters.path.in_((path, inside)))
        .order_by(adapters.offset.desc())
    )
    name = connection.execute(query.limit(1)).scalar()
    return None if name is None else serving.adapter_row(connection, name)


def list_training_bases(connection: Connection) -> frozenset[str]:
    """Return the adapters whose weights a job may still read. They are the parents and simulated
    users of open jobs, and the adapter of each branch's newest job on its alias' present base. A
    branch counts if the next cycle may have it or an open cycle has it. Jobs for whole cycles
    count."""
    from consumers.reads.methods import list_wanted_branches

    jobs, cycles = Job.table().c, Cycle.table().c
    branch = jobs[BRANCH].label("branch")
    branches = connection.execute(select(jobs.alias, branch).distinct()).all()
    open_cycles = select(cycles.cycle).where(cycles.outcome.is_(None))
    of_open = select(jobs.alias, jobs.base, branch).where(jobs.cycle.in_(open_cycles))
    wanted = list_wanted_branches(connection)
    wanted |= {(row.alias, row.base, row.branch) for row in connection.execute(of_open)}
    routes = {row.alias: row.standing.base for row in serving.route_table(connection).routes}
    names: set[str] = set()
    for alias, name in branches:
        row = find_last_candidate(connection, alias, name)
        if row is None or routes.get(alias, row.base) != row.base:
            continue
        if name is None or (alias, row.base, name) in wanted:
            names.add(row.adapter)
    for job in learning.open_jobs(connection):
        folder = job.spec.parent
        parent = None if folder is None else find_adapter_at(connection, folder)
        if parent is not None:
            names.add(parent.adapter)
        users = (pool.user for pool in job.spec.pools)
        names.update(user.adapter for user in users if isinstance(user, AdapterUser))
    return frozenset(names)


def list_written_tasks(connection: Connection, cycle: str) -> list[tuple[str, str]]:
    """Return (pattern, task) of the tasks that a cycle wrote, in log order, without lessons."""
    tasks = Task.table().c
    query = select(tasks.pattern, tasks.task).where(
        tasks.cycle == cycle,
        tasks.origin == PROPOSED,
        or_(tasks.mode.is_(None), tasks.mode != "repair"),
    )
    rows = connection.execute(query.order_by(tasks.offset, tasks.task))
    return [(row.pattern, row.task) for row in rows]
