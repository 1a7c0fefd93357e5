"""The state of a demo, read from the tables and from the reports of its job and trials. It reads
only files of the home and follows the home's first `cycles` cycles.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from consumers.diagnosis.round_counts import Pair, of_agents
from consumers.reads import learning, serving
from consumers.reads import rollouts as reads
from consumers.reads.cycle_state import read_cycle_state
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.rollouts import PatternLine
from consumers.reads.serving import AdapterRow, RouteLine
from consumers.tables import Rollout
from daemon.core.app import App
from daemon.core.health import events_in
from daemon.cycle.outlook import read_facts
from daemon.cycle.scheduler import NotDue, decide
from daemon.evaluation.trial import CHUNK, Plan
from daemon.jobs.runner import JOURNAL, OUT, SPEC
from daemon.proposer.buffer import REPLAY, SIBLINGS, TRAFFIC
from events.envelope import parse_timestamp, utc_now
from events.learning import CycleOutcome
from ops.demo.place import ALIAS


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of judged and passed live rollouts of one policy."""

    policy: str
    judged: int
    passed: int

    @property
    def rate(self) -> float:
        """Return the share that passed."""
        return self.passed / max(1, self.judged)


@dataclass(frozen=True, slots=True)
class Point:
    """The results of one batch of the job."""

    rollouts: int
    aimed: float | None
    """Share of passed rollouts on written tasks; None if the batch had none."""
    traffic: float | None
    informative: float
    """Share of groups on written tasks with both passes and failures, since the job began."""


@dataclass(frozen=True, slots=True)
class Look:
    """The progress of a trial before the gate."""

    number: int
    """Number of the trial; 0 is the pilot."""
    played: int
    planned: int


@dataclass(frozen=True, slots=True)
class PastCycle:
    """A cycle that has ended."""

    number: int
    outcome: CycleOutcome
    capability: str


@dataclass(frozen=True, slots=True)
class DemoState:
    """The state of the demo."""

    events: int
    live: tuple[Tally, ...]
    patterns: tuple[PatternLine, ...]
    missing: tuple[str, ...]
    """Conditions that the next cycle still waits for; empty while a cycle runs."""
    cycle: CycleRow | None
    """The running cycle, or the last one when all have ended; None between two cycles."""
    job: JobRow | None
    curve: tuple[Point, ...]
    adapter: AdapterRow | None
    trial: Look | None
    routes: tuple[RouteLine, ...]
    turned: str
    cycles: int = 1
    past: tuple[PastCycle, ...] = ()
    """Cycles that ended before `cycle`, or before the next one."""

    @property
    def over(self) -> bool:
        """Return whether the last followed cycle has ended."""
        return self.cycle is not None and self.cycle.outcome is not None

    @property
    def rollouts(self) -> int:
        """Return the number of judged live rollouts."""
        return sum(tally.judged for tally in self.live)


def look(app: App, cycles: int = 1) -> DemoState:
    """Return the state of a home whose first `cycles` cycles are followed. Raise
    DatabaseUnavailable or LogError."""
    with app.reading() as connection:
        rows = followed_cycles(connection, cycles)
        cycle = select_current(rows, cycles)
        state = None if cycle is None else read_cycle_state(connection, cycle)
        job = None if state is None else state.job
        route = serving.route_row(connection, ALIAS)
        return DemoState(
            events=events_in(app.readable_log),
            live=tuple(tallies(connection)),
            patterns=tuple(reads.pattern_lines(connection, ALIAS)),
            missing=() if cycle is not None else _describe_needs(app, connection, utc_now()),
            cycle=cycle,
            job=job,
            curve=() if job is None else tuple(curve(app.settings.home / "jobs" / job.job)),
            adapter=None if state is None else state.adapter,
            trial=None if cycle is None else _trial(app.settings.home / "trials", cycle),
            routes=tuple(serving.route_lines(connection, ALIAS)),
            turned="" if route is None else f"{route.why}: {route.reason}",
            cycles=cycles,
            past=tuple(_past_cycles(connection, rows, cycle)),
        )


def followed_cycles(connection: Connection, cycles: int) -> list[CycleRow]:
    """Return the first `cycles` cycles of the home, in order."""
    return learning.cycles(connection, ALIAS)[::-1][:cycles]


