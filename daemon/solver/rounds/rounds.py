"""Close a job's rounds: diagnose its rollouts, write a directive and tasks, change the pools.

    rounds = Rounds(spec, settings, environment, chat, out, spec_digest)
    rounds.add(attempts, trajectories)           every batch that was played
    if rounds.is_due(rollouts):
        record = rounds.close_next()            record.pools are drawn from then on

Rules, formulas and checks are those of a cycle (consumers/diagnosis, daemon/controller,
daemon/proposer), over tables of this process alone. Check V8 is left out: it costs eight rollouts a
task, and the first group of a new task tells the same. Pools with an environment, a user or a
reward of their own do not change, and their rollouts are not read. Everything depends on spec and
rollouts, and random seeds on job and round, so a killed job closes the same rounds again.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.reads.evidence import last_outcomes
from consumers.reads.rollouts import pattern_lines
from daemon.controller.directive_builder import ClosedRound, build_directive, read_closed_round
from daemon.controller.rejected_tries import bad_tries
from daemon.proposer import sources
from daemon.proposer.buffer import WINDOW, PoolEntry
from daemon.proposer.candidate import PriorTask
from daemon.proposer.proposer import Proposal, ProposalRequest, propose
from daemon.solver.journal import BadJournal
from daemon.solver.rounds.reconstruction import UnreadableRollout, build_event
from daemon.solver.rounds.record import RoundRecord, WrittenTask, record_path
from daemon.solver.rounds.shift import describe_shift, shift_pools
from daemon.solver.rounds.tables import JobTables
from events.files import replace_file
from events.jobs import JobRounds, JobSpec, TaskPool
from events.learning import Directive, JobRound, TaskProposed, TaskRejected
from events.rollouts import RolloutEnded

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.engine.chat import Chat
    from daemon.solver.sampling.local import Attempt
    from daemon.solver.trajectory import Trajectory
    from envs.environment import Environment


class Rounds:
    def __init__(
        self, spec: JobSpec, settings: JobRounds, environment: "Environment", chat: "Chat",
        out: Path, spec_digest: str,
    ) -> None:  # fmt: skip
        """Prepare rounds. `out` is the job's directory, `spec_digest` that of the requested spec.
        Raise UnknownTask if the environment lacks a task of `settings.known`."""
        self._spec, self._settings = spec, settings
        self._environment, self._chat, self._out = environment, chat, out
        self._digest = spec_digest
        self._tables = JobTables(spec)
        self._part: list[tuple[Attempt, Trajectory]] = []
        self._sampled = 0
        self._pools = spec.pools
        targets = [pool for pool in spec.target_pools if pool.is_plain]
        self._written = {task: pool.name for pool in targets for task in pool.tasks}
        """Task -> the failure pattern that it was written for."""
        own = [task for pool in targets for task in pool.all_tasks]
        self._known = [PriorTask.of(environment.task(task)) for task in (*settings.known, *own)]
        self._tries: list[TaskProposed | TaskRejected] = []
        self.closed = 0

    def close(self) -> None:
        """Drop the tables in memory."""
        self._tables.close()

    def add(self, attempts: "Sequence[Attempt]", trajectories: "Sequence[Trajectory]") -> None:
        """Add a played batch; keep rollouts with the environment's own user and verdict."""
        self._part += (
            (attempt, trajectory)
            for attempt, trajectory in zip(attempts, trajectories, strict=True)
            if self._is_read(attempt)
        )
        self._sampled += len(trajectories)

    def _is_read(self, attempt: "Attempt") -> bool:
        own = attempt.environment in (None, self._environment)
        is_open = attempt.task.salt is None  # a person's words must not get into a record
        return own and is_open and attempt.user is None and attempt.reward == "verdict"

    def is_due(self, rollouts: int) -> bool:
        """Return whether a round is due after `rollouts` rollouts of the budget. The rounds divide
        the budget equally; rollouts of a warm start do not count."""
        next_round, count = self.closed + 1, self._settings.count
        if next_round >= count or not self._part:
            return False
        shown = rollouts - self._sampled
        return self._sampled * count >= next_round * (self._spec.sampler.rollouts - shown)

    def close_next(self) -> RoundRecord:
        """Close a round over the rollouts since the last one; write and return its record. Raise
        BadJournal if another record exists, EnvironmentFailure, NotFolded, OSError."""
        name = JobRound(job=self._spec.job, number=self.closed + 1)
        events = list(self._read_part())
        record = self._record(name, events)
        _store(self._out, record)
        self._part.clear()
        self._pools = record.pools
        self.closed += 1
        return record

    def _read_part(self) -> Iterator[RolloutEnded]:
        for attempt, trajectory in self._part:
            try:
                yield build_event(self._spec, self._environment, self._chat, attempt, trajectory)
            except UnreadableRollout:
                continue  # the record counts such rollouts as unread

    def _record(self, name: JobRound, events: Sequence[RolloutEnded]) -> RoundRecord:
        failures, directive = 0, Directive(quotas=())
        tasks: list[Proposal] = []
        pools, shares = self._pools, describe_shift(self._pools, self._pools, {})
        if events:
            number = self._tables.close_round(events)
            with self._tables.reading() as connection:
                closed = read_closed_round(
                    connection, self._settings.alias, self._spec.base, number
                )
                failures = sum(row.category is not None for row in closed.rollouts)
                directive = self._direct(connection, name, closed)
                tasks = self._propose(connection, name, directive)
                self._keep(tasks)
                outcomes = last_outcomes(
                    connection, self._settings.alias, self._spec.base, list(self._written), WINDOW
                )
                pools = self._shift(connection, outcomes)
            shares = describe_shift(self._pools, pools, outcomes)
        return RoundRecord(
            spec=self._digest,
            number=name.number,
            rollouts=len(self._part),
            failures=failures,
            unread=len(self._part) - len(events),
            directive=directive,
            tasks=tuple(WrittenTask(event=entry.id, data=entry.data) for entry in tasks),
            pools=pools,
            shares=shares,
        )

    def _direct(self, connection: "Connection", name: JobRound, closed: ClosedRound) -> Directive:
        written = [data for data in self._tries if isinstance(data, TaskProposed)]
        rejected = [data for data in self._tries if isinstance(data, TaskRejected)]
        aims = self._settings.aims
        directive = build_directive(
            connection,
            closed,
            self._settings.tasks,
            f"{name.job} {name.number}",
            bad=bad_tries(written, rejected),
            aims=aims,
        )
        if not aims:
            return directive
        # If no aimed pattern failed, the directive is about all patterns. Other patterns have their
        # own jobs.
        quotas = tuple(quota for quota in directive.quotas if quota.pattern in aims)
        return directive.model_copy(update={"quotas": quotas})

    def _propose(
        self, connection: "Connection", name: JobRound, directive: Directive
    ) -> list[Proposal]:
        settings = self._settings
        wanted = ProposalRequest(
            cycle=settings.cycle,
            alias=settings.alias,
            base=self._spec.base,
            directive=directive,
            sources=sources.sources(connection, self._environment, directive),
            known=self._known,
            explore=settings.explore,
            job_round=name,
        )
        return list(propose(self._environment, wanted))

    def _keep(self, tasks: Sequence[Proposal]) -> None:
        self._tries = [entry.data for entry in tasks]
        for data in self._tries:
            if isinstance(data, TaskProposed):
                self._written.setdefault(data.task.id, data.pattern)
                self._known.append(
                    PriorTask.from_record(data.task.gold_actions, data.task.instruction)
                )

    def _shift(
        self, connection: "Connection", outcomes: dict[str, tuple[int, int]]
    ) -> tuple[TaskPool, ...]:
        priorities = {
            line.pattern: line.priority for line in pattern_lines(connection, self._settings.alias)
        }
        entries = [
            PoolEntry(task, pattern, *outcomes.get(task, (0, 0)))
            for task, pattern in self._written.items()
        ]
        return shift_pools(self._pools, entries, priorities, self._settings.replay)


def _store(out: Path, record: RoundRecord) -> None:
    """Write the record atomically. Raise BadJournal if an existing record is different."""
    path = record_path(out, record.number)
    if path.exists():
        if path.read_bytes() != record.content():
            raise BadJournal(
                f"{path} is another record than this program makes of the same rollouts; it was "
                "written by another version: remove the directory to begin again"
            )
        return
    path.parent.mkdir(exist_ok=True)
    replace_file(path, record.content(), is_durable=True)
