"""Reads of the panel members that answered an agent on another base, and of its jobs for skills.
Within one `database.read_transaction` all reads are of one moment."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select, true

from consumers.diagnosis.round_counts import LIVE_PURPOSES
from consumers.methods.skills import panel_reads
from consumers.reads import learning, serving
from consumers.reads.cycle_state import find_cycle_cancellation
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow
from consumers.reads.succession import find_adapter_at, has_served
from consumers.tables import Adapter, Cycle, Job, LifecycleStep, Rollout
from events.lifecycle import State
from events.serving import Panel

_LEAVES: Final = (State.DRAINING, State.ROLLED_BACK)


def list_skill_jobs(
    connection: Connection, alias: str, base: str, skill: str
) -> list[tuple[JobRow, AdapterRow | None]]:
    """Return the jobs of an agent for a skill, the newest first, each with its adapter."""
    jobs = Job.table().c
    query = select(jobs.job).where(jobs.alias == alias, jobs.base == base, jobs.skill == skill)
    names = connection.execute(query.order_by(jobs.offset.desc(), jobs.job)).scalars().all()
    rows = [
        (learning.job(connection, name), serving.read_job_adapter(connection, name))
        for name in names
    ]
    return [(job, adapter) for job, adapter in rows if job is not None]


def has_panel_history(connection: Connection, adapter: str) -> bool:
    """Return whether a panel that contains this adapter ever answered sessions."""
    adapters = Adapter.table().c
    query = select(adapters.adapter, adapters.panel).where(adapters.panel.is_not(None))
    return any(
        adapter in Panel.model_validate_json(panel).adapters and has_served(connection, name)
        for name, panel in connection.execute(query.order_by(adapters.adapter))
    )


@dataclass(frozen=True, slots=True)
class OldMember:
    """A panel's member that answered an agent on another base until that base was gone."""

    skill: str
    adapter: AdapterRow
    jobs: tuple[JobRow, ...]
    """Its own job and then those of its parents; empty if an operator brought the adapter."""
    gain: float
    """Gain in points of pass^1 on its targets in gates, summed over the adapter and its parents."""
    sessions: int
    """Number of live rollouts that the adapter or its parents answered."""
    won: float
    """Estimated number of these that would have failed without the adapter and its parents."""

    def describe(self, base: str) -> str:
        """Return a sentence that says why a job on `base` retrains this member's skill."""
        return (
            f"retrained on {base} from the tasks of {self.adapter.adapter} on {self.adapter.base}, "
            f"which won {self.won:.1f} sessions ({self.gain:+.1f} points in its gate, "
            f"{self.sessions:,} sessions)"
        )


def read_old_members(
    connection: Connection, alias: str, base: str, before: int | None = None,
    without: Collection[str] = (),
) -> list[OldMember]:  # fmt: skip
    """Return the members of an agent's last panels on other bases, the largest `won` first. Each
    skill has one member, the newest. `before` skips panels that were replaced at or after this
    offset of `learning`; `without` names skills to skip.
    """
    members: dict[str, OldMember] = {}
    for panel, left in _list_final_panels(connection, alias, base):
        if panel.composition is None or (before is not None and left >= before):
            continue
        lapsed = panel_reads.read_member_exits(connection, panel, left)
        for member in panel.composition.members:
            row = (
                None if member.adapter is None else serving.adapter_row(connection, member.adapter)
            )
            if row is not None and member.skill not in {*members, *lapsed, *without}:
                members[member.skill] = _read_old_member(connection, member.skill, row)
    return sorted(members.values(), key=lambda member: (-member.won, -member.gain, member.skill))


def list_skill_attempts(
    connection: Connection, alias: str, base: str, cycle: str | None
) -> set[str]:
    """Return the skills for which an agent had a job on a base, in any cycle but `cycle`. Jobs of a
    cycle that ended without a panel because its base went away do not count."""
    jobs, cycles = Job.table().c, Cycle.table().c
    query = (
        select(jobs.skill, jobs.outcome, cycles.cycle, cycles.outcome.label("ended"), cycles.panel)
        .join_from(Job.table(), Cycle.table(), cycles.cycle == jobs.cycle, isouter=True)
        .where(
            jobs.alias == alias, jobs.base == base, jobs.skill.is_not(None),
            jobs.cycle.is_distinct_from(cycle) if cycle is not None else true(),
        )
    )  # fmt: skip
    return {
        row.skill for row in connection.execute(query).all() if not _misses_base(connection, row)
    }


def _misses_base(connection: Connection, row: Any) -> bool:
    """Return whether a job's cycle was cancelled because its base was gone, not by a person."""
    if row.ended != "cancelled" or row.panel is not None or row.outcome == "cancelled":
        return False
    return find_cycle_cancellation(connection, row.cycle) is None


