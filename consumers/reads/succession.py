"""Who followed whom: the adapters that an alias promoted, and those that the next job may need.

A caller reads within one `database.read_transaction`, which is one moment of the tables.
"""

from sqlalchemy import Connection, or_, select

from consumers.folds.cycles import PROPOSED
from consumers.reads import learning, serving
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow
from consumers.tables import Adapter, Job, LifecycleStep, Task
from events.lifecycle import SERVING, State
from events.serving import Panel


def list_promotions(connection: Connection, alias: str, base: str) -> list[AdapterRow]:
    """The adapters that answered an alias on a base as its incumbent, in the order in which they
    were promoted first; without those that were rolled back, for they were seen to be worse."""
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
    connection: Connection, alias: str, skill: str | None = None
) -> AdapterRow | None:
    """The adapter that the newest job of an alias for a skill left, or for everything; None where
    that job left none or runs."""
    jobs = Job.table().c
    query = select(jobs.job).where(
        jobs.alias == alias, jobs.skill.is_not_distinct_from(skill), jobs.teaches.is_(None)
    )
    newest = query.order_by(jobs.offset.desc(), jobs.job).limit(1)
    name = connection.execute(newest).scalar()
    return None if name is None else find_adapter_of_job(connection, name)


def list_skill_jobs(
    connection: Connection, alias: str, base: str, skill: str
) -> list[tuple[JobRow, AdapterRow | None]]:
    """The jobs of an agent for a skill, the newest first, each with the adapter that it left."""
    jobs = Job.table().c
    query = select(jobs.job).where(jobs.alias == alias, jobs.base == base, jobs.skill == skill)
    names = connection.execute(query.order_by(jobs.offset.desc(), jobs.job)).scalars().all()
    rows = [
        (learning.job(connection, name), find_adapter_of_job(connection, name)) for name in names
    ]
    return [(job, adapter) for job, adapter in rows if job is not None]


def has_served(connection: Connection, adapter: str) -> bool:
    """Whether an adapter ever answered sessions, of an alias as a whole or of a share."""
    steps = LifecycleStep.table().c
    query = select(steps.state).where(
        steps.kind == "adapter",
        steps.subject == adapter,
        steps.state.in_([state.value for state in SERVING]),
    )
    return connection.execute(query.limit(1)).first() is not None


def has_panel_history(connection: Connection, adapter: str) -> bool:
    """Whether a panel with this adapter as a part ever answered sessions."""
    adapters = Adapter.table().c
    query = select(adapters.adapter, adapters.panel).where(adapters.panel.is_not(None))
    return any(
        adapter in Panel.model_validate_json(panel).adapters and has_served(connection, name)
        for name, panel in connection.execute(query.order_by(adapters.adapter))
    )


def find_adapter_of_job(connection: Connection, job: str) -> AdapterRow | None:
    """The adapter that a job left."""
    adapters = Adapter.table().c
    name = connection.execute(select(adapters.adapter).where(adapters.job == job)).scalar()
    return None if name is None else serving.adapter_row(connection, name)


def find_adapter_at(connection: Connection, path: str) -> AdapterRow | None:
    """The adapter whose files are in a folder."""
    adapters = Adapter.table().c
    query = select(adapters.adapter).where(adapters.path == path).order_by(adapters.offset.desc())
    name = connection.execute(query.limit(1)).scalar()
    return None if name is None else serving.adapter_row(connection, name)


def list_training_bases(connection: Connection) -> frozenset[str]:
    """The adapters whose weights a job may still read: the parents of open jobs, and what the
    newest job of each alias left, for each skill and for everything, from which the next one may go
    on."""
    jobs = Job.table().c
    kinds = connection.execute(select(jobs.alias, jobs.skill).distinct()).all()
    rows = [find_last_candidate(connection, alias, skill) for alias, skill in kinds]
    for job in learning.open_jobs(connection):
        if job.spec.parent is not None:
            rows.append(find_adapter_at(connection, job.spec.parent))
    return frozenset(row.adapter for row in rows if row is not None)


def list_written_tasks(connection: Connection, cycle: str) -> list[tuple[str, str]]:
    """Pattern and id of each task that a cycle wrote, in log order; without its lessons."""
    tasks = Task.table().c
    query = select(tasks.pattern, tasks.task).where(
        tasks.cycle == cycle,
        tasks.origin == PROPOSED,
        or_(tasks.mode.is_(None), tasks.mode != "repair"),
    )
    rows = connection.execute(query.order_by(tasks.offset, tasks.task))
    return [(row.pattern, row.task) for row in rows]
