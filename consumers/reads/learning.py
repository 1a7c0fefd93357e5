"""Typed reads of the loop: leaders, cycles, the tasks that they wrote, and their jobs. Within one
`database.read_transaction` all reads are of one moment. Times are texts as in the events (RFC 3339,
UTC)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, select

from consumers.folds.cycles import PROPOSED
from consumers.folds.task_states import ACTIVE
from consumers.rows import find_by_prefix, make_row
from consumers.tables import (
    Cycle,
    Job,
    JobRound,
    Leader,
    ProjectionTable,
    Rejection,
    Task,
    TaskBody,
    TaskPattern,
    TaskState,
)
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.learning import (
    BRANCH,
    VERSION,
    Check,
    CycleOutcome,
    Directive,
    JobOutcome,
    Mode,
    PatternFinding,
    PoolShare,
    Trigger,
    Verified,
)
from events.position import Position
from events.rollouts import Task as TaskData

_NUMBER_DIGITS: Final = 6
"""Most digits of a cycle's number; a longer text counts as the prefix of an id."""
_AT_ONCE: Final = 100


class UnknownId(KintsugiError):
    """No cycle or job has this id, or several ids begin with it."""


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """The leader whose decisions count."""

    epoch: int
    holder: str
    since: str | None


@dataclass(frozen=True, slots=True)
class CycleRow:
    """A cycle in its present state, as in tables.py."""

    cycle: str
    alias: str
    base: str
    number: int
    environment: str
    trigger: Trigger
    reason: str
    position: Position
    slot: str | None
    acted: str | None
    round: int | None
    directive: Directive | None
    findings: tuple[PatternFinding, ...]
    summary: str | None
    analyzer: str | None
    trouble: str | None
    accepted: int
    rejected: int
    job: str | None
    version: str | None = field(default=None, kw_only=True)
    """Name of the version composed of its branches' adapters; None without one."""
    outcome: CycleOutcome | None
    ended_because: str | None
    event: str
    started: str | None
    diagnosed: str | None
    directed: str | None
    ended: str | None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A training run that was requested or is over, as in tables.py."""

    job: str
    cycle: str | None
    alias: str
    base: str
    capability: str | None
    branch: str | None
    """Branch for which it trains; None if it trains for its whole cycle."""
    teaches: str | None
    spec: JobSpec
    minutes: float
    outcome: JobOutcome | None
    reason: str | None
    adapter: str | None
    sha256: str | None
    steps: int | None
    rollouts: int | None
    seconds: float | None
    attempts: int | None
    event: str
    requested: str | None
    ended: str | None


@dataclass(frozen=True, slots=True)
class JobRoundRow:
    """A round that a job closed over its own rollouts, as in tables.py."""

    job: str
    number: int
    cycle: str
    directive: Directive
    tasks: tuple[str, ...]
    rejected: int
    rollouts: int | None
    failures: int | None
    unread: int | None
    pools: tuple[PoolShare, ...]
    time: str | None


@dataclass(frozen=True, slots=True)
class BufferTask:
    """A task that was written for a pattern, as in tables.py."""

    task: TaskData
    pattern: str
    base: str | None
    cycle: str | None
    mode: Mode | None
    verified: tuple[Verified, ...]
    text_by: str | None
    source_rollout: str | None
    event: str | None
    plans: str | None = None
    plan: str | None = None
    plan_revision: int | None = None


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task that was written or added for an agent, and whether jobs draw it."""

    alias: str
    task: str
    environment: str | None
    capability: str | None
    base: str | None
    """None for a task that was rejected before it was stored; so are its other facts."""
    source: str | None
    """`cycle`, or `operator` for a task that was added without a cycle."""
    cycle: str | None
    state: str
    """`active`, `retired` or `rejected`."""
    reason: str
    """Why the task is not active; empty if it is."""
    patterns: tuple[str, ...]
    """Failure patterns for which it was written or that failures on it show."""


