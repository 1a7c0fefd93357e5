"""Write tasks by modes until a directive's quotas are full.

    inherit   the failed task in other words: same calls, same first state, same criteria
    explore   a fresh task like it, with a new state, trajectory and request

A method may write tasks of a mode of its own (task_writer.py), in the first places of a quota, as
many as the directive names; the modes above fill the rest. Written tasks follow the tasks of the
failed rollouts that the directive names; the environment's label of a kind is never used.

Guarantee: all random choices follow from the cycle's id (and its job's round), the pattern, the
place and the try, so a restarted cycle writes the same tasks under the same event ids. If V8
samples the policy, this holds as far as the samples agree. Not covered: appending (the cycle).
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from daemon.proposer.candidate import (
    FIRST_SEED,
    LAST_SEED,
    Candidate,
    CandidateFacts,
    Evaluation,
    PriorTask,
    Sampler,
    Source,
)
from daemon.proposer.task_writer import TaskWriter
from daemon.proposer.verification import Verdict, verify
from envs.environment import Environment
from envs.sealed_body import seal_body
from envs.task import is_content_id, write_body
from events.envelope import derive_id
from events.learning import Check, Directive, JobRound, Mode, Quota, TaskProposed, TaskRejected
from events.privacy.sealing import Key
from events.rollouts import clip_reason

TRIES: Final = 3
"""Most tries to fill one place of a quota."""
MOST_HARD: Final = 0.3
"""Largest share of a quota for tasks that the current policy never passes."""
_PHRASINGS: Final = 1 << 16
_NOTHING_TO_FOLLOW: Final = (
    "none of the failures that show this pattern is of a task that the environment knows, so there "
    "is none to follow"
)


_OF_PERSON: Final = "it is made of a person's session, so the reason is not recorded"


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """A directive's quotas to fill, and what the checks of the tasks need."""

    cycle: str
    alias: str
    base: str
    directive: Directive
    sources: Mapping[str, Sequence[Source]]
    """Pattern -> failed rollouts that show it."""
    known: Sequence[PriorTask] = ()
    evaluation: Evaluation = field(default_factory=Evaluation)
    explore: float = 0.75
    """Share of a quota's places that explore from the first try."""
    sampler: Sampler | None = None
    job_round: JobRound | None = None
    """The round of the cycle's job that asks for tasks; None if the cycle itself asks."""
    writers: Sequence[TaskWriter] = ()
    """Writers of the methods' tasks, in order. A mode without a writer gets no task."""
    bodies: MutableMapping[str, str] = field(default_factory=dict)
    """Id by content -> the text of the task's body. The environment looks up new tasks here."""
    full: Mapping[str, int] = field(default_factory=dict)
    """Pattern -> number of its quota's places that are already filled."""

    @property
    def origin(self) -> tuple[str, ...]:
        """Return the strings from which random seeds and event ids follow."""
        name = self.job_round
        return (self.cycle,) if name is None else (self.cycle, name.job, str(name.number))


@dataclass(frozen=True, slots=True)
class Proposal:
    """The event of an accepted or rejected task, with its id, to append to the log."""

    id: str
    """derive_id("proposal", cycle, pattern, place, try). In a job's round, the job's id and the
    round's number follow the cycle."""
    data: TaskProposed | TaskRejected


def propose(environment: Environment, wanted: ProposalRequest) -> Iterator[Proposal]:
    """Yield proposals for the quotas. Raises CannotSample."""
    known = list(wanted.known)
    for quota in wanted.directive.quotas:
        sources = wanted.sources.get(quota.pattern, ())
        if wanted.full.get(quota.pattern, 0) >= quota.tasks:
            continue
        if not sources:
            yield _reject_pattern(wanted, quota)
            continue
        yield from _QuotaWriter(environment, wanted, quota, sources, known).write()


