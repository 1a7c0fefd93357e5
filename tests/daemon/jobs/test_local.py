"""Jobs as processes of this machine, beyond what every runner does (tests/contract)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.jobs.runner import Again, Ended, JobNotStarted, Over, Result, Running, verdict
from tests.daemon.jobs.looks import ended, job, runner, speaking, until

STARTS_AND_DIES = """
import os, signal, sys
from pathlib import Path
from tests.daemon.jobs.looks import job, runner

assert runner(Path(sys.argv[1])).start(job("waits"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_outlives_whoever_started_it_and_is_adopted(tmp_path: Path) -> None:
    program = [sys.executable, "-c", STARTS_AND_DIES, str(tmp_path)]
    killed = subprocess.run(program, check=False)
    assert killed.returncode == -signal.SIGKILL
    here = runner(tmp_path)
    assert speaking(here, tmp_path).attempt == 1
    assert here.start(job("waits"))
    assert isinstance(here.state("j"), Running)
    here.cancel("j", "over")
    assert ended(here).attempts == 1


def test_a_job_that_does_not_listen_has_its_grace(tmp_path: Path) -> None:
    patient = runner(tmp_path)
    patient.start(job("deaf"))
    speaking(patient, tmp_path)
    for _ in range(2):
        patient.cancel("j", "over")
    assert isinstance(patient.state("j"), Running), "the grace is not over"
    runner(tmp_path, grace=0.0).cancel("j", "over")
    ended(patient)


def test_a_group_that_was_killed_as_a_whole_is_seen_to_be_gone(tmp_path: Path) -> None:
    here = runner(tmp_path)
    here.start(job("waits"))
    speaking(here, tmp_path)
    group = int((tmp_path / "jobs" / "j" / "attempts" / "1.pid").read_text())
    os.killpg(group, signal.SIGKILL)
    over = ended(here)
    assert over.code is None
    found = verdict(over, 3)
    assert isinstance(found, Again)
    assert "the container or its session was killed" in found.reason


def test_no_zombie_is_left(tmp_path: Path) -> None:
    here = runner(tmp_path)
    here.start(job("diverges"))
    ended(here)

    def gone() -> bool | None:
        here.close()
        group = int((tmp_path / "jobs" / "j" / "attempts" / "1.pid").read_text())
        try:
            os.kill(group, 0)
        except ProcessLookupError:
            return True
        return None

    assert until(gone)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("in the way")
    with pytest.raises(JobNotStarted, match="job j was not started"):
        runner(tmp_path).start(job("waits"))


def test_what_the_learner_can_go_on_from_is_tried_again() -> None:
    """Also where there is room again when somebody looks."""
    reason = "out/rollouts.jsonl did not take 9 bytes; see to the disk, then run the same command "
    refused = Result(outcome="failed", reason=f"{reason}to go on")
    assert verdict(Ended(1, 0, 1.0, refused, code=1), 1) == Again(f"{reason}to go on")
    found = verdict(Ended(2, 1, 1.0, refused, code=1, full=True), 1)
    assert isinstance(found, Over)
    assert found.reason.startswith("the disk of the job is full: out/rollouts.jsonl did not take")


def test_a_full_disk_is_said() -> None:
    over = Ended(3, 3, 1.0, None, code=1, complaint="No space left on device", full=True)
    reason = "the disk of the job is full: No space left on device"
    assert verdict(over, 3) == Over("failed", f"{reason}; 3 attempts in a row brought no rollout")