@dataclass(frozen=True, slots=True)
class RejectionRow:
    """A task that was written and failed a check, as in tables.py."""

    event: str
    cycle: str
    alias: str
    base: str
    pattern: str
    mode: Mode
    check: Check
    reason: str
    source_rollout: str | None
    instruction: str
    time: str | None
    plans: str | None = None
    plan: str | None = None
    plan_revision: int | None = None


_COLUMNS: Final = {"version": VERSION, "branch": BRANCH}
"""Field of a row -> column of the table, if their names differ."""


def list_fields(row: CycleRow | JobRow) -> dict[str, Any]:
    """Return column name -> value of a row, as commands show it."""
    return {_COLUMNS.get(name, name): getattr(row, name) for name in row.__dataclass_fields__}


def leader(connection: Connection) -> LeaderRow | None:
    """Return the leader whose decisions count; None before the first leader."""
    leaders = Leader.table().c
    row = connection.execute(select(leaders.epoch, leaders.holder, leaders.since)).first()
    return None if row is None else LeaderRow(row.epoch, row.holder, row.since)


def cycle(connection: Connection, name: str) -> CycleRow | None:
    """Return a cycle by its id; None without one."""
    cycles = Cycle.table()
    return _first_cycle(connection, select(cycles).where(cycles.c.cycle == name))


def find_cycle(connection: Connection, name: str) -> CycleRow:
    """Return a cycle by its id, its number or a unique beginning of its id. Raise UnknownId."""
    numbered = _find_numbered(connection, name)
    row = cycle(connection, numbered or _whole(connection, Cycle, "cycle", name))
    if row is None:
        raise UnknownId(f"there is no cycle {name!r}; see kintsugi cycle ls")
    return row


def open_cycle(connection: Connection, alias: str) -> CycleRow | None:
    """Return the open cycle of an agent; None without one."""
    cycles = Cycle.table()
    query = select(cycles).where(cycles.c.alias == alias, cycles.c.outcome.is_(None))
    return _first_cycle(connection, query)


def open_cycles(connection: Connection) -> list[CycleRow]:
    """Return the open cycles, at most one for each agent, ordered by agent."""
    table = Cycle.table()
    query = select(table).where(table.c.outcome.is_(None)).order_by(table.c.alias)
    return [_parse_cycle(row) for row in connection.execute(query)]


def read_cycle_offsets(connection: Connection) -> dict[str, int]:
    """Return cycle -> offset of the event in `learning` by which it began."""
    table = Cycle.table().c
    return {row.cycle: row.offset for row in connection.execute(select(table.cycle, table.offset))}


def cycles(
    connection: Connection, alias: str | None = None, limit: int | None = None
) -> list[CycleRow]:
    """Return cycles, the newest first."""
    table = Cycle.table()
    query = select(table).order_by(table.c.offset.desc(), table.c.cycle).limit(limit)
    if alias is not None:
        query = query.where(table.c.alias == alias)
    return [_parse_cycle(row) for row in connection.execute(query)]


def newest_cycle(connection: Connection) -> CycleRow | None:
    """Return the newest open cycle, or the newest of all if none is open."""
    table = Cycle.table()
    order = (table.c.outcome.is_not(None), table.c.offset.desc(), table.c.cycle)
    return _first_cycle(connection, select(table).order_by(*order).limit(1))


def find_version_cycle(connection: Connection, version: str) -> str | None:
    """Return the id of the cycle that composed a version with members; None if a person did."""
    cycles = Cycle.table().c
    query = select(cycles.cycle).where(cycles[VERSION] == version)
    name: str | None = connection.execute(query.limit(1)).scalar()
    return name


def job(connection: Connection, name: str) -> JobRow | None:
    """Return a job by its id; None without one."""
    table = Job.table()
    rows = _jobs(connection, select(table).where(table.c.job == name))
    return rows[0] if rows else None


def find_job(connection: Connection, name: str) -> JobRow:
    """Return a job by its id or a unique prefix of its id. Raise UnknownId."""
    row = job(connection, _whole(connection, Job, "job", name))
    if row is None:
        raise UnknownId(f"there is no job {name!r}; see kintsugi jobs ls")
    return row


