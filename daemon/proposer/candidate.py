"""A written task that is being checked, with the facts that its checks need.

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
"""First seed reserved for reports, the Proposer and gates. Live traffic has lower seeds."""
FIRST_SEED: Final = 1 << 28
LAST_SEED: Final = (1 << 32) - 1
"""Last seed of written tasks. Gates use higher seeds, held-out reports those below `FIRST_SEED`."""


def is_evaluation_seed(seed: int | None) -> bool:
    """Return whether a seed is reserved for gates or reports, so that no job may train on it."""
    return seed is not None and (FIRST_HELD_OUT <= seed < FIRST_SEED or seed > LAST_SEED)


MOST_BODY: Final = 256 * 1024
"""Most bytes of a stored definition; a Kafka record holds a megabyte. Ours have 1 to 10 KB."""

_REASON: Final = "Reason for call: "
_PART: Final = re.compile(r"\n(?:Known info|Unknown info|Task instructions|Persona): ")
"""Start of a scenario's text, and of its further parts (envs/task.py)."""

Sampler = Callable[[TaskDefinition], int]
"""Plays 8 rollouts of a task with the current policy and returns how many pass."""


@dataclass(frozen=True, slots=True)
class Source:
    """A failed rollout and its task, from which tasks are written."""

    rollout: str
    task: TaskDefinition


@dataclass(frozen=True, slots=True)
class Candidate:
    """A written task and its origin."""

    task: TaskDefinition
    mode: Mode | None
    """How the task was written; None if an operator added it."""
    source: TaskDefinition | None
    """Failed task that this one follows, or the task of a lesson's conversation, if any."""
    drawn: str | None = None
    """Generated task in whose first state a planned task begins."""


@dataclass(frozen=True, slots=True)
class PriorTask:
    """A task in the buffer, reduced to what the check of novelty compares."""

    signature: str | None
    request: str
    prefix: tuple[Message, ...] = ()
    """Conversation before the request; after another conversation it is another task."""

    @classmethod
    def of(cls, task: TaskDefinition) -> "PriorTask":
        """Build it from a task's definition."""
        return cls(task.signature, task.scenario.reason_for_call, task.prefix)

    @classmethod
    def from_record(cls, gold: Sequence[Action] | None, instruction: str | None) -> "PriorTask":
        """Build it from a record: without a prefix, with the instruction's first part."""
        request = _PART.split(instruction or "")[0].removeprefix(_REASON)
        return cls(None if gold is None else signature(gold), request)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The tasks and seeds that evaluation uses, on which nothing is trained."""

    seeds: range = range(FIRST_SEED, LAST_SEED + 1)
    """Seeds of written tasks; all other seeds have other uses."""
    signatures: frozenset[str] = frozenset()
    definitions: frozenset[str] = frozenset()
    """Digests of whole task definitions."""


class CheckFailure(KintsugiError):
    """A written task fails a check; the text is the reason."""


class CannotSample(KintsugiError):
    """The current policy's pass rate cannot be measured. The task is not at fault."""


class CandidateFacts(TaskFacts):
    """A candidate with the facts that its checks need."""

    def __init__(
        self,
        environment: Environment,
        candidate: Candidate,
        known: Sequence[PriorTask] = (),
        evaluation: Evaluation | None = None,
        sampler: Sampler | None = None,
        hard: bool = True,
    ) -> None:
        """`hard` tells whether a task that the current policy never passes is allowed."""
        super().__init__(environment, candidate.task)
        self.candidate = candidate
        self.known = known
        self.evaluation = evaluation or Evaluation()
        self.sampler = sampler
        self.hard = hard

    @cached_property
    def oracle(self) -> Episode:
        """Return the episode that the oracle plays with the scripted user."""
        task = self.task
        episode = Episode(self.environment, task)
        return play(episode, self.environment.oracle(task), self.environment.user(task))
