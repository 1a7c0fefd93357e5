"""The decisions of a cycle before they are recorded, and errors that make a step wait or skip."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.errors import KintsugiError
from events.learning import Decision, JobRequested


class RetryLater(KintsugiError):
    """The step failed for now; the next tick tries it again."""


class Skip(KintsugiError):
    """A part of a step is left out, and the cycle goes on. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The tasks and job requests that a cycle decides on in its step PROPOSE."""

    said: Mapping[str, Decision]
    """Event id -> a task, a rejection or a job."""
    lacking: str | None = None
    untaught: Mapping[str, str] = field(default_factory=dict)
    """Branch without a job -> the reason."""
    retrained: Mapping[str, str] = field(default_factory=dict)
    """Branch of an earlier base that is trained again -> the reason."""


@dataclass(frozen=True, slots=True)
class Study:
    """A method's finding about a round, recorded before the directive is written."""

    data: Decision
    step: str
    """Name of the step, from which the event's id follows."""
    says: str
    """A clause that tells the result."""


@dataclass(frozen=True, slots=True)
class FreeRequest:
    """The request of a training job that belongs to no cycle."""

    event: str
    data: JobRequested
    says: str
    """A sentence that tells the result."""
