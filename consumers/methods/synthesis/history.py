"""A set of plans as it was when a cycle began, without the cycle's own writes. Guarantee: a leader
that repeats the cycle's steps reads the same, because events at offset `before` or later are
ignored. Counts are as in folds.py. The tables have only the newest revisions, so earlier ones are
read from the log once the cycle has written for the set. A try of a plan that the set lacks is
ignored: it follows a second set by the model, but only the first set counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, select

from consumers.methods.synthesis.plans import PlanSetLine, read_plan_changes
from consumers.tables import PlanChange, PlanLine, Rejection, Task, TrajectoryVerdict
from events.synthesis.plans import Plan, PlansRevised, PlansWritten

FindSetEvents = Callable[[PlanSetLine], Sequence[tuple[int, PlansWritten | PlansRevised]]]
"""Function from a set to its events with their offsets of `learning`, in log order."""


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """A failure of a plan: a rejected try, or a rollout of one of its tasks."""

    event: str
    """Id of the `TaskRejected` event, or of the rollout."""
    fault: str | None
    """The rollout's fault; None for a try that failed a check."""
    check: str
    """The check that the try failed, or the rule that refused the rollout."""
    reason: str
    instruction: str
    """The request of the task, if known."""
    agrees: bool | None = None
    """Whether a model agrees with the rules about the rollout; None if no model was asked."""


@dataclass(slots=True)
class PlanPast:
    """A plan at an earlier revision, with the results of its tries."""

    plan: Plan
    revision: int = 0
    tries: int = 0
    accepted: int = 0
    failures: list[PlanFailure] = field(default_factory=list)
    refused: list[Plan] = field(default_factory=list)
    """Revisions of the plan that were tried and not kept."""
    since: int = -1
    """Offset of the event that made this revision; -1 for the first one."""


@dataclass(frozen=True, slots=True)
class SetPast:
    """A set of plans at an earlier moment."""

    line: PlanSetLine
    """The set's row, with its rounds and stop reason at that moment."""
    plans: tuple[PlanPast, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    plan: str
    revision: int
    definition: Plan
    tries: int
    accepted: int
    kept: bool
    offset: int


def read_plan_history(
    connection: Connection, line: PlanSetLine, before: int | None, find_events: FindSetEvents
) -> SetPast:
    """Return a set as it was before the offset `before` of `learning`, or as it is now if None.
    `find_events` is called only if the set was used since."""
    if before is not None and _was_used_since(connection, line, before):
        line, first, changes = _read_events(line, before, find_events)
    else:
        first, changes = _read_tables(connection, line)
    plans = {past.plan.plan: past for past in first}
    for change in changes:
        past = plans.get(change.plan)
        if past is None or past.revision != change.revision:
            continue  # the fold ignores such a change too
        if not change.kept:
            past.refused.append(change.definition)
            continue
        past.plan, past.revision, past.since = change.definition, change.revision + 1, change.offset
        past.tries, past.accepted = change.tries, change.accepted
        past.refused.clear()
    _count(connection, line, before, plans)
    return SetPast(line, tuple(first))


def _was_used_since(connection: Connection, line: PlanSetLine, offset: int) -> bool:
    """Return whether a set has a try or a revision at this offset of `learning` or later."""
    for table in (Task.table(), Rejection.table(), PlanChange.table()):
        query = select(table.c.offset).where(table.c.plans == line.plans, table.c.offset >= offset)
        if connection.execute(query.limit(1)).first() is not None:
            return True
    return False


def _read_tables(connection: Connection, line: PlanSetLine) -> tuple[list[PlanPast], list[_Change]]:
    """Return the plans of a set in order, and their tried revisions. The plans have their present
    text, but the caller replaces it by a kept revision's."""
    lines = PlanLine.table()
    query = select(lines).where(lines.c.plans == line.plans).order_by(lines.c.number)
    plans = [
        PlanPast(Plan.model_validate_json(row.definition)) for row in connection.execute(query)
    ]
    changes = [
        _Change(
            item.plan, item.revision, item.definition, item.tries, item.accepted, item.kept,
            item.offset,
        )
        for item in read_plan_changes(connection, line.plans)
    ]  # fmt: skip
    return plans, changes


def _read_events(
    line: PlanSetLine, before: int, find_events: FindSetEvents
) -> tuple[PlanSetLine, list[PlanPast], list[_Change]]:
    """Return a set, its plans and its tried revisions before an offset of `learning`."""
    plans: list[PlanPast] = []
    changes: list[_Change] = []
    rounds, stopped = 0, ""
    for offset, data in find_events(line):
        if offset >= before:
            break
        if isinstance(data, PlansWritten):
            plans = [PlanPast(plan) for plan in data.entries]
        elif data.round == rounds + 1 and not stopped:
            rounds, stopped = data.round, data.stopped
            changes += [
                _Change(
                    item.before.plan, item.before.revision, item.plan, item.tries, item.accepted,
                    item.kept, offset,
                )
                for item in data.revisions
            ]  # fmt: skip
    return replace(line, rounds=rounds, stopped=stopped), plans, changes


def _count(
    connection: Connection, line: PlanSetLine, before: int | None, plans: dict[str, PlanPast]
) -> None:
    tasks, rejections = Task.table().c, Rejection.table().c
    query = select(tasks.plan, tasks.plan_revision, tasks.offset).where(tasks.plans == line.plans)
    for row in connection.execute(query if before is None else query.where(tasks.offset < before)):
        past = plans.get(row.plan)
        if past is None:
            continue
        if row.plan_revision == past.revision and row.offset > past.since:
            past.tries, past.accepted = past.tries + 1, past.accepted + 1
    failed = select(
        rejections.plan, rejections.plan_revision, rejections.offset, rejections.event,
        rejections.check, rejections.reason, rejections.instruction,
    ).where(rejections.plans == line.plans)  # fmt: skip
    if before is not None:
        failed = failed.where(rejections.offset < before)
    for refusal in connection.execute(failed.order_by(rejections.offset, rejections.event)):
        past = plans.get(refusal.plan)
        if past is None:
            continue
        if refusal.plan_revision == past.revision:
            past.tries += refusal.offset > past.since
            past.failures.append(
                PlanFailure(refusal.event, None, refusal.check, refusal.reason, refusal.instruction)
            )
    _add_rollouts(connection, line, before, plans)


def _add_rollouts(
    connection: Connection, line: PlanSetLine, before: int | None, plans: dict[str, PlanPast]
) -> None:
    """Add to each plan the failed rollouts of its tasks, and those on which a model disagreed. If a
    task's revision is unknown, the time of the verdict decides."""
    verdicts, tasks = TrajectoryVerdict.table().c, Task.table().c
    of_both = (tasks.alias == verdicts.alias) & (tasks.task == verdicts.task)
    query = (
        select(TrajectoryVerdict.table(), tasks.plan_revision, tasks.instruction)
        .select_from(TrajectoryVerdict.table().outerjoin(Task.table(), of_both))
        .where(verdicts.plans == line.plans)
        .order_by(verdicts.offset, verdicts.rollout)
    )
    if before is not None:
        query = query.where(verdicts.offset < before)
    for row in connection.execute(query):
        past = plans.get(row.plan)
        if past is None:
            continue
        same = (
            row.offset > past.since
            if row.plan_revision is None
            else row.plan_revision == past.revision
        )
        if same and (row.fault is not None or row.agrees is False):
            past.failures.append(
                PlanFailure(
                    row.rollout, row.fault, row.rule, row.reason, row.instruction or "",
                    row.agrees,
                )
            )  # fmt: skip
