"""Decisions of a cycle before they are recorded, and errors that make a step wait or skip.

Leader, planner and the rooms of methods share these, so none of them needs another one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.errors import KintsugiError
from events.learning import Decision, JobRequested


class RetryLater(KintsugiError):
    """A step that could not be taken; the next tick tries again."""


class Skip(KintsugiError):
    """A part of a step that is left out, with the reason; the cycle goes on without it."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The tasks that a cycle writes and the jobs that are to learn them."""

    said: Mapping[str, Decision]
    """Id of its event -> tasks, the rejected ones as well, and the jobs that are to learn them."""
    lacking: str | None = None
    """Why no job follows."""
    untaught: Mapping[str, str] = field(default_factory=dict)
    """Name of a branch without a job -> the reason; empty for a cycle without branches."""
    retrained: Mapping[str, str] = field(default_factory=dict)
    """Name of a branch that an earlier base had and that has a job again -> why."""


@dataclass(frozen=True, slots=True)
class Study:
    """A decision about a round beside its counts, recorded before the directive is written."""

    data: Decision
    step: str
    """Name of the step that it is, from which the id of the event follows."""
    says: str
    """What was done, as a clause."""


@dataclass(frozen=True, slots=True)
class FreeRequest:
    """A job that belongs to no cycle and is to be requested."""

    event: str
    """Id of the event."""
    data: JobRequested
    says: str
    """What was done, as a sentence."""
