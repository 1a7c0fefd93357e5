"""A written task under examination, with the facts that its checks need.

Guarantee: `CandidateFacts` computes each fact once, so ten checks play one episode.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from envs.environment import Environment
from envs.episode import Episode, play
from envs.evidence.task_facts import TaskFacts
from envs.task import TaskDefinition, signature
from events.errors import KintsugiError
from events.learning import Mode
from events.messages import Action, Message

FIRST_HELD_OUT: Final = 1 << 27
"""First seed reserved for reports, the Proposer and gates: generated tasks from it on are not
traffic."""
FIRST_SEED: Final = 1 << 28
LAST_SEED: Final = (1 << 32) - 1
"""Last seed of written tasks. Gates use the seeds above, reports' held-out tasks those below
`FIRST_SEED`."""


def is_evaluation_seed(seed: int | None) -> bool:
    """Whether a seed is kept for gates or for reports."""
    return seed is not None and (FIRST_HELD_OUT <= seed < FIRST_SEED or seed > LAST_SEED)


MOST_BODY: Final = 256 * 1024
"""Bytes of one definition that is stored: a record of Kafka takes a megabyte. Ours have 1 to 10
KB."""

_REASON: Final = "Reason for call: "
_PART: Final = re.compile(r"\n(?:Known info|Unknown info|Task instructions|Persona): ")
"""Matches the start of a scenario in words and of each of its further parts (envs/task.py)."""

Sampler = Callable[[TaskDefinition], int]
"""Function that returns how many of 8 rollouts of the current policy pass a task."""


@dataclass(frozen=True, slots=True)
class Source:
    """A failed rollout and its task."""

    rollout: str
    task: TaskDefinition


@dataclass(frozen=True, slots=True)
class Candidate:
    """A written task and its origin."""

    task: TaskDefinition
    mode: Mode | None
    """None for one that an operator wrote."""
    source: TaskDefinition | None
    """The failed task that it follows, or the task that a lesson's conversation is of; None for one
    that follows none."""
    drawn: str | None = None
    """Of one by a plan: id of the generated task whose first state it begins in."""


@dataclass(frozen=True, slots=True)
class PriorTask:
    """A task that is in the buffer already."""

    signature: str | None
    request: str
    """The user's reason for calling."""
    prefix: tuple[Message, ...] = ()
    """The conversation that it begins after: begun elsewhere, the same request is another task."""

    @classmethod
    def of(cls, task: TaskDefinition) -> "PriorTask":
        """Build it from a task definition."""
        return cls(task.signature, task.scenario.reason_for_call, task.prefix)

    @classmethod
    def from_record(cls, gold: Sequence[Action] | None, instruction: str | None) -> "PriorTask":
        """Build it from a task's record, which has no prefix; of the instruction, only the first
        part is used."""
        request = _PART.split(instruction or "")[0].removeprefix(_REASON)
        return cls(None if gold is None else signature(gold), request)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Tasks and seeds reserved for evaluation: none of them may be trained on."""

    seeds: range = range(FIRST_SEED, LAST_SEED + 1)
    """Seeds that a newly written task may have; all others are reserved for other uses."""
    signatures: frozenset[str] = frozenset()
    definitions: frozenset[str] = frozenset()
    """Digests of whole task definitions."""


class CheckFailure(KintsugiError):
    """A written task fails a check; the text says why."""


class CannotSample(KintsugiError):
    """The pass rate of the current policy cannot be measured, through no fault of the task."""


class CandidateFacts(TaskFacts):
    """A candidate and the facts that its checks found, each computed once."""

    def __init__(
        self,
        environment: Environment,
        candidate: Candidate,
        known: Sequence[PriorTask] = (),
        evaluation: Evaluation | None = None,
        sampler: Sampler | None = None,
        hard: bool = True,
    ) -> None:
        """`hard`: whether a task that the current policy never passes may be accepted."""
        super().__init__(environment, candidate.task)
        self.candidate = candidate
        self.known = known
        self.evaluation = evaluation or Evaluation()
        self.sampler = sampler
        self.hard = hard

    @cached_property
    def oracle(self) -> Episode:
        """Return the whole episode of the oracle with the scripted user."""
        task = self.task
        episode = Episode(self.environment, task)
        return play(episode, self.environment.oracle(task), self.environment.user(task))