def find_member_before(connection: Connection, job: Row[Any]) -> OldMember | None:
    """Return the member of another base whose tasks a job (a row) trains again, if any."""
    row = learning.job(connection, job.job)
    if row is None or row.branch is None or row.spec.parent is not None:
        return None
    members = read_old_members(connection, row.alias, row.base, before=job.offset)
    member = next((member for member in members if member.skill == row.branch), None)
    if member is None:
        return None
    targets = {task for pool in row.spec.target_pools for task in pool.all_tasks}
    known = {
        task for old in member.jobs for pool in old.spec.target_pools for task in pool.all_tasks
    }
    return member if targets <= known else None


def describe_retraining(connection: Connection, job: Row[Any]) -> str:
    """Return a sentence on the old member that a job retrains; "" if it retrains none."""
    member = find_member_before(connection, job)
    return "" if member is None else member.describe(job.base)


def _read_old_member(connection: Connection, skill: str, row: AdapterRow) -> OldMember:
    lineage = _read_lineage(connection, row)
    served = [row] + [
        item for item, _ in lineage[1:] if has_panel_history(connection, item.adapter)
    ]
    rollouts = Rollout.table().c
    answered = (
        select(rollouts.member, func.count())
        .where(
            rollouts.alias == row.alias,
            rollouts.base == row.base,
            rollouts.purpose.in_(LIVE_PURPOSES),
            rollouts.member.in_([item.adapter for item in served]),
        )
        .group_by(rollouts.member)
    )
    sessions = {member: int(number) for member, number in connection.execute(answered)}
    gain = won = 0.0
    # Each adapter continued the one before it, and its gate measured the gain over that one.
    for item in reversed(served):
        gain += _measure_gain(item)
        won += gain / 100 * sessions.get(item.adapter, 0)
    return OldMember(
        skill=skill,
        adapter=row,
        jobs=tuple(job for _, job in lineage),
        gain=gain,
        sessions=sum(sessions.values()),
        won=won,
    )


def _measure_gain(row: AdapterRow) -> float:
    """Return the gain in points of pass^1 on an adapter's targets, weighted by their tasks."""
    targets = () if row.gate is None else row.gate.targets
    whole = sum(target.tasks for target in targets)
    return 100 * sum(target.gain * target.tasks for target in targets) / whole if whole else 0.0


def _read_lineage(connection: Connection, row: AdapterRow) -> list[tuple[AdapterRow, JobRow]]:
    """Return (adapter, job) of an adapter and its parents in turn; empty if it has no job."""
    lineage: dict[str, tuple[AdapterRow, JobRow]] = {}
    parent: AdapterRow | None = row
    while parent is not None and parent.job is not None and parent.adapter not in lineage:
        job = learning.job(connection, parent.job)
        if job is None:
            break
        lineage[parent.adapter] = (parent, job)
        folder = job.spec.parent
        parent = None if folder is None else find_adapter_at(connection, folder)
    return list(lineage.values())


def _list_final_panels(
    connection: Connection, alias: str, base: str
) -> list[tuple[AdapterRow, int]]:
    """Return (last adapter or panel that answered, offset) for each other base, the newest first.
    The offset is of the event by which the alias left that base. A base that answered without an
    adapter at the end has no entry."""
    adapters, steps = Adapter.table().c, LifecycleStep.table().c
    query = (
        select(steps.subject, steps.state, steps.event, steps.cause, steps.offset, adapters.base)
        .join(Adapter.table(), adapters.adapter == steps.subject)
        .where(
            steps.kind == "adapter",
            steps.state.in_([State.PROMOTED.value, *(state.value for state in _LEAVES)]),
            adapters.alias == alias,
            adapters.base != base,
        )
    )
    rows = connection.execute(query.order_by(steps.offset, steps.subject)).all()
    answering: dict[str, str] = {}
    ends: dict[str, Any] = {}
    # Within one event, leaving adapters come before the new ones.
    for row in sorted(rows, key=lambda row: (row.offset, row.state == State.PROMOTED)):
        if row.state == State.PROMOTED:
            answering[row.base] = row.subject
            ends.pop(row.base, None)
        elif answering.get(row.base) == row.subject and row.base not in ends:
            ends[row.base] = row
    final = [
        (serving.adapter_row(connection, end.subject), end.offset)
        for end in sorted(ends.values(), key=lambda end: -end.offset)
        if _moves_base(connection, end)
    ]
    return [(row, offset) for row, offset in final if row is not None]


def _moves_base(connection: Connection, end: Any) -> bool:
    """Return whether an adapter lost its sessions because the alias moved to another base."""
    if end.state == State.ROLLED_BACK:
        return False
    if end.cause is None or serving.operator_action(connection, end.cause) is None:
        return True
    joined = [
        serving.adapter_row(connection, s.subject) for s in serving.steps_of(connection, end.event)
    ]
    return any(row is not None and row.base != end.base for row in joined)
