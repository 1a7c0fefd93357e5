"""What must hold whatever happened to the daemons: read from the log and from the tables, apart
from the code that decides."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from consumers.folds.routing import RouteState
from consumers.reads import learning, serving
from consumers.reads.learning import CycleRow
from consumers.tables import (
    Cycle,
    Evaluation,
    Job,
    LifecycleStep,
    Rejection,
    Rollout,
    Round,
    Route,
    Task,
)
from daemon.core.app import App
from daemon.cycle.state_machine import MOST_GATES
from events.codec import decode
from events.learning import LeaderClaimed
from events.lifecycle import LOADED
from tests.consumers.cycling import PATTERN
from tests.daemon.written import REJECTED, TASKS

ONE_BY_ONE = (Round, Cycle, Job, Task, Rejection)
"""Tables whose rows the leader's decisions make."""


class Broken(AssertionError):
    """An invariant does not hold."""


class Inspection:
    """Looks at a home again and again."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._read = 0
        self._epoch = 0
        self._folded_epoch = 0
        self._stale: set[int] = set()
        """Offsets of decisions of those who did not lead when they came."""
        self.ignored = 0
        self.over = 0
        """Cycles."""

    def check(self, folders: Mapping[str, str]) -> None:
        """Everything that holds at any time. Raises Broken."""
        self._read_on()
        self._app.settle()
        with self._app.reading() as connection:
            cycles = learning.cycles(connection)
            self._check_epochs(connection)
            self._check_fence(connection)
            _check_cycles(connection, cycles)
            _check_steps(connection)
            _check_rollouts(connection, cycles)
        _at_most_one(Counter(folders.values()), "directories of jobs")
        self.over = sum(one.outcome is not None for one in cycles)

    def check_end(
        self, route: Mapping[str | None, float], loaded: set[str], folders: Mapping[str, str]
    ) -> None:
        """What holds in peace: everything is over and read, and the world is what the log says."""
        self.check(folders)
        with self._app.reading() as connection:
            cycles = learning.cycles(connection)
            unread = connection.execute(
                select(Rollout.table().c.rollout).where(Rollout.table().c.round.is_(None))
            ).all()
            table = serving.route_table(connection)
            jobs = {one.job for one in learning.jobs(connection)}
        _hold(all(one.outcome for one in cycles), "a stall: a cycle is open")
        _hold(not unread, f"rollouts that no cycle read: {unread}")
        found = table.route("agent")
        shares = RouteState.of_base("").shares if found is None else found.standing.shares
        logged = {part.adapter: part.share for part in shares}
        _hold(dict(route) == logged, f"gateways answer with {dict(route)}, the log says {logged}")
        wanted = {row.adapter for row in table.adapters if row.state in LOADED}
        _hold(loaded == wanted, f"engines hold {loaded}, the log says {wanted}")
        _hold(set(folders) == jobs, f"directories {set(folders)} of jobs {jobs}")

    def _read_on(self) -> None:
        """Who led when each decision came, by the log alone."""
        for record in self._app.spool.read("learning", 0, self._read):
            self._read = record.offset + 1
            event = decode(record)
            epoch = event.envelope.epoch
            if isinstance(event.data, LeaderClaimed):
                if event.data.epoch == self._epoch + 1:
                    self._epoch += 1
            elif epoch is not None and epoch != self._epoch:
                self._stale.add(record.offset)
        self.ignored = len(self._stale)

    def _check_epochs(self, connection: Connection) -> None:
        found = learning.leader(connection)
        epoch = 0 if found is None else found.epoch
        _hold(epoch == self._epoch, f"the tables are in epoch {epoch}, the log is in {self._epoch}")
        _hold(epoch >= self._folded_epoch, "epochs go back")
        self._folded_epoch = epoch

    def _check_fence(self, connection: Connection) -> None:
        for table in ONE_BY_ONE:
            offsets = set(connection.execute(select(table.table().c.offset)).scalars())
            counted = sorted(offsets & self._stale)
            _hold(not counted, f"{table.__name__} counts what a former leader said: {counted}")


def _check_cycles(connection: Connection, cycles: list[CycleRow]) -> None:
    """Numbers are dense, one is open at most, each has one round and one job, and what it wrote
    counts once."""
    numbers = sorted(one.number for one in cycles)
    _hold(numbers == list(range(1, len(cycles) + 1)), f"numbers of cycles: {numbers}")
    _hold(sum(one.outcome is None for one in cycles) <= 1, "two cycles are open")
    rounds = Counter(one.round for one in cycles if one.round is not None)
    _at_most_one(rounds, "cycles of a round")
    jobs = Job.table().c
    _at_most_one(Counter(connection.execute(select(jobs.cycle)).scalars()), "jobs")
    tasks, vain = Task.table().c, Rejection.table().c
    written = Counter(connection.execute(select(tasks.cycle)).scalars())
    rejected = Counter(connection.execute(select(vain.cycle)).scalars())
    for one in cycles:
        expected = (TASKS, REJECTED) if one.job is not None else (0, 0)
        for found in (
            (one.accepted, one.rejected),
            (written[one.cycle], rejected[one.cycle]),
        ):
            _hold(found == expected, f"cycle {one.number} counts {found} tasks, not {expected}")
        if one.directive is not None:
            _hold(one.directive.quotas[0].pattern == PATTERN, "another directive")


def _check_steps(connection: Connection) -> None:
    """An adapter moves once into each state, is measured once, and routes move by what counted."""
    steps, measured = LifecycleStep.table().c, Evaluation.table().c
    counted = connection.execute(
        select(steps.kind, steps.subject, steps.type, steps.state, steps.cause, steps.event).where(
            steps.refused.is_(None)
        )
    ).all()
    # Measured anew beside another incumbent it has another cause: the gate that it passed before.
    moves = Counter(
        (row.subject, row.type, row.state, row.cause) for row in counted if row.kind == "adapter"
    )
    _at_most_one(Counter({key: n for key, n in moves.items() if key[1] != "RouteChanged"}), "steps")
    gates = Counter(row.subject for row in counted if row.state == "gated")
    often = {name: count for name, count in gates.items() if count > MOST_GATES}
    _hold(not often, f"gates passed more than {MOST_GATES} times: {often}")
    entered = Counter(
        (row.subject, row.state) for row in counted
        if row.kind == "adapter" and row.type == "RouteChanged" and row.state == "canary"
    )  # fmt: skip
    _at_most_one(entered, "canaries")
    rows = connection.execute(select(measured.adapter, measured.number))
    _at_most_one(Counter(map(tuple, rows)), "evaluations")
    measures = Counter(row.subject for row in counted if row.type == "AdapterEvaluated")
    unread = {name: n for name, n in measures.items() if n > gates[name] + 1}
    _hold(not unread, f"evaluations counted twice, that no gate was told of: {unread}")
    routes = connection.execute(select(Route.table().c.cause)).scalars()
    events = {row.event for row in counted if row.kind == "alias"}
    _hold(set(routes) <= events, "a route that no event made")


def _check_rollouts(connection: Connection, cycles: list[CycleRow]) -> None:
    """Each rollout is in the round of the first cycle whose position covers it, and in no other."""
    rollouts = Rollout.table().c
    rows = connection.execute(
        select(rollouts.rollout, rollouts.partition, rollouts.event_source, rollouts.sequence,
               rollouts.round)
    )  # fmt: skip
    for row in rows:
        place = (str(row.partition), row.event_source, row.sequence)
        readers = [one for one in cycles if _covers(one.position, *place)]
        first = min(readers, key=lambda one: one.number, default=None)
        expected = None if first is None else first.round
        _hold(
            row.round == expected,
            f"{row.rollout} is in round {row.round}, and its cycle reads {expected}",
        )


def _covers(position: Any, partition: str, source: str, sequence: int) -> bool:
    read = position.get("rollouts", {}).get(partition, {})
    return bool(sequence <= read.get(source, -1))


def _at_most_one(counts: Mapping[Any, int], what: str) -> None:
    twice = {key: count for key, count in counts.items() if key is not None and count > 1}
    _hold(not twice, f"{what} counted twice: {json.dumps(list(map(str, twice)))}")


def _hold(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
