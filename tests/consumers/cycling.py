"""Decisions of the loop, for tests: written in one line each, appended and folded."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from consumers import database
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.jobs import JobSpec, PanelRouter, Sampler, TaskPool
from events.learning import (
    CycleEnded,
    CycleOutcome,
    CycleStarted,
    Decision,
    Directive,
    DirectiveWritten,
    JobEnded,
    JobOutcome,
    JobRequested,
    JobRound,
    LeaderClaimed,
    PatternsDiagnosed,
    PoolShare,
    PoolsShifted,
    Quota,
    TaskProposed,
    TaskRejected,
    Verified,
)
from events.log import Entry
from events.memory import MemoryLog
from events.position import Position
from events.rollouts import Task
from tests.consumers.folding import at, fold

PATTERN = "missing_write_action|cancel_order"


def cycle_id(number: int = 1, alias: str = "agent", base: str = "base") -> str:
    """As the scheduler makes it."""
    return derive_id("cycle", alias, base, str(number))


def started(
    number: int = 1, alias: str = "agent", base: str = "base", reason: str = "200 new rollouts"
) -> CycleStarted:
    return CycleStarted(
        cycle=cycle_id(number, alias, base), alias=alias, base=base, number=number,
        environment="shop", trigger="rollouts", reason=reason, position={"rollouts": {}},
    )  # fmt: skip


def diagnosed(position: Position, number: int = 1, alias: str = "agent") -> PatternsDiagnosed:
    cycle = cycle_id(number, alias)
    return PatternsDiagnosed(trigger="schedule", position=position, cycle=cycle)


def directed(number: int = 1, summary: str = "") -> DirectiveWritten:
    quota = Quota(pattern=PATTERN, tasks=2, priority=0.5, status="NEW")
    return DirectiveWritten(
        cycle=cycle_id(number), round=0, directive=Directive(quotas=(quota,)), summary=summary
    )


def proposed(
    task: str, number: int | None = 1, alias: str = "agent", base: str = "base"
) -> TaskProposed:
    return TaskProposed(
        alias=alias, base=base, task=Task(id=task, environment="shop", gold_actions=()),
        pattern=PATTERN, cycle=None if number is None else cycle_id(number, alias, base),
        mode="inherit", verified=(Verified(check="gold", note="played"),), text_by="author",
    )  # fmt: skip


def rejected(reason: str, number: int = 1) -> TaskRejected:
    return TaskRejected(
        cycle=cycle_id(number), alias="agent", base="base", pattern=PATTERN, mode="explore",
        check="leak", reason=reason, instruction="Cancel it.",
    )  # fmt: skip


def requested(
    number: int = 1,
    name: str | None = None,
    minutes: float = 30,
    *,
    skill: str | None = None,
    router: PanelRouter | None = None,
) -> JobRequested:
    """A job of a cycle: for everything, for a skill, or one that trains a router."""
    job = derive_id("job", cycle_id(number)) if name is None else name
    spec = JobSpec(
        job=job, base="base", checkpoint="/base", environment="shop",
        teaches="agent" if router is None else "router", router=router,
        pools=(TaskPool(name=PATTERN, tasks=("shop/1",)),), sampler=Sampler(temperature=0.7),
    )  # fmt: skip
    return JobRequested(
        job=job, cycle=cycle_id(number), alias="agent", base="base", capability="cancel", spec=spec,
        minutes=minutes, skill=skill,
    )  # fmt: skip


def in_round(
    data: DirectiveWritten | TaskProposed | TaskRejected, cycle: int = 1, number: int = 1
) -> Decision:
    """What the job of a cycle wrote in one of its rounds."""
    name = JobRound(job=derive_id("job", cycle_id(cycle)), number=number)
    return data.model_copy(update={"job_round": name})


def shifted(cycle: int = 1, number: int = 1, share: float = 0.25) -> PoolsShifted:
    return PoolsShifted(
        cycle=cycle_id(cycle),
        job_round=JobRound(job=derive_id("job", cycle_id(cycle)), number=number),
        rollouts=64, failures=9,
        pools=(PoolShare(pool=PATTERN, share=share, before=0.5, tasks=3, attempts=8, passes=2),),
    )  # fmt: skip


def job_over(number: int = 1, outcome: JobOutcome = "trained", seconds: float = 60.5) -> JobEnded:
    return JobEnded(
        job=derive_id("job", cycle_id(number)), outcome=outcome, adapter="/jobs/adapter",
        sha256="0" * 64, steps=3, rollouts=64, seconds=seconds, attempts=2,
    )  # fmt: skip


def over(
    number: int = 1, outcome: CycleOutcome = "promoted", alias: str = "agent", base: str = "base"
) -> CycleEnded:
    return CycleEnded(cycle=cycle_id(number, alias, base), outcome=outcome, reason=f"is {outcome}")


class Leading:
    """A log of decisions, the tables that are folded from it, and an epoch to decide in."""

    def __init__(self, engine: Engine, log: MemoryLog | None = None) -> None:
        self.engine = engine
        self.log = MemoryLog() if log is None else log
        self.second = 0

    def claim(self, epoch: int, holder: str = "process") -> None:
        """A process says that it leads in `epoch`."""
        self._append(LeaderClaimed(epoch=epoch, holder=holder), f"{holder}-{epoch}", None)

    def say(self, data: Decision, name: str, epoch: int | None = None) -> None:
        """Append the decision as the event `name`, and fold it."""
        self._append(data, name, epoch)

    def all(self, *decisions: Decision, epoch: int | None = None) -> None:
        """The same for several, each a new event."""
        for data in decisions:
            self._append(data, f"step-{self.second}", epoch)

    def write(self, data: Decision, name: str, epoch: int | None) -> None:
        """Append the decision as the event `name`."""
        self.log.append([self._entry(data, name, epoch)])

    def _append(self, data: Decision, name: str, epoch: int | None) -> None:
        self.write(data, name, epoch)
        fold(self.log, self.engine)

    def _entry(self, data: Decision, name: str, epoch: int | None) -> Entry:
        self.second += 1
        envelope = Envelope(
            id=derive_id("test", name), type=data.TYPE, version=data.VERSION, subject=data.key(),
            time=at(self.second), epoch=epoch,
        )  # fmt: skip
        return encode(envelope, data, recorded_ms=1).entry

    @contextmanager
    def tables(self) -> Iterator[Connection]:
        with database.read_transaction(self.engine) as connection:
            yield connection
