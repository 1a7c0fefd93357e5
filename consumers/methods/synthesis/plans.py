"""Reads of sets of plans and of the results of their tasks. A plan's counts are of its present
revision; a set's counts are the sum over its plans. Within one `database.read_transaction` all
reads are of one moment."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select

from consumers.rows import make_row
from consumers.tables import PlanChange, PlanLine, PlanSet, Rejection, Task, TrajectoryVerdict
from events.errors import KintsugiError
from events.synthesis.faults import Fault
from events.synthesis.plans import Plan

FAULTS: Final[tuple[Fault, ...]] = ("task", "user", "trajectory")


class UnknownPlans(KintsugiError):
    """No set has this id, several ids begin with it, or the set has no plan of this name."""


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """Counts of the tasks that follow a plan, or all plans of a set."""

    tries: int = 0
    accepted: int = 0
    task: int = 0
    """Rollouts that failed by the task's fault; next, by the user's and by the agent's fault."""
    user: int = 0
    trajectory: int = 0
    disagreements: int = 0
    """Rollouts on which a model and the rules disagreed."""

    def __add__(self, other: "PlanCounts") -> "PlanCounts":
        return PlanCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def faults(self) -> dict[str, int]:
        """Return fault -> number of rollouts."""
        return {"task": self.task, "user": self.user, "trajectory": self.trajectory}


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan at a revision, with the counts of its tasks."""

    plan: Plan
    revision: int
    counts: PlanCounts


@dataclass(frozen=True, slots=True)
class PlanSetLine:
    """A set of plans."""

    plans: str
    alias: str
    base: str
    environment: str
    cycle: str | None
    """Cycle that asked for the set; None if a person asked for it."""
    patterns: tuple[str, ...]
    """Failure patterns for which it was written; empty for all patterns."""
    writer: str | None
    """Model that wrote the set; None for rules."""
    plans_count: int
    counts: PlanCounts
    overlap: float
    uncovered: tuple[str, ...]
    """Tools of the environment that no plan needs."""
    refused: tuple[str, ...]
    """Why plans of the model were refused."""
    trouble: str
    rounds: int
    """Rounds of revisions so far."""
    stopped: str
    """Why no further round of revisions follows; empty if one may follow."""
    time: str | None
    offset: int
    """Offset of its `PlansWritten` event in the stream `learning`."""

    @property
    def state(self) -> str:
        """Return `open` while a round of revisions may follow, then `stopped`."""
        return "stopped" if self.stopped else "open"

    @property
    def author(self) -> str:
        """Return the name of the model that wrote the set, or `rules`."""
        return self.writer or "rules"


@dataclass(frozen=True, slots=True)
class PlanChangeLine:
    """A revision of a plan that was tried."""

    plans: str
    plan: str
    round: int
    revision: int
    """Number of the revision that was changed."""
    definition: Plan
    """The changed plan that was tried."""
    reason: str
    failures: tuple[str, ...]
    """Ids of the events or rollouts that failed."""
    tries_before: int
    accepted_before: int
    tries: int
    accepted: int
    kept: bool
    writer: str | None
    time: str | None
    offset: int


def list_plan_sets(
    connection: Connection, alias: str | None = None, base: str | None = None
) -> list[PlanSetLine]:
    """Return the sets of plans of an agent on a base, or of all, in log order."""
    sets, lines = PlanSet.table(), PlanLine.table().c
    totals: dict[str, list[PlanCounts]] = {}
    for row in connection.execute(select(PlanLine.table()).order_by(lines.plans, lines.number)):
        totals.setdefault(row.plans, []).append(_build_counts(row))
    query = select(sets).order_by(sets.c.offset, sets.c.plans)
    if alias is not None:
        query = query.where(sets.c.alias == alias)
    if base is not None:
        query = query.where(sets.c.base == base)
    return [_build_set(row, totals.get(row.plans, [])) for row in connection.execute(query)]


def find_plan_set(connection: Connection, name: str) -> PlanSetLine:
    """Return a set by its id or a unique beginning of its id. Raise UnknownPlans."""
    lines = [line for line in list_plan_sets(connection) if name and line.plans.startswith(name)]
    exact = [line for line in lines if line.plans == name]
    lines = exact or lines
    if not lines:
        raise UnknownPlans(f"there is no set of plans {name[:200]!r}; see kintsugi plans ls")
    if len(lines) > 1:
        names = ", ".join(line.plans for line in lines[:3])
        raise UnknownPlans(f"several sets begin with {name!r}: {names}, ...; give more of it")
    return lines[0]


def read_plans(connection: Connection, plans: str) -> tuple[PlanState, ...]:
    """Return the present plans of a set, in their order."""
    lines = PlanLine.table()
    query = select(lines).where(lines.c.plans == plans).order_by(lines.c.number)
    return tuple(
        PlanState(Plan.model_validate_json(row.definition), row.revision, _build_counts(row))
        for row in connection.execute(query)
    )


def find_plan(connection: Connection, line: PlanSetLine, name: str) -> PlanState:
    """Return a plan of a set by its name or a unique beginning of its name. Raise UnknownPlans."""
    states = read_plans(connection, line.plans)
    named = [state for state in states if state.plan.plan == name]
    named = named or [state for state in states if name and state.plan.plan.startswith(name)]
    if len(named) == 1:
        return named[0]
    if named:
        names = ", ".join(state.plan.plan for state in named[:3])
        raise UnknownPlans(f"several plans begin with {name!r}: {names}, ...; give more of it")
    names = ", ".join(state.plan.plan for state in states)
    raise UnknownPlans(f"{line.plans} has no plan {name[:200]!r}; it has: {names}")


def read_plan_changes(
    connection: Connection, plans: str, plan: str | None = None
) -> list[PlanChangeLine]:
    """Return the revisions of a set or a plan of it, by round."""
    changes = PlanChange.table()
    query = select(changes).where(changes.c.plans == plans)
    if plan is not None:
        query = query.where(changes.c.plan == plan)
    return [
        make_row(
            PlanChangeLine,
            row,
            definition=Plan.model_validate_json(row.definition),
            failures=tuple(json.loads(row.failures)),
        )
        for row in connection.execute(query.order_by(changes.c.round, changes.c.plan))
    ]


@dataclass(frozen=True, slots=True)
class CycleTries:
    """Numbers of a cycle's tries by the plans of one set."""

    plans: str
    writer: str | None
    """Model that wrote the set; None for rules."""
    tries: int
    accepted: int


