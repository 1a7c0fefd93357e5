"""Decisions of a cycle before they are recorded, and errors that make a step wait or skip."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.errors import KintsugiError
from events.learning import Decision, JobRequested


class RetryLater(KintsugiError):
    """The step failed; the next tick tries again."""


class Skip(KintsugiError):
    """A part of a step is left out, with the reason; the cycle goes on."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cycle's written tasks and jobs."""

    said: Mapping[str, Decision]
    """Id of event -> a task, a rejection or a job."""
    lacking: str | None = None
    untaught: Mapping[str, str] = field(default_factory=dict)
    """Branch without a job -> the reason."""
    retrained: Mapping[str, str] = field(default_factory=dict)
    """Branch of an earlier base with a new job -> why."""


@dataclass(frozen=True, slots=True)
class Study:
    """A decision about a round, recorded before the directive."""

    data: Decision
    step: str
    """Name of its step, from which the event's id follows."""
    says: str
    """A clause on the result."""


@dataclass(frozen=True, slots=True)
class FreeRequest:
    """A job beside the cycles."""

    event: str
    data: JobRequested
    says: str
    """A sentence on the result."""
