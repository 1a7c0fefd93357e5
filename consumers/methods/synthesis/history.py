"""A set of plans as it was when a cycle began, whatever the cycle has written since.

    history = read_plan_history(connection, line, before, find_set_events)

A leader that was killed behind its events, or another one, reads the same for the same cycle: what
lies at `before` or later counts for nothing. Counts are as the fold keeps them
(folds.py): a revision that is kept begins with the tries by which it was judged.
The tables have the newest revisions alone, so where the cycle has written for the set already its
earlier ones are read from the log. A try of a plan that the set has not counts for nothing: a model
that planned again named its plans otherwise, and the first set counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, select

from consumers.methods.synthesis.plans import PlanSetLine, read_plan_changes
from consumers.tables import PlanChange, PlanLine, Rejection, Task, TrajectoryVerdict
from events.synthesis.plans import Plan, PlansRevised, PlansWritten

FindSetEvents = Callable[[PlanSetLine], Sequence[tuple[int, PlansWritten | PlansRevised]]]
"""Returns the events of a set with their offsets of `learning`, in log order."""


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """A failure of a plan: a rejected try, or a rollout of a task that it gave."""

    event: str
    """Id of the `TaskRejected`, or the rollout."""
    fault: str | None
    """Fault that was found in a rollout; None for a try that failed a check."""
    check: str
    """The check that the try failed, or the rule by which the rollout was refused."""
    reason: str
    instruction: str
    """The request of the task, as far as there is one."""
    agrees: bool | None = None
    """Whether a model has the same opinion of the rollout; None where none was asked."""


@dataclass(slots=True)
class PlanPast:
    """A plan at the revision that it had, and what its tries had come to."""

    plan: Plan
    revision: int = 0
    tries: int = 0
    accepted: int = 0
    failures: list[PlanFailure] = field(default_factory=list)
    refused: list[Plan] = field(default_factory=list)
    """Revisions of it that were tried and not kept."""
    since: int = -1
    """Offset of the event that made this revision; -1 for the first one."""


@dataclass(frozen=True, slots=True)
class SetPast:
    """A set of plans as it was."""

    line: PlanSetLine
    """With the rounds and the end of revisions that it had."""
    plans: tuple[PlanPast, ...]
    """In their order."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A revision that was tried, from the tables or from the log."""

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
    """Return a set as it was before an offset of `learning`; None: as it is. `find_events` is
    called where the tables do not tell."""
    if before is not None and _was_used_since(connection, line, before):
        line, first, changes = _read_events(line, before, find_events)
    else:
        first, changes = _read_tables(connection, line)
    plans = {past.plan.plan: past for past in first}
    for change in changes:
        past = plans.get(change.plan)
        if past is None or past.revision != change.revision:
            continue  # the fold takes none of it either
        if not change.kept:
            past.refused.append(change.definition)
            continue
        past.plan, past.revision, past.since = change.definition, change.revision + 1, change.offset
        past.tries, past.accepted = change.tries, change.accepted
        past.refused.clear()
    _count(connection, line, before, plans)
    return SetPast(line, tuple(first))


def _was_used_since(connection: Connection, line: PlanSetLine, offset: int) -> bool:
    """Whether a try or a revision of a set lies at an offset of `learning` or later."""
    for table in (Task.table(), Rejection.table(), PlanChange.table()):
        query = select(table.c.offset).where(table.c.plans == line.plans, table.c.offset >= offset)
        if connection.execute(query.limit(1)).first() is not None:
            return True
    return False


def _read_tables(connection: Connection, line: PlanSetLine) -> tuple[list[PlanPast], list[_Change]]:
    """Return the plans of a set in their order, and the revisions that were tried; of a plan that
    one of them replaces, the first text does not matter."""
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
    """Return a set, its plans and the revisions that were tried before an offset of `learning`."""
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
    """Add the tries and the failures of each plan's revision since it was made."""
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
    """Add the rollouts of each plan's tasks that failed, or of which a model was of another
    opinion. Of a task that was rejected, the revision is that at which it stood then."""
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
