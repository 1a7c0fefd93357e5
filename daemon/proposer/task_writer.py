"""A method's writer of tasks of one mode; the Proposer asks it for drafts (proposer.py), then
checks and records them."""

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
    """A task that is not checked yet."""

    task: TaskDefinition
    """Under its id by content."""
    source: Source
    """The task that it is of or like, and its failed rollout."""
    key: Key | None = None
    """Key of the person of its rollout, if any."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tasks for one pattern."""

    tasks: tuple[Draft, ...]
    trouble: str
    """Reason for an empty result, or ""."""


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """The writer of the tasks of a mode."""

    name: str
    """Part of the id of a pattern's rejection; it never changes."""
    mode: Mode
    check: Check
    """Check that a pattern without drafts fails."""
    pool: ModePool
    draft: Callable[[Environment, str, Sequence[Source], int, str], Drafts]
    """Takes an environment, a pattern, its sources (at least one), the most drafts, and a seed.
    Equal arguments give equal drafts."""
