"""Simulate the cycles that other settings of the scheduler would have started on an existing log.

The log is folded in the order of recording into separate tables, and the scheduler's `decide` is
asked as time passes. The agents' traffic is the log's; unread rollouts, cool-down, back-off and
budget follow from the simulated cycles. An agent's n-th simulated cycle is assumed to last as long
as its n-th real one, with the same outcome. Later cycles have the median duration and are promoted.

With unchanged settings, and the scheduler asked as often as by the leader, the result is the real
cycles. Nothing is appended. Not covered: traffic and rounds that other cycles would have caused;
priorities change at the log's own rounds.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine

from consumers import database
from consumers.diagnosis.round_counts import Pair
from consumers.position import position
from consumers.reads import agents
from consumers.reads.scheduling import Scheduling, unread_since
from consumers.runner import Runner
from daemon.cycle.scheduler import (
    Due,
    NotDue,
    decide,
    list_change_times,
    not_due_without_environment,
)
from daemon.replay.cycle_history import PastCycle
from events.archive.archive import Cut
from events.archive.views import Span, in_time, starts
from events.envelope import parse_timestamp
from events.log import EventLog
from events.position import Position
from events.streams import LEARNING, ROLLOUTS

if TYPE_CHECKING:
    from daemon.config.settings import Scheduler

_LIKE_PROMOTED: Final = "promoted"


@dataclass(frozen=True, slots=True)
class Would:
    """A simulated cycle: one that would have begun with other settings."""

    alias: str
    base: str
    number: int
    at: datetime
    trigger: str
    reason: str
    rollouts: int
    """Number of rollouts that no earlier cycle has read."""
    failures: int
    priority: float
    position: Position
    ends: datetime
    """When the cycle ends with the assumed duration."""
    outcome: str | None
    job_seconds: float


@dataclass(slots=True)
class WhatIfResult:
    """Simulated cycles, and the missing conditions of the next ones."""

    looks: int = 0
    cycles: list[Would] = field(default_factory=list)
    waiting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Alias -> missing conditions of its next cycle at the end."""


@dataclass(slots=True)
class _Course:
    pair: Pair
    past: Sequence[PastCycle]
    cycles: list[Would] = field(default_factory=list)
    read: Position = field(default_factory=dict)
    decided: int = -1
    """Offset of `learning` at which the last simulated cycle began."""

    def next_like(self) -> tuple[float, str | None, float]:
        """Return the assumed seconds, outcome and job seconds of the next cycle."""
        if len(self.cycles) < len(self.past):
            same = self.past[len(self.cycles)]
            if same.seconds is not None:
                return same.seconds, same.row.outcome, same.job_seconds
        over = [cycle for cycle in self.past if cycle.seconds is not None]
        if not over:
            return 0.0, _LIKE_PROMOTED, 0.0
        middle = median(cycle.seconds for cycle in over if cycle.seconds is not None)
        return middle, _LIKE_PROMOTED, median(cycle.job_seconds for cycle in over)

    def repeat(self, cycle: PastCycle) -> Would:
        assert cycle.row.started is not None, "the leader says when it decides"
        seconds, outcome, job_seconds = self.next_like()
        at = parse_timestamp(cycle.row.started)
        begun = Would(
            alias=cycle.row.alias,
            base=cycle.row.base,
            number=cycle.row.number,
            at=at,
            trigger=cycle.row.trigger,
            reason=cycle.row.reason,
            rollouts=cycle.rollouts,
            failures=0,
            priority=0.0,
            position=cycle.row.position,
            ends=at + timedelta(seconds=seconds),
            outcome=outcome,
            job_seconds=job_seconds,
        )
        self.cycles.append(begun)
        self.read = {ROLLOUTS.name: cycle.row.position.get(ROLLOUTS.name, {})}
        self.decided = cycle.decided
        return begun


def whatif(
    log: EventLog,
    engine: Engine,
    past: Sequence[PastCycle],
    environments: Mapping[str, str],
    settings: "Scheduler",
    *,
    kinds: Mapping[str, Collection[str]] | None = None,
    start: Cut | None = None,
    end: Cut,
    every_ms: int,
    advance: Callable[[int], None] = lambda _: None,
) -> WhatIfResult:
    """Fold `log` to `end`, and ask the scheduler about every `every_ms` of recorded events.

    `environments` is agent -> its environment (without one, no cycle begins). `kinds` is agent ->
    the kinds of task that the loop writes (without them, failures on any task count). Cycles before
    `start` stay as they were.
    """
    walk = _Walk(past, environments, settings, kinds or {})
    runner = Runner(Span(log, end), engine, on_progress=advance)
    begin = starts(log)
    if start is not None:
        walk.repeat([cycle for cycle in past if cycle.within(None, start)])
        runner.catch_up(until=start)
        begin = start
    for cut, now, until in _looks(log, begin, end, every_ms):
        runner.catch_up(until=cut)
        with database.read_transaction(engine) as connection:
            walk.look(connection, cut, now, until)
    return walk.result