def select_current(rows: Sequence[CycleRow], cycles: int) -> CycleRow | None:
    """Return the running cycle, or the last one if all have ended; None between two cycles."""
    last = rows[-1] if rows else None
    if last is None or (last.outcome is not None and len(rows) < cycles):
        return None
    return last


def _past_cycles(
    connection: Connection, rows: Sequence[CycleRow], current: CycleRow | None
) -> Iterator[PastCycle]:
    for number, row in enumerate(rows, start=1):
        if row == current or row.outcome is None:
            continue
        job = None if row.job is None else learning.job(connection, row.job)
        yield PastCycle(number, row.outcome, (job and job.capability) or "")


def first_cycle(connection: Connection) -> CycleRow | None:
    """Return the home's first cycle, if it has one."""
    return next(iter(followed_cycles(connection, 1)), None)


def tallies(connection: Connection) -> Iterator[Tally]:
    """Yield the judged live rollouts of each policy."""
    rows = Rollout.table().c
    query = (
        select(
            rows.policy,
            func.count().label("judged"),
            func.count().filter(rows.success.is_(True)).label("passed"),
        )
        .where(rows.alias == ALIAS, of_agents(rows), rows.success.is_not(None))
        .group_by(rows.policy)
        .order_by(func.min(rows.time))
    )
    for row in connection.execute(query):
        yield Tally(row.policy, row.judged, row.passed)


def curve(folder: Path) -> Iterator[Point]:
    """Yield the batches of a job in order. A batch that an attempt repeated comes once."""
    points: dict[int, Point] = {}
    for line in _read_lines(folder):
        if "batch" in line and "budget" in line:
            points[line["batch"]] = _point(line["rollouts"], line.get("pools", {}))
    return iter([points[batch] for batch in sorted(points)])


def _point(rollouts: int, pools: Mapping[str, Mapping[str, Any]]) -> Point:
    """Return the point of a batch from the job's report (daemon/solver/telemetry/progress.py)."""
    aimed = [both for name, both in pools.items() if name not in (TRAFFIC, SIBLINGS, REPLAY)]
    batches = [both["batch"] for both in aimed if "batch" in both]
    attempts = sum(batch["attempts"] for batch in batches)
    passed = sum(batch["passed"] * batch["attempts"] for batch in batches)
    groups = sum(both["so_far"]["groups"] for both in aimed)
    informative = sum(both["so_far"]["informative"] * both["so_far"]["groups"] for both in aimed)
    return Point(
        rollouts=rollouts,
        aimed=passed / attempts if attempts else None,
        traffic=pools.get(TRAFFIC, {}).get("batch", {}).get("passed"),
        informative=informative / max(1, groups),
    )


def _read_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a job's output, attempt by attempt, without partial lines."""
    attempts = sorted((folder / "attempts").glob("*.out"), key=lambda path: int(path.stem))
    for attempt in attempts:
        for line in attempt.read_bytes().split(b"\n")[:-1]:
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def _trial(folder: Path, cycle: CycleRow) -> Look | None:
    since = 0.0 if cycle.started is None else parse_timestamp(cycle.started).timestamp()
    own = (path for path in folder.glob(f"*-*/{SPEC}") if path.stat().st_mtime >= since)
    plans = sorted(own, key=lambda path: int(_number(path)))
    if not plans:
        return None
    plan = Plan.model_validate_json(plans[-1].read_bytes())
    journal = plans[-1].parent / OUT / JOURNAL
    chunks = max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0
    planned = len(plan.tasks) * plan.trials * len(plan.players)
    return Look(int(_number(plans[-1])), min(planned, chunks * CHUNK), planned)


def _number(path: Path) -> str:
    return path.parent.name.rpartition("-")[2]


def _describe_needs(app: App, connection: Connection, now: datetime) -> tuple[str, ...]:
    rows = Rollout.table().c
    base = connection.execute(
        select(rows.base).where(rows.alias == ALIAS, of_agents(rows)).limit(1)
    ).scalar()
    if base is None:
        return ("customers: none was served yet",)
    pair = Pair(ALIAS, base)
    facts = read_facts(connection, app.settings, pair, now)
    assert facts is not None, "the demo's settings name an environment"
    decided = decide(facts, app.settings.scheduler, now)
    return decided.missing if isinstance(decided, NotDue) else ("nothing: it begins",)
