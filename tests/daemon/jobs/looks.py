"""Looking at jobs again and again, as the role `work` does."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import Active, Exit, Job, JobRunner
from events.jobs import JobSpec
from tests.daemon.jobs.trainer import COMMAND, WAYS

T = TypeVar("T")


def job(way: str, name: str = "j") -> Job:
    """One whose trainer behaves in this way."""
    spec = {
        "job": name,
        "base": "letters",
        "checkpoint": "nowhere",
        "environment": "letters",
        "pools": [{"name": "target", "tasks": ["letters/half/1"]}],
        "seed": WAYS.index(way),
    }
    return Job(name, JobSpec.model_validate(spec))


def runner(folder: Path, grace: float = 5.0) -> LocalRunner:
    """One whose jobs are run by trainer.py."""
    return LocalRunner(folder / "jobs", command=COMMAND, grace=grace)


def until(look: Callable[[], T | None]) -> T:
    """What a look finds in the end."""
    while (found := look()) is None:
        time.sleep(0.02)
    return found


def ended(runner: JobRunner, name: str = "j") -> Exit:
    """How an attempt ended."""

    def look() -> Exit | None:
        found = runner.state(name)
        return found if isinstance(found, Exit) else None

    return until(look)


def speaking(runner: JobRunner, folder: Path, name: str = "j") -> Active:
    """A running attempt that has said its first word."""
    attempts = folder / "jobs" / name / "attempts"

    def look() -> Active | None:
        found = runner.state(name)
        assert isinstance(found, Active)
        out = attempts / f"{found.attempt}.out"
        return found if out.exists() and b"heartbeat" in out.read_bytes() else None

    return until(look)
