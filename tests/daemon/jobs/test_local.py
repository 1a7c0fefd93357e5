"""Jobs as processes of this machine: one each, whoever is killed, and every end has its words."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.jobs.runner import Absent, Again, Ended, JobNotStarted, Over, Running, verdict
from tests.daemon.jobs.looks import ended, job, runner, speaking, until

STARTS_AND_DIES = """
import os, signal, sys
from pathlib import Path
from tests.daemon.jobs.looks import job, runner

assert runner(Path(sys.argv[1])).start(job("waits"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_runs_once_and_only_so_many_at_once(tmp_path: Path) -> None:
    one, other = runner(tmp_path), runner(tmp_path)
    assert one.state("j") == Absent()
    assert one.start(job("waits"))
    assert other.start(job("waits")), "it runs, which is what was wanted"
    assert not other.start(job("waits", "second")), "the only slot is taken"
    found = speaking(other, tmp_path)
    assert (found.attempt, other.state("second")) == (1, Absent())
    other.cancel("j", "that was enough")
    over = ended(one)
    assert (over.attempts, over.stopped, over.code) == (1, "that was enough", 1)
    assert verdict(over, 3) == Again("that was enough")
    assert other.start(job("waits", "second"))
    speaking(other, tmp_path, "second")
    other.cancel("second", "over")
    ended(other, "second")


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


def test_a_job_that_does_not_listen_is_killed_when_it_is_told_again(tmp_path: Path) -> None:
    here = runner(tmp_path, grace=0.0)
    here.start(job("deaf"))
    speaking(here, tmp_path)
    here.cancel("j", "over")
    assert isinstance(here.state("j"), Running)
    here.cancel("j", "over")
    assert ended(here).stopped == "over"
    patient = runner(tmp_path)
    patient.start(job("deaf"))
    speaking(patient, tmp_path)
    for _ in range(2):
        patient.cancel("j", "over")
    assert isinstance(patient.state("j"), Running), "the grace is not over"
    here.cancel("j", "over")
    ended(here)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("memory", "it was killed (signal 9): memory ran out, or somebody killed it"),
        ("raises", "it ended with exit code 1: MemoryError: no room"),
    ],
)
def test_what_dies_is_tried_again_so_many_times(tmp_path: Path, way: str, words: str) -> None:
    here = runner(tmp_path)
    for attempt in (1, 2, 3):
        assert here.start(job(way))
        over = ended(here)
        assert (over.attempts, over.barren) == (attempt, attempt)
        if attempt < 3:
            assert verdict(over, 3) == Again(words)
    assert verdict(over, 3) == Over("failed", f"{words}; 3 attempts in a row brought no rollout")


def test_an_attempt_that_played_gives_the_job_new_ones(tmp_path: Path) -> None:
    here = runner(tmp_path)
    for way, barren in (("memory", 1), ("memory", 2), ("memory", 3)):
        here.start(job(way))
        assert ended(here).barren == barren
    playing = runner(tmp_path)
    for _ in (1, 2, 3):
        playing.start(job("plays and dies", "p"))
        over = ended(playing, "p")
        assert over.barren == 0
        assert isinstance(verdict(over, 1), Again)


def test_an_end_that_would_come_again_is_final(tmp_path: Path) -> None:
    here = runner(tmp_path)
    here.start(job("diverges"))
    reason = "the loss of update 3 is not finite; lower optimizer.lr"
    over = ended(here)
    assert verdict(over, 3) == Over("failed", reason)
    assert over.result is not None
    assert over.result.steps == 3
    here.start(job("usage", "u"))
    reason = "it ended with exit code 2: rank: must be above 0"
    assert verdict(ended(here, "u"), 3) == Over("failed", reason)


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


def test_a_full_disk_is_said() -> None:
    over = Ended(3, 3, 1.0, None, code=1, complaint="No space left on device", full=True)
    reason = "the disk of the job is full: No space left on device"
    assert verdict(over, 3) == Over("failed", f"{reason}; 3 attempts in a row brought no rollout")
