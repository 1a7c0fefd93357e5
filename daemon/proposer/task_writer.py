"""The interface by which a method writes tasks of one mode. The Proposer asks for drafts
(proposer.py), checks them and records them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.proposer.buffer import ModePool
from daemon.proposer.candidate import Source
from envs.environment import Environment
from envs.task import TaskDefinition
from events.learning import Check, Mode
from events.privacy.sealing import Key


@dataclass(frozen=True, slots=True)
class Draft:
    """A written task that is not checked yet."""

    task: TaskDefinition
    """The task with its id by content."""
    source: Source
    """The failed rollout and its task, from which the draft was made."""
    key: Key | None = None
    """Encryption key of the person in that rollout, if any."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of tasks for one pattern."""

    tasks: tuple[Draft, ...]
    trouble: str
    """Reason why there are no drafts, or ""."""


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """A method's writer of the tasks of one mode."""

    name: str
    """Part of the event id that rejects a pattern without drafts; it must never change."""
    mode: Mode
    check: Check
    """Check that a pattern without drafts fails."""
    pool: ModePool
    draft: Callable[[Environment, str, Sequence[Source], int, str], Drafts]
    """Takes an environment, a pattern, its sources (at least one), the most drafts, and a seed.
    Equal arguments give equal drafts."""