class ClientPlaces:
    """The places of a quota left for each API key. Without parts, places may follow any failure."""

    def __init__(self, quota: Quota) -> None:
        self._left = [part.tasks for part in quota.clients]
        self._part = {
            rollout: number
            for number, part in enumerate(quota.clients)
            for rollout in part.examples
        }

    def has_place(self, rollout: str) -> bool:
        """Return whether the API key of this failed rollout has a place left."""
        return not self._left or self._left[self._part[rollout]] > 0

    def take(self, rollout: str) -> None:
        """Use up a place of this failed rollout's API key."""
        if self._left:
            self._left[self._part[rollout]] -= 1

    def select(self, sources: Sequence[Source]) -> Sequence[Source]:
        """Return the failures whose API keys have a place left; return all if there are none."""
        return [source for source in sources if self.has_place(source.rollout)] or sources


class _QuotaWriter:
    def __init__(
        self,
        environment: Environment,
        wanted: ProposalRequest,
        quota: Quota,
        sources: Sequence[Source],
        known: list[PriorTask],
    ) -> None:
        self._environment, self._wanted, self._quota = environment, wanted, quota
        self._sources, self._known = sources, known
        self._hard = 0
        """Number of tasks that may still be accepted although the policy never passes them."""
        self._full = wanted.full.get(quota.pattern, 0)
        self._places = ClientPlaces(quota)

    def write(self) -> Iterator[Proposal]:
        for writer in self._wanted.writers:
            modes = self._quota.modes
            count = sum(choice.tasks for choice in modes if choice.mode == writer.mode)
            if count:
                yield from self._write_mode(writer, count)
        self._hard = int(MOST_HARD * (self._quota.tasks - self._full))
        for place in range(self._full, self._quota.tasks):
            sources = self._places.select(self._sources)
            for number in range(TRIES):
                written = _write_draft(
                    self._environment, self._wanted, self._quota, sources, place, number
                )
                verdict = self._examine(written.candidate)
                yield written.proposal(self._wanted, self._quota, verdict)
                if verdict.failed is None:
                    break
            self._places.take(written.rollout)

    def _write_mode(self, writer: TaskWriter, count: int) -> Iterator[Proposal]:
        """Yield a method's proposals until `count` passed; ordinary tasks fill the rest."""
        wanted, quota = self._wanted, self._quota
        self._hard = int(MOST_HARD * count)
        places = min(self._full + count, quota.tasks)
        seed = " ".join((*wanted.origin, quota.pattern))
        drafts = writer.draft(self._environment, quota.pattern, self._sources, TRIES * count, seed)
        if not drafts.tasks:
            event = derive_id("proposal", *wanted.origin, quota.pattern, writer.name)
            yield _reject_pattern(wanted, quota, writer.mode, writer.check, drafts.trouble, event)
        for draft in drafts.tasks:
            task = draft.task
            if self._full == places:
                return
            if not self._places.has_place(draft.source.rollout):
                continue
            wanted.bodies[task.id] = write_body(task.dump_body())
            candidate = Candidate(task, writer.mode, draft.source.task)
            event = derive_id("proposal", *wanted.origin, quota.pattern, task.id)
            written = _Draft(candidate, draft.source.rollout, event, draft.key)
            verdict = self._examine(candidate)
            yield written.proposal(wanted, quota, verdict)
            if verdict.failed is None:
                self._places.take(written.rollout)

    def _examine(self, candidate: Candidate) -> Verdict:
        """Check a candidate. If it passes, it fills a place, and later tasks must differ."""
        examined = CandidateFacts(
            self._environment,
            candidate,
            self._known,
            self._wanted.evaluation,
            self._wanted.sampler,
            hard=self._hard > 0,
        )
        verdict = verify(examined)
        if verdict.failed is None:
            self._known.append(PriorTask.of(candidate.task))
            self._hard -= any(check.note.startswith("0 of") for check in verdict.passed)
            self._full += 1
        return verdict