def read_cycle_tries(connection: Connection, cycle: str) -> list[CycleTries]:
    """Return the numbers of a cycle's tries for each set of plans, in log order of the sets."""
    sets = PlanSet.table().c
    counts: dict[str, list[int]] = {}
    for table, accepted in ((Task.table(), 1), (Rejection.table(), 0)):
        query = (
            select(table.c.plans, func.count())
            .where(table.c.cycle == cycle, table.c.plans.is_not(None))
            .group_by(table.c.plans)
        )
        for plans, count in connection.execute(query):
            total = counts.setdefault(plans, [0, 0])
            total[0] += count
            total[1] += accepted * count
    query = select(sets.plans, sets.writer).where(sets.plans.in_(counts)).order_by(sets.offset)
    return [
        CycleTries(row.plans, row.writer, *counts[row.plans]) for row in connection.execute(query)
    ]


def count_tries(connection: Connection) -> dict[tuple[str, str | None], tuple[int, int]]:
    """Return (agent, writer of the set or None for rules) -> (tries, accepted) of all revisions."""
    sets = PlanSet.table().c
    counts: dict[tuple[str, str | None], tuple[int, int]] = {}
    for table, accepted in ((Task.table(), 1), (Rejection.table(), 0)):
        query = (
            select(sets.alias, sets.writer, func.count())
            .join_from(table, PlanSet.table(), sets.plans == table.c.plans)
            .group_by(sets.alias, sets.writer)
        )
        for alias, writer, count in connection.execute(query):
            tries, passed = counts.get((alias, writer), (0, 0))
            counts[alias, writer] = (tries + count, passed + accepted * count)
    return counts


def count_faults(connection: Connection) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Return (agent, fault) -> rollouts, and agent -> rollouts on which a model disagreed."""
    verdicts = TrajectoryVerdict.table().c
    query = select(verdicts.alias, verdicts.fault, verdicts.agrees, func.count()).group_by(
        verdicts.alias, verdicts.fault, verdicts.agrees
    )
    faults: Counter[tuple[str, str]] = Counter()
    disagreements: Counter[str] = Counter()
    for alias, fault, agrees, count in connection.execute(query):
        if fault is not None:
            faults[alias, fault] += count
        if agrees is not None and not agrees:
            disagreements[alias] += count
    return faults, disagreements


def count_changes(connection: Connection) -> Counter[tuple[str, bool]]:
    """Return (agent, whether kept) -> number of tried revisions of plans."""
    sets, changes = PlanSet.table().c, PlanChange.table().c
    query = (
        select(sets.alias, changes.kept, func.count())
        .join_from(PlanChange.table(), PlanSet.table(), sets.plans == changes.plans)
        .group_by(sets.alias, changes.kept)
    )
    counts: Counter[tuple[str, bool]] = Counter()
    for alias, kept, count in connection.execute(query):
        counts[alias, bool(kept)] += count
    return counts


def _build_counts(row: Row[Any]) -> PlanCounts:
    return PlanCounts(
        row.tries, row.accepted, row.task_faults, row.user_faults, row.trajectory_faults,
        row.disagreements,
    )  # fmt: skip


def _build_set(row: Row[Any], counts: Sequence[PlanCounts]) -> PlanSetLine:
    return make_row(
        PlanSetLine,
        row,
        patterns=tuple(json.loads(row.patterns)),
        plans_count=len(counts),
        counts=sum(counts, PlanCounts()),
        uncovered=tuple(json.loads(row.uncovered)),
        refused=tuple(json.loads(row.refused)),
        rounds=row.round,
    )
