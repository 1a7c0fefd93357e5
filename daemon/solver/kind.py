"""A kind of job: its check, the files that it is given, and how it is run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from events.jobs import JobSpec
from events.serving import Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App
    from daemon.solver.telemetry.outcome import Outcome


RunJob = Callable[..., "Outcome"]
"""Runs a job like `run` of daemon/solver/job.py."""


@dataclass(frozen=True, slots=True)
class ShownRollouts:
    """The recorded rollouts that a job learns from, as a file in its directory."""

    name: str
    content: bytes
    tasks: tuple[str, ...] = ()
    """Tasks of the rollouts that the spec does not name."""


ReadShown = Callable[["App", "Connection", Sequence[str]], ShownRollouts]
"""Reads the rollouts with these names. Raises NotShown."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """Properties of one kind of job."""

    check: Callable[[JobSpec], None]
    """Raises NotSupported where the spec asks for what this kind does not do."""
    load_run: Callable[[], RunJob]
    """Imports what runs the job: torch takes seconds."""
    role: Role = "agent"
    read_shown: ReadShown | None = None
    """None: the agent's own successes."""