def open_jobs(connection: Connection) -> list[JobRow]:
    """Return the open jobs in the order of their requests."""
    table = Job.table()
    query = select(table).where(table.c.outcome.is_(None))
    return _jobs(connection, query.order_by(table.c.offset, table.c.job))


def jobs(
    connection: Connection, alias: str | None = None, limit: int | None = None
) -> list[JobRow]:
    """Return jobs, the newest first."""
    table = Job.table()
    query = select(table).order_by(table.c.offset.desc(), table.c.job).limit(limit)
    return _jobs(connection, query if alias is None else query.where(table.c.alias == alias))


def list_user_jobs(connection: Connection, alias: str, base: str) -> list[JobRow]:
    """Return the jobs that train users for an agent on a base, in the order of their requests."""
    table = Job.table()
    query = select(table).where(
        table.c.alias == alias, table.c.base == base, table.c.teaches == "user"
    )
    return _jobs(connection, query.order_by(table.c.offset, table.c.job))


def list_cycle_jobs(connection: Connection, cycle: str) -> list[JobRow]:
    """Return the jobs of a cycle in the order of their requests."""
    table = Job.table()
    query = select(table).where(table.c.cycle == cycle)
    return _jobs(connection, query.order_by(table.c.offset, table.c.job))


def job_rounds(connection: Connection, job: str) -> list[JobRoundRow]:
    """Return the rounds that a job closed, in their order."""
    table = JobRound.table()
    query = select(table).where(table.c.job == job).order_by(table.c.number)
    return [_parse_job_round(row) for row in connection.execute(query)]


def wrote_last(connection: Connection, alias: str, base: str, but: str) -> str | None:
    """Return an agent's newest cycle on a base, except `but`, that tried to write tasks."""
    table = Cycle.table()
    query = select(table.c.cycle).where(
        table.c.alias == alias,
        table.c.base == base,
        table.c.cycle != but,
        table.c.accepted + table.c.rejected > 0,
    )
    newest = query.order_by(table.c.offset.desc(), table.c.cycle).limit(1)
    name: str | None = connection.execute(newest).scalar()
    return name


def tasks_of(connection: Connection, alias: str, base: str | None = None) -> Iterator[BufferTask]:
    """Return an iterator of an agent's written tasks in log order, of one base or all. Use it
    within the transaction, as it fetches rows in pages (a task takes about 10 KiB)."""
    table = Task.table()
    query = select(table).where(table.c.alias == alias, table.c.origin == PROPOSED)
    if base is not None:
        query = query.where(table.c.base == base)
    query = query.order_by(table.c.offset, table.c.task).execution_options(yield_per=_AT_ONCE)
    return (_parse_buffer_task(row) for row in connection.execute(query))


def patterns_of(connection: Connection, alias: str) -> dict[str, str]:
    """Return task -> pattern for which it was written, for an agent's buffer in log order."""
    table = Task.table().c
    query = select(table.task, table.pattern).where(table.alias == alias, table.origin == PROPOSED)
    rows = connection.execute(query.order_by(table.offset, table.task))
    return {row.task: row.pattern for row in rows}


def read_repair_tasks(connection: Connection, alias: str) -> set[str]:
    """Return the tasks of the mode `repair` that cycles wrote, in any state."""
    table = Task.table().c
    query = select(table.task).where(
        table.alias == alias,
        # # Every task of this mode has a body, and few tasks have one.
        table.task.in_(select(TaskBody.table().c.task)),
        table.mode == "repair",
    )
    return set(connection.execute(query).scalars())


def read_task_body(connection: Connection, task: str) -> str | None:
    """Return the body of a task by content as text; None if no event brought it."""
    bodies = TaskBody.table().c
    body: str | None = connection.execute(select(bodies.body).where(bodies.task == task)).scalar()
    return body


