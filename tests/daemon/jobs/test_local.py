"""Jobs as processes of this machine, beyond what every runner does (tests/contract)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.jobs.attempts import MOST_UNSEEN, JobFolder
from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import Active, Again, Exit, JobStartError, Over, Result, verdict
from tests.daemon.jobs.looks import ended, job, runner, speaking, until
from tests.daemon.jobs.trainer import COMMAND

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
    assert isinstance(here.state("j"), Active)
    here.cancel("j", "over")
    assert ended(here).attempts == 1


def test_a_job_that_does_not_listen_has_its_grace(tmp_path: Path) -> None:
    patient = runner(tmp_path)
    patient.start(job("deaf"))
    speaking(patient, tmp_path)
    for _ in range(2):
        patient.cancel("j", "over")
    assert isinstance(patient.state("j"), Active), "the grace is not over"
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


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_ends_no_job(tmp_path: Path, hours: int) -> None:
    """Set forward or back by an hour: the times of all files are an hour older, or yet to come."""
    here = runner(tmp_path)
    here.start(job("waits"))
    speaking(here, tmp_path)
    for path in (tmp_path / "jobs" / "j").rglob("*"):
        times = path.stat()
        moved = times.st_mtime - 3600 * hours
        os.utime(path, (moved, moved))
    state = here.state("j")
    assert isinstance(state, Active)
    assert 0 <= state.silent < 60
    assert 0 <= state.seconds < 60
    here.cancel("j", "over")
    assert 0 <= ended(here).seconds < 60


def test_what_a_job_did_while_the_machine_slept_or_nobody_looked_is_not_counted(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    here = LocalRunner(tmp_path / "jobs", command=COMMAND, clock=lambda: now[0])
    here.start(job("waits"))
    speaking(here, tmp_path)
    now[0] += 8 * 3600
    state = here.state("j")
    assert isinstance(state, Active)
    assert state.silent <= MOST_UNSEEN
    assert state.seconds <= MOST_UNSEEN
    for _ in range(5):  # Whoever looks, also another process.
        now[0] += 10
        other = LocalRunner(tmp_path / "jobs", command=COMMAND, clock=lambda: now[0])
        later = other.state("j")
    assert isinstance(later, Active)
    assert later.silent == state.silent + 50
    assert later.seconds == state.seconds + 50
    here.cancel("j", "over")
    ended(here)


def test_a_silent_job_is_seen_on_a_disk_that_takes_no_notes(tmp_path: Path) -> None:
    now = [0.0]
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    (attempts / "1.out").touch()
    folder = JobFolder(tmp_path, lambda: now[0])
    folder.read_active([attempts / "1"])
    (note,) = attempts.glob("*.seen")
    # Where the next note would be written first, nothing can be.
    note.with_name(f"tmp-{note.name}").mkdir()
    for _ in range(10):
        now[0] += 10
        state = folder.read_active([attempts / "1"])
    assert state.silent == 100


def test_the_grace_of_a_job_that_does_not_listen_minds_no_clock_either(tmp_path: Path) -> None:
    now = [1000.0]
    here = LocalRunner(tmp_path / "jobs", command=COMMAND, grace=20.0, clock=lambda: now[0])
    here.start(job("deaf"))
    speaking(here, tmp_path)
    here.cancel("j", "over")
    stop = tmp_path / "jobs" / "j" / "attempts" / "1.stop"
    os.utime(stop, (0, 0))
    here.cancel("j", "over")
    assert isinstance(here.state("j"), Active), "the grace is not over"
    now[0] += 21
    here.cancel("j", "over")
    ended(here)


def test_how_long_it_ran_is_what_it_said(tmp_path: Path) -> None:
    """Its own clock goes on across whoever looks, and across starts of the machine."""
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    (attempts / "1.before").write_text("0")
    lines = [{"heartbeat": {"seconds": 41.5, "phase": "sampling"}}, {"steps": 3}]
    (attempts / "1.out").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (attempts / "1.code").write_text("137")
    folder = JobFolder(tmp_path)
    assert folder.read_exit(folder.attempts()).seconds == 41.5


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
    with pytest.raises(JobStartError, match="job j was not started"):
        runner(tmp_path).start(job("waits"))


def test_what_the_learner_can_go_on_from_is_tried_again() -> None:
    """Also where there is room again when somebody looks."""
    reason = "out/rollouts.jsonl did not take 9 bytes; see to the disk, then run the same command "
    refused = Result(outcome="failed", reason=f"{reason}to go on")
    assert verdict(Exit(1, 0, 1.0, refused, code=1), 1) == Again(f"{reason}to go on")
    found = verdict(Exit(2, 1, 1.0, refused, code=1, full=True), 1)
    assert isinstance(found, Over)
    assert found.reason.startswith("the disk of the job is full: out/rollouts.jsonl did not take")


def test_a_full_disk_is_said() -> None:
    over = Exit(3, 3, 1.0, None, code=1, complaint="No space left on device", full=True)
    reason = "the disk of the job is full: No space left on device"
    assert verdict(over, 3) == Over("failed", f"{reason}; 3 attempts in a row brought no rollout")
