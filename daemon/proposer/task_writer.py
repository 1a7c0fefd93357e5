"""A method's writer of tasks, which the Proposer asks for drafts of one mode (proposer.py).

A directive says how many places of a quota each mode gets. The Proposer asks the writer of the mode
for drafts, checks each, and records it; the writer only makes them.
"""

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
    """The task that it is of or like, and the failed rollout that it follows."""
    key: Key | None = None
    """Key of the person of whose rollout it is made; None for one that is no person's."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tasks for one pattern."""

    tasks: tuple[Draft, ...]
    trouble: str
    """Why there is none; empty where there are some."""


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """The writer of the tasks of a mode."""

    name: str
    """Part of the id of an event that rejects a pattern; it never changes."""
    mode: Mode
    check: Check
    """The check that a pattern fails for which nothing can be written."""
    pool: ModePool
    """The pool that its tasks are drawn from."""
    draft: Callable[[Environment, str, Sequence[Source], int, str], Drafts]
    """Takes an environment, a pattern, the sources of its failed rollouts (at least one), the most
    drafts, and a seed. Returns the drafts. Equal arguments give equal drafts."""