def read_sealed_tasks(connection: Connection, alias: str) -> dict[str, str]:
    """Return task -> id of the key that seals it, for the sealed tasks in an agent's buffer."""
    bodies, tasks = TaskBody.table().c, Task.table().c
    query = (
        select(bodies.task, bodies.keyid)
        .join_from(TaskBody.table(), Task.table(), tasks.task == bodies.task)
        .where(tasks.alias == alias, tasks.origin == PROPOSED, bodies.keyid.is_not(None))
    )
    return {row.task: row.keyid for row in connection.execute(query)}


def read_inactive_tasks(connection: Connection, alias: str) -> dict[str, str]:
    """Return task -> state, for an agent's tasks that new jobs do not draw."""
    states = TaskState.table().c
    query = select(states.task, states.state).where(states.alias == alias, states.state != ACTIVE)
    return {row.task: row.state for row in connection.execute(query)}


def list_task_lines(
    connection: Connection, alias: str | None = None, beginning: str = ""
) -> list[TaskLine]:
    """Return tasks whose ids start with `beginning`, of one agent or all. The buffer's tasks come
    first in log order, then retired or rejected others."""
    tasks, states = Task.table().c, TaskState.table().c
    of_both = (tasks.alias == states.alias) & (tasks.task == states.task)
    query = (
        select(
            tasks.alias, tasks.task, tasks.environment, tasks.capability, tasks.base, tasks.cycle,
            tasks.pattern, states.state, states.reason,
        )
        .select_from(Task.table().outerjoin(TaskState.table(), of_both))
        .where(tasks.origin == PROPOSED)
        .order_by(tasks.offset, tasks.task)
    )  # fmt: skip
    others = (
        select(
            states.alias, states.task, tasks.environment, tasks.capability, states.state,
            states.reason,
        )
        .select_from(TaskState.table().outerjoin(Task.table(), of_both))
        .where(states.state != ACTIVE, tasks.origin.is_(None) | (tasks.origin != PROPOSED))
        .order_by(states.offset, states.task)
    )  # fmt: skip
    if alias is not None:
        query, others = query.where(tasks.alias == alias), others.where(states.alias == alias)
    if beginning:
        query = query.where(tasks.task.startswith(beginning, autoescape=True))
        others = others.where(states.task.startswith(beginning, autoescape=True))
    tagged = _read_tags(connection, alias, beginning)
    written = [_parse_task_line(dict(row), tagged) for row in connection.execute(query).mappings()]
    return written + [
        _parse_task_line({**row, "base": None, "cycle": None, "pattern": None}, tagged)
        for row in connection.execute(others).mappings()
    ]


def find_traffic_task(connection: Connection, task: str, alias: str | None) -> list[TaskLine]:
    """Return the line of a task in traffic by its whole id, for one agent or each that has it."""
    tasks = Task.table().c
    query = select(tasks.alias, tasks.task, tasks.environment, tasks.capability).where(
        tasks.task == task, tasks.origin != PROPOSED
    )
    if alias is not None:
        query = query.where(tasks.alias == alias)
    missing = dict.fromkeys(("base", "cycle", "pattern", "state", "reason"))
    return [
        _parse_task_line({**row, **missing}, {})
        for row in connection.execute(query.order_by(tasks.alias)).mappings()
    ]


def _read_tags(
    connection: Connection, alias: str | None, beginning: str
) -> dict[tuple[str, str], list[str]]:
    """Return (agent, task) -> patterns with which a buffered task is tagged, by name."""
    tags, tasks = TaskPattern.table().c, Task.table().c
    query = (
        select(tags.alias, tags.task_key, tags.pattern)
        .join(Task.table(), (tasks.alias == tags.alias) & (tasks.task == tags.task_key))
        .where(tasks.origin == PROPOSED)
        .distinct()
        .order_by(tags.pattern)
    )
    if alias is not None:
        query = query.where(tags.alias == alias)
    if beginning:
        query = query.where(tags.task_key.startswith(beginning, autoescape=True))
    tagged: dict[tuple[str, str], list[str]] = {}
    for row in connection.execute(query):
        tagged.setdefault((row.alias, row.task_key), []).append(row.pattern)
    return tagged


