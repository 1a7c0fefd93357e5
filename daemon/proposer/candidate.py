"""A written task under examination: what it is, what it is held against, what it does.

Guarantee: what an `CandidateFacts` found out is found out once, so ten checks play one episode.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from daemon.proposer.observability import Knowledge
from envs.environment import Environment
from envs.episode import Episode, play
from envs.task import TaskDefinition, signature
from events.errors import KintsugiError
from events.learning import Mode
from events.messages import Action

FIRST_HELD_OUT: Final = 1 << 27
"""Generated tasks from this seed on are nobody's traffic: they belong to reports, to the Proposer
and to gates."""
FIRST_SEED: Final = 1 << 28
LAST_SEED: Final = (1 << 32) - 1
"""Seeds of written tasks. Gates have those above, reports their held-out tasks those below."""

_REASON: Final = "Reason for call: "
_PART: Final = re.compile(r"\n(?:Known info|Unknown info|Task instructions|Persona): ")
"""How a scenario in words begins, and where its further parts do (envs/task.py)."""

Sampler = Callable[[TaskDefinition], int]
"""How many of 8 rollouts of the current policy pass a task."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that was written."""

    task: TaskDefinition
    mode: Mode
    source: TaskDefinition
    """The failed one that it follows."""


@dataclass(frozen=True, slots=True)
class PriorTask:
    """A task that the buffer has."""

    signature: str | None
    request: str
    """Why the user calls."""

    @classmethod
    def of(cls, task: TaskDefinition) -> "PriorTask":
        """What is known of a task."""
        return cls(task.signature, task.scenario.reason_for_call)

    @classmethod
    def from_record(cls, gold: Sequence[Action] | None, instruction: str | None) -> "PriorTask":
        """What is known of a task by its record: of its instruction, the first part."""
        request = _PART.split(instruction or "")[0].removeprefix(_REASON)
        return cls(None if gold is None else signature(gold), request)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is kept for evaluation: nothing of it may be trained on."""

    seeds: range = range(FIRST_SEED, LAST_SEED + 1)
    """Those that a written task of its own may have; all others belong to somebody."""
    signatures: frozenset[str] = frozenset()
    definitions: frozenset[str] = frozenset()
    """Digests of whole tasks."""


class CheckFailure(KintsugiError):
    """A written task fails a check; the text says why."""


class CannotSample(KintsugiError):
    """Nobody can say how the current policy does on a task: this is not the task's fault."""


class CandidateFacts:
    """A candidate and what its checks found out about it, each thing once."""

    def __init__(
        self,
        environment: Environment,
        candidate: Candidate,
        known: Sequence[PriorTask] = (),
        evaluation: Evaluation | None = None,
        sampler: Sampler | None = None,
        hard: bool = True,
    ) -> None:
        """`hard`: whether one that the current policy never passes may still be taken."""
        self.environment = environment
        self.task = candidate.task
        self.candidate = candidate
        self.known = known
        self.evaluation = evaluation or Evaluation()
        self.sampler = sampler
        self.hard = hard

    @cached_property
    def outputs(self) -> list[str]:
        """What the tools answer to the gold actions. Raises CheckFailure for a refusal."""
        return self._replay()[0]

    @cached_property
    def knowledge(self) -> Knowledge:
        """What an agent can know."""
        return Knowledge(self.environment, self.task)

    @cached_property
    def oracle(self) -> Episode:
        """The whole episode of the oracle with the scripted user."""
        task = self.task
        episode = Episode(self.environment, task)
        return play(episode, self.environment.oracle(task), self.environment.user(task))

    def repeats(self) -> bool:
        """Whether the gold actions end in the same state again. Raises CheckFailure."""
        return self._replay()[1] == self._replay()[1]

    @cached_property
    def changes(self) -> bool:
        """Whether the gold actions leave another state than the first."""
        return self._replay()[1] != self.environment.reset(self.task).digest()

    def _replay(self) -> tuple[list[str], str]:
        database = self.environment.reset(self.task)
        tools = self.environment.toolset(database)
        outputs = []
        for action in self.task.criteria.gold_actions or ():
            result = tools.call(action.name, action.arguments)
            if result.error:
                raise CheckFailure(f"gold action {action.name} is refused: {result.content[:200]}")
            outputs.append(result.content)
        return outputs, database.digest()