@dataclass(frozen=True, slots=True)
class _Draft:
    candidate: Candidate
    rollout: str
    """The failed rollout that the task follows."""
    event: str
    key: Key | None = None
    """Key that encrypts a task made from a person's session."""

    def proposal(self, wanted: ProposalRequest, quota: Quota, verdict: Verdict) -> Proposal:
        task, mode = self.candidate.task, self.candidate.mode
        if verdict.failed is None:
            return Proposal(
                self.event,
                TaskProposed(
                    alias=wanted.alias,
                    base=wanted.base,
                    task=task.record(),
                    pattern=quota.pattern,
                    source_rollout=self.rollout,
                    cycle=wanted.cycle,
                    mode=mode,
                    verified=verdict.passed,
                    job_round=wanted.job_round,
                    definition=task.dump_body()
                    if is_content_id(task.id) and self.key is None
                    else None,
                    sealed=None if self.key is None else seal_body(task, self.key),
                ),
            )
        return Proposal(
            self.event,
            TaskRejected(
                cycle=wanted.cycle,
                alias=wanted.alias,
                base=wanted.base,
                pattern=quota.pattern,
                mode=mode,
                check=verdict.failed,
                # The reason quotes the task.
                reason=verdict.reason if self.key is None else _OF_PERSON,
                source_rollout=self.rollout,
                instruction="" if self.key else task.scenario.text()[:4096],
                job_round=wanted.job_round,
            ),
        )


def _write_draft(
    environment: Environment,
    wanted: ProposalRequest,
    quota: Quota,
    sources: Sequence[Source],
    place: int,
    number: int,
) -> _Draft:
    """Return one try's candidate. The last try never rephrases: rephrasings may run out."""
    share = _share(wanted, quota.pattern)
    chance = Random(f"propose {' '.join(wanted.origin)} {quota.pattern} {place} {number}")
    source = chance.choice(sources)
    phrasing, seed = chance.randrange(_PHRASINGS), chance.randrange(FIRST_SEED, LAST_SEED + 1)
    mode: Mode = "inherit"
    task = None
    if number < TRIES - 1 and not _explores(place, share):
        task = environment.rephrase(source.task, phrasing)
    if task is None:
        mode, task = "explore", environment.like(source.task, seed)
    # If the environment cannot draw variants of the task, it is a benchmark's; a check refuses it.
    candidate = Candidate(task or source.task, mode, source.task)
    return _Draft(candidate, source.rollout, _event_id(wanted, quota, place, number))


def _share(wanted: ProposalRequest, pattern: str) -> float:
    """Return the share of places that explore from the start. If one of the two modes mostly failed
    in the previous cycle, places begin with the other mode."""
    bad = {
        entry.mode
        for entry in wanted.directive.bad_tries
        if entry.pattern == pattern and entry.mode in ("inherit", "explore")
    }
    if bad == {"inherit"}:
        return 1.0
    return 0.0 if bad == {"explore"} else wanted.explore


def _explores(place: int, share: float) -> bool:
    """Return whether this place explores: in any run of places, nearly `share` of them do."""
    return int((place + 1) * share) > int(place * share)


def _reject_pattern(
    wanted: ProposalRequest,
    quota: Quota,
    mode: Mode = "inherit",
    check: Check = "schema",
    reason: str = _NOTHING_TO_FOLLOW,
    event: str | None = None,
) -> Proposal:
    return Proposal(
        event or _event_id(wanted, quota, 0, 0),
        TaskRejected(
            cycle=wanted.cycle,
            alias=wanted.alias,
            base=wanted.base,
            pattern=quota.pattern,
            mode=mode,
            check=check,
            reason=clip_reason(reason),
            job_round=wanted.job_round,
        ),
    )


def _event_id(wanted: ProposalRequest, quota: Quota, place: int, number: int) -> str:
    return derive_id("proposal", *wanted.origin, quota.pattern, str(place), str(number))