def _parse_task_line(row: dict[str, Any], tagged: dict[tuple[str, str], list[str]]) -> TaskLine:
    pattern = row.pop("pattern")
    source = None if pattern is None else "operator" if row["cycle"] is None else "cycle"
    return TaskLine(
        **{**row, "state": row["state"] or ACTIVE, "reason": row["reason"] or ""},
        source=source,
        patterns=tuple(tagged.get((row["alias"], row["task"]), ())),
    )


def rejections_of(connection: Connection, cycle: str) -> list[RejectionRow]:
    """Return a cycle's rejected tasks in log order."""
    table = Rejection.table()
    query = select(table).where(table.c.cycle == cycle).order_by(table.c.offset, table.c.event)
    return [make_row(RejectionRow, row) for row in connection.execute(query)]


def _whole(connection: Connection, table: type[ProjectionTable], key: str, begins: str) -> str:
    """Return the one id that begins so, or `begins` if none does. Raise UnknownId for several."""
    matches = find_by_prefix(connection, table.table().c[key], begins, 3)
    if len(matches) > 1 and begins not in matches:
        raise UnknownId(
            f"several {key}s begin with {begins!r}: {', '.join(matches)}, ...; give more"
        )
    return matches[0] if len(matches) == 1 else begins


def _find_numbered(connection: Connection, name: str) -> str | None:
    """Return the id of the cycle with this number, if any. Raise UnknownId if there are several."""
    if not (name.isascii() and name.isdecimal() and len(name) <= _NUMBER_DIGITS):
        return None
    table = Cycle.table().c
    query = select(table.cycle, table.alias, table.base).where(table.number == int(name))
    rows = connection.execute(query.order_by(table.alias, table.base)).all()
    if len(rows) > 1:
        cycles = ", ".join(f"{row.cycle} of {row.alias} on {row.base}" for row in rows)
        raise UnknownId(f"several cycles have the number {name}: {cycles}; give the id")
    return rows[0].cycle if rows else None


def _first_cycle(connection: Connection, query: Select[Any]) -> CycleRow | None:
    row = connection.execute(query).first()
    return None if row is None else _parse_cycle(row)


def _parse_cycle(row: Row[Any]) -> CycleRow:
    findings = json.loads(row.findings or "[]")
    return make_row(
        CycleRow,
        row,
        position=json.loads(row.position),
        directive=None if row.directive is None else Directive.model_validate_json(row.directive),
        findings=tuple(PatternFinding.model_validate(finding) for finding in findings),
        version=row._mapping[VERSION],
    )


def _jobs(connection: Connection, query: Select[Any]) -> list[JobRow]:
    return [
        make_row(
            JobRow,
            row,
            spec=JobSpec.model_validate_json(row.spec),
            branch=row._mapping[BRANCH],
        )
        for row in connection.execute(query)
    ]


def _parse_job_round(row: Row[Any]) -> JobRoundRow:
    pools = json.loads(row.pools or "[]")
    return make_row(
        JobRoundRow,
        row,
        directive=Directive.model_validate_json(row.directive),
        tasks=tuple(json.loads(row.tasks)),
        pools=tuple(PoolShare.model_validate(pool) for pool in pools),
    )


def _parse_buffer_task(row: Row[Any]) -> BufferTask:
    task = TaskData.model_validate(
        {
            "id": row.task,
            "environment": row.environment,
            "capability": row.capability,
            "instruction": row.instruction,
            "gold_actions": json.loads(row.gold_actions) if row.gold_actions else None,
            "outputs": json.loads(row.outputs),
            "reward_basis": json.loads(row.reward_basis),
            "definition": row.definition,
        }
    )
    checks = json.loads(row.verified)
    verified = tuple(Verified.model_validate(check) for check in checks)
    return make_row(BufferTask, row, task=task, verified=verified)
