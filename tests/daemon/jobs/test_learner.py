"""The learner itself as a job: killed at work, it goes on and leaves the adapter it would have."""

import os
import signal
from pathlib import Path

import pytest

from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import Again, Ended, Job, Over, Running, verdict
from daemon.solver.job import run
from events.jobs import JobSpec
from tests.daemon.jobs.looks import ended, until
from tests.daemon.solver import letters

pytestmark = [pytest.mark.processes, pytest.mark.faults]


def test_a_learner_that_is_killed_ends_with_the_same_adapter(tmp_path: Path) -> None:
    base = letters.checkpoint(tmp_path / "base")
    spec = JobSpec.model_validate(letters.spec(base))
    whole = run(spec, tmp_path / "whole")
    runner = LocalRunner(tmp_path / "jobs")
    job, folder = Job("j", spec), tmp_path / "jobs" / "j"
    assert runner.start(job)
    until(lambda: b"metrics" in (folder / "attempts" / "1.out").read_bytes() or None)
    os.killpg(int((folder / "attempts" / "1.pid").read_text()), signal.SIGKILL)
    first = ended(runner)
    assert isinstance(verdict(first, 3), Again)
    assert first.barren == 0
    assert runner.start(job)
    assert isinstance(runner.state("j"), Running | Ended)
    second = ended(runner)
    assert verdict(second, 3) == Over("trained")
    assert second.result is not None
    assert (second.attempts, second.result.sha256) == (2, whole.sha256)
