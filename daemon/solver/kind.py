"""A kind of job: how its spec is checked, which files it needs, and what runs it."""

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
"""Runs a job, with the arguments of `run` in daemon/solver/job.py."""


@dataclass(frozen=True, slots=True)
class ShownRollouts:
    """The file of recorded rollouts that a job learns from; it lies in the job's directory."""

    name: str
    content: bytes
    tasks: tuple[str, ...] = ()
    """Tasks of these rollouts, as far as the spec does not name them."""


ReadShown = Callable[["App", "Connection", Sequence[str]], ShownRollouts]
"""Reads the rollouts with these names from the tables. Raises NotShown."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """Properties of one kind of job."""

    check: Callable[[JobSpec], None]
    """Raises NotSupported if the spec asks for something that this kind of job cannot do."""
    load_run: Callable[[], RunJob]
    """Imports and returns the function that runs the job; importing torch takes seconds."""
    role: Role = "agent"
    read_shown: ReadShown | None = None
    """Reads the rollouts to learn from; None: the job learns from the agent's own successes."""
