"""Candidates by both modes, until a directive's quotas are full.

    inherit   the failed task itself in other words: same calls, same first state, same criteria
    explore   a fresh task like it: the environment draws a new state and a new trajectory, and
              writes the request from them

The followed tasks are those of the failed rollouts that the directive names for a pattern; the
environment's label of a kind of task is never used.

Guarantee: everything is drawn from the cycle's id (and the round of its job), the pattern, the
place in its quota and the try, so a redo writes the same tasks under the same event ids (where V8
samples the policy, as far as the samples agree). At most three tries a place. Not covered:
appending (the cycle).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
)
from daemon.proposer.verification import Verdict, verify
from envs.environment import Environment
from envs.task import TaskDefinition
from events.envelope import derive_id
from events.learning import Directive, JobRound, Mode, Quota, TaskProposed, TaskRejected

TRIES: Final = 3
"""Most tries for one place of a quota."""
MOST_HARD: Final = 0.3
"""Largest share of a quota that the current policy may never pass."""
_PHRASINGS: Final = 1 << 16
"""Number of seeds for rephrasings."""


@dataclass(frozen=True, slots=True)
class Source:
    """A failed rollout and its task."""

    rollout: str
    task: TaskDefinition


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """The quotas to fill, and what the checks compare candidates with."""

    cycle: str
    alias: str
    base: str
    directive: Directive
    sources: Mapping[str, Sequence[Source]]
    """Pattern -> failed rollouts that show it."""
    known: Sequence[PriorTask] = ()
    """Tasks that are in the buffer."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    explore: float = 0.75
    """Share of the places of a quota that are filled with fresh tasks from the first try."""
    sampler: Sampler | None = None
    job_round: JobRound | None = None
    """The round of the cycle's job that asks; None for the cycle itself."""

    @property
    def origin(self) -> tuple[str, ...]:
        """What everything is drawn from."""
        name = self.job_round
        return (self.cycle,) if name is None else (self.cycle, name.job, str(name.number))


@dataclass(frozen=True, slots=True)
class Proposal:
    """An event to append."""

    id: str
    """derive_id("proposal", cycle, pattern, place, try); of a round of a job, its id and number
    follow the cycle."""
    data: TaskProposed | TaskRejected


def propose(
    environment: Environment,
    wanted: ProposalRequest,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Proposal]:
    """Yield proposals for the quotas, one after the other; `progress` is told of each place that is
    full. Raises CannotSample."""
    known = list(wanted.known)
    for quota in wanted.directive.quotas:
        sources = wanted.sources.get(quota.pattern, ())
        if not sources:
            yield _reject_pattern(wanted, quota)
            continue
        hard = int(MOST_HARD * quota.tasks)
        for place in range(quota.tasks):
            for number in range(TRIES):
                written = _write_draft(environment, wanted, quota, sources, place, number)
                examined = CandidateFacts(
                    environment,
                    written.candidate,
                    known,
                    wanted.evaluation,
                    wanted.sampler,
                    hard=hard > 0,
                )
                verdict = verify(examined)
                yield written.proposal(wanted, quota, verdict)
                if verdict.failed is None:
                    task = written.candidate.task
                    known.append(PriorTask.of(task))
                    hard -= any(check.note.startswith("0 of") for check in verdict.passed)
                    progress(1)
                    break


@dataclass(frozen=True, slots=True)
class _Draft:
    """A candidate and its place in a quota."""

    candidate: Candidate
    source: Source
    place: int
    number: int

    def proposal(self, wanted: ProposalRequest, quota: Quota, verdict: Verdict) -> Proposal:
        """Return the proposal that records the verdict."""
        task, mode = self.candidate.task, self.candidate.mode
        event = _event_id(wanted, quota, self.place, self.number)
        if verdict.failed is None:
            return Proposal(
                event,
                TaskProposed(
                    alias=wanted.alias,
                    base=wanted.base,
                    task=task.record(),
                    pattern=quota.pattern,
                    source_rollout=self.source.rollout,
                    cycle=wanted.cycle,
                    mode=mode,
                    verified=verdict.passed,
                    job_round=wanted.job_round,
                ),
            )
        return Proposal(
            event,
            TaskRejected(
                cycle=wanted.cycle,
                alias=wanted.alias,
                base=wanted.base,
                pattern=quota.pattern,
                mode=mode,
                check=verdict.failed,
                reason=verdict.reason,
                source_rollout=self.source.rollout,
                instruction=task.scenario.text()[:4096],
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
    """Return the candidate of one try. The last try is never a rephrasing: there may be no more of
    them."""
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
    # A task that the environment cannot draw variants of is a benchmark's; its own check says so.
    return _Draft(Candidate(task or source.task, mode, source.task), source, place, number)


def _share(wanted: ProposalRequest, pattern: str) -> float:
    """Return the share of the places that explore from the start: a mode that mostly failed in the
    previous cycle is not begun with, unless both did."""
    bad = {entry.mode for entry in wanted.directive.bad_tries if entry.pattern == pattern}
    if bad == {"inherit"}:
        return 1.0
    return 0.0 if bad == {"explore"} else wanted.explore


def _explores(place: int, share: float) -> bool:
    """Whether this place is one of the exploring share; any run of places keeps the share."""
    return int((place + 1) * share) > int(place * share)


def _reject_pattern(wanted: ProposalRequest, quota: Quota) -> Proposal:
    """Return the rejection of a pattern without a failed rollout of a known task."""
    return Proposal(
        _event_id(wanted, quota, 0, 0),
        TaskRejected(
            cycle=wanted.cycle,
            alias=wanted.alias,
            base=wanted.base,
            pattern=quota.pattern,
            mode="inherit",
            check="schema",
            reason="none of the failures that show this pattern is of a task that the environment "
            "knows, so there is none to follow",
            job_round=wanted.job_round,
        ),
    )


def _event_id(wanted: ProposalRequest, quota: Quota, place: int, number: int) -> str:
    return derive_id("proposal", *wanted.origin, quota.pattern, str(place), str(number))