class _Walk:
    def __init__(
        self,
        past: Sequence[PastCycle],
        environments: Mapping[str, str],
        settings: "Scheduler",
        kinds: Mapping[str, Collection[str]],
    ) -> None:
        self.result = WhatIfResult()
        self._past = past
        self._environments = environments
        self._settings = settings
        self._kinds = kinds
        self._courses: dict[Pair, _Course] = {}
        self._before: list[Would] = []

    def repeat(self, begun: Sequence[PastCycle]) -> None:
        for cycle in begun:
            self._before.append(self._course(Pair(cycle.row.alias, cycle.row.base)).repeat(cycle))

    def look(self, connection: Connection, cut: Cut, now: datetime, until: datetime) -> None:
        """Ask the scheduler at `now` and at each time before `until` when its answer may change."""
        self.result.looks += 1
        for pair in agents.present(connection):
            course = self._course(pair)
            environment = self._environments.get(pair.alias)
            if environment is None:
                self._wait(pair, not_due_without_environment(pair.alias))
                continue
            moment: datetime | None = now
            unread = self._unread(connection, course)
            while moment is not None:
                facts = self._facts(course, unread, moment)
                decided = decide(facts, self._settings, moment)
                if isinstance(decided, Due):
                    self._begin(connection, course, facts, decided, cut, moment)
                    unread = self._unread(connection, course)
                    facts = self._facts(course, unread, moment)
                else:
                    self._wait(pair, decided)
                moment = self._next(course, facts, moment, until)

    def _course(self, pair: Pair) -> _Course:
        if pair not in self._courses:
            past = [cycle for cycle in self._past if (cycle.row.alias, cycle.row.base) == pair]
            self._courses[pair] = _Course(pair, past)
        return self._courses[pair]

    def _wait(self, pair: Pair, decided: NotDue) -> None:
        self.result.waiting[pair.alias] = decided.missing

    def _unread(self, connection: Connection, course: _Course) -> Scheduling:
        kinds = self._kinds.get(course.pair.alias)
        return unread_since(connection, *course.pair, course.read, course.decided, kinds)

    def _facts(self, course: _Course, unread: Scheduling, now: datetime) -> Scheduling:
        last = course.cycles[-1] if course.cycles else None
        return replace(
            unread,
            number=len(course.cycles) + 1,
            is_open=any(cycle.ends > now for cycle in self._of_alias(course.pair.alias)),
            last_started=None if last is None else last.at,
            last_ended=None if last is None or last.ends > now else last.ends,
            fruitless=_fruitless(course.cycles, now),
            job_seconds=self._job_seconds(now),
        )

    def _of_alias(self, alias: str) -> Iterator[Would]:
        return (cycle for cycle in self._iter_cycles() if cycle.alias == alias)

    def _iter_cycles(self) -> Iterator[Would]:
        return chain(self._before, self.result.cycles)

    def _job_seconds(self, now: datetime) -> float:
        ended = (cycle for cycle in self._iter_cycles() if cycle.ends <= now)
        return sum(cycle.job_seconds for cycle in ended if cycle.ends.date() == now.date())

    def _begin(
        self,
        connection: Connection,
        course: _Course,
        facts: Scheduling,
        due: Due,
        cut: Cut,
        now: datetime,
    ) -> None:
        seconds, outcome, job_seconds = course.next_like()
        course.read = {ROLLOUTS.name: position(connection).get(ROLLOUTS.name, {})}
        course.decided = cut[LEARNING.name, 0] - 1
        begun = Would(
            alias=facts.alias,
            base=facts.base,
            number=facts.number,
            at=now,
            trigger=due.trigger,
            reason=due.reason,
            rollouts=facts.rollouts,
            failures=facts.failed,
            priority=facts.priority,
            position=course.read,
            ends=now + timedelta(seconds=seconds),
            outcome=outcome,
            job_seconds=job_seconds,
        )
        course.cycles.append(begun)
        self.result.cycles.append(begun)

    def _next(
        self, course: _Course, facts: Scheduling, now: datetime, until: datetime
    ) -> datetime | None:
        """Return the next moment before `until` at which the answer may change."""
        ends = [cycle.ends for cycle in self._of_alias(course.pair.alias) if cycle.ends > now]
        moments = sorted([*ends, *list_change_times(facts, self._settings, now)])
        return next((moment for moment in moments if moment < until), None)


def _fruitless(cycles: Sequence[Would], now: datetime) -> int:
    count = 0
    for cycle in reversed([each for each in cycles if each.ends <= now]):
        if cycle.outcome == _LIKE_PROMOTED:
            break
        count += cycle.outcome not in (None, "cancelled")
    return count


def _looks(
    log: EventLog, begin: Cut, end: Cut, every_ms: int
) -> Iterator[tuple[Cut, datetime, datetime]]:
    """Yield (position, time, time of the next event) for each moment to ask the scheduler."""
    cut = dict(begin)
    first = last = None
    for record in in_time(log, begin, end):
        if first is not None and last is not None and record.recorded_ms - first >= every_ms:
            yield dict(cut), _moment(last), _moment(record.recorded_ms)
            first = None
        cut[record.stream, record.partition] = record.offset + 1
        first = record.recorded_ms if first is None else first
        last = max(record.recorded_ms, last or record.recorded_ms)
    if last is not None:
        yield dict(cut), _moment(last), _moment(last)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
