"""Candidates by both modes, until a directive's quotas are full.

    inherit   the failed task itself in other words: same calls, same first state, same criteria
    explore   a fresh task like it: the environment draws a new state and a new trajectory, and
              writes the request from them

Which tasks are followed is said by the failed rollouts that the directive names for a pattern, and
by nothing else: never by the environment's label of a kind of task.

Guarantee: everything is drawn from the cycle's id, the pattern, the place in its quota and the try,
so a redo writes the same tasks under the same event ids (where V8 samples the policy, as far as it
does the same). At most three tries a place. Not covered: appending (the cycle).
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
from events.learning import Directive, Mode, Quota, TaskProposed, TaskRejected

TRIES: Final = 3
"""For one place of a quota."""
MOST_HARD: Final = 0.3
"""Share of a quota that may be tasks which the current policy never passes."""
_PHRASINGS: Final = 1 << 16
"""Seeds of other words."""


@dataclass(frozen=True, slots=True)
class Source:
    """A failed rollout and its task."""

    rollout: str
    task: TaskDefinition


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """What is to be written, and what it is held against."""

    cycle: str
    alias: str
    base: str
    directive: Directive
    sources: Mapping[str, Sequence[Source]]
    """Pattern -> failed rollouts that show it."""
    known: Sequence[PriorTask] = ()
    """The tasks of the buffer."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    explore: float = 0.75
    """Share of the places of a quota that are filled with fresh tasks from the start."""
    sampler: Sampler | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """An event that is to be appended."""

    id: str
    """derive_id("proposal", cycle, pattern, place, try)."""
    data: TaskProposed | TaskRejected


def propose(
    environment: Environment,
    wanted: ProposalRequest,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Proposal]:
    """Tasks for the quotas, one after the other; `progress` is told of each place that is full.
    Raises CannotSample."""
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
    """A candidate, and where it stands."""

    candidate: Candidate
    source: Source
    place: int
    number: int

    def proposal(self, wanted: ProposalRequest, quota: Quota, verdict: Verdict) -> Proposal:
        """What became of it."""
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
    """The candidate of one try. A last try is never in other words: there may be no more."""
    share = _share(wanted, quota.pattern)
    chance = Random(f"propose {wanted.cycle} {quota.pattern} {place} {number}")
    source = chance.choice(sources)
    phrasing, seed = chance.randrange(_PHRASINGS), chance.randrange(FIRST_SEED, LAST_SEED + 1)
    mode: Mode = "inherit"
    task = None
    if number < TRIES - 1 and not _explores(place, share):
        task = environment.rephrase(source.task, phrasing)
    if task is None:
        mode, task = "explore", environment.like(source.task, seed)
    # A task that nothing can be like is a benchmark's, and its own check says so.
    return _Draft(Candidate(task or source.task, mode, source.task), source, place, number)


def _share(wanted: ProposalRequest, pattern: str) -> float:
    """Share of the places that explore from the start: a mode that mostly failed in the cycle
    before is not begun with, unless both did."""
    bad = {entry.mode for entry in wanted.directive.bad_tries if entry.pattern == pattern}
    if bad == {"inherit"}:
        return 1.0
    return 0.0 if bad == {"explore"} else wanted.explore


def _explores(place: int, share: float) -> bool:
    """Whether this place is one of the share; any number of places in a row keeps it."""
    return int((place + 1) * share) > int(place * share)


def _reject_pattern(wanted: ProposalRequest, quota: Quota) -> Proposal:
    """A pattern none of whose failures is of a task that is known here."""
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
        ),
    )


def _event_id(wanted: ProposalRequest, quota: Quota, place: int, number: int) -> str:
    return derive_id("proposal", wanted.cycle, quota.pattern, str(place), str(number))
