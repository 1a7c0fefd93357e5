"""What every runner of jobs does, wherever they run: one suite for this machine and for Ray."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.jobs.local import LocalRunner
from daemon.jobs.ray import Cluster, RayRunner
from daemon.jobs.runner import Absent, Active, Again, Exit, Job, JobRunner, Over, verdict
from daemon.jobs.runner_factory import LEARNER
from daemon.solver.job import run
from events.jobs import JobSpec
from tests.daemon.jobs.looks import ended, job, speaking, until
from tests.daemon.jobs.trainer import COMMAND, PYTHON
from tests.daemon.solver import letters

Make = Callable[..., JobRunner]

pytestmark = pytest.mark.processes


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes runners of one folder."""
    made: list[JobRunner] = []

    def one(command: tuple[str, ...] = COMMAND, grace: float = 5.0) -> JobRunner:
        root = tmp_path / "jobs"
        if request.param == "ray":
            cluster = Cluster(request.getfixturevalue("ray").address)
            made.append(RayRunner(root, cluster, command=command, grace=grace))
        else:
            made.append(LocalRunner(root, command=command, grace=grace))
        return made[-1]

    yield one
    for runner in made:
        runner.close()


def test_a_job_runs_once_and_only_so_many_at_once(make: Make, tmp_path: Path) -> None:
    one, other = make(), make()
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
    other.cancel("j", "it is over, and nothing happens")
    assert one.state("j") == over
    assert other.start(job("waits", "second"))
    speaking(other, tmp_path, "second")
    other.cancel("second", "over")
    ended(other, "second")


def test_a_job_finds_the_span_that_it_is(make: Make) -> None:
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    here = make()
    assert here.start(Job("j", job("traced").spec, header))
    result = ended(here).result
    assert result is not None
    assert result.reason == header


def test_a_job_that_does_not_listen_is_killed(make: Make, tmp_path: Path) -> None:
    here = make(grace=0.0)
    here.start(job("deaf"))
    speaking(here, tmp_path)
    here.cancel("j", "over")

    def killed() -> Exit | None:
        here.cancel("j", "over")
        found = here.state("j")
        return found if isinstance(found, Exit) else None

    assert until(killed).stopped == "over"


@pytest.mark.faults
def test_a_job_that_is_stopped_dead_is_silent_and_is_killed(make: Make, tmp_path: Path) -> None:
    here = make(grace=0.0)
    here.start(job("waits"))
    speaking(here, tmp_path)
    group = int((tmp_path / "jobs" / "j" / "attempts" / "1.pid").read_text())
    os.killpg(group, signal.SIGSTOP)

    def killed() -> Exit | None:
        found = here.state("j")
        if isinstance(found, Active):
            here.cancel("j", f"it said nothing for {found.silent:.1f} seconds")
        return found if isinstance(found, Exit) else None

    over = until(killed)
    assert over.stopped is not None
    assert over.stopped.startswith("it said nothing for")
    assert isinstance(verdict(over, 3), Again)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("memory", "it was killed (signal 9): memory ran out, or somebody killed it"),
        ("raises", "it ended with exit code 1: MemoryError: no room"),
    ],
)
def test_what_dies_is_tried_again_so_many_times(make: Make, way: str, words: str) -> None:
    here = make()
    for attempt in (1, 2):
        assert here.start(job(way))
        over = ended(here)
        assert (over.attempts, over.barren) == (attempt, attempt)
        if attempt < 2:
            assert verdict(over, 2) == Again(words)
    assert verdict(over, 2) == Over("failed", f"{words}; 2 attempts in a row brought no rollout")


def test_an_attempt_that_played_gives_the_job_new_ones(make: Make) -> None:
    here = make()
    for _ in (1, 2):
        here.start(job("plays and dies", "p"))
        over = ended(here, "p")
        assert over.barren == 0
        assert isinstance(verdict(over, 1), Again)


def test_an_end_that_would_come_again_is_final(make: Make) -> None:
    here = make()
    here.start(job("diverges"))
    reason = "the loss of update 3 is not finite; lower optimizer.lr"
    over = ended(here)
    assert verdict(over, 3) == Over("failed", reason)
    assert over.result is not None
    assert over.result.steps == 3
    here.start(job("usage", "u"))
    reason = "it ended with exit code 2: rank: must be above 0"
    assert verdict(ended(here, "u"), 3) == Over("failed", reason)


@pytest.mark.long
@pytest.mark.faults
def test_a_learner_that_is_killed_ends_with_the_same_adapter(make: Make, tmp_path: Path) -> None:
    base = letters.checkpoint(tmp_path / "base")
    spec = JobSpec.model_validate(letters.spec(base))
    whole = run(spec, tmp_path / "whole")
    command = (PYTHON, "-m", LEARNER)
    runner = make(command)
    wanted, folder = Job("j", spec), tmp_path / "jobs" / "j"
    assert runner.start(wanted)

    def updated() -> bool | None:
        out = folder / "attempts" / "1.out"
        return True if out.exists() and b"metrics" in out.read_bytes() else None

    until(updated)
    os.killpg(int((folder / "attempts" / "1.pid").read_text()), signal.SIGKILL)
    first = ended(runner)
    assert isinstance(verdict(first, 3), Again)
    assert first.barren == 0
    adopting = make(command)
    assert adopting.start(wanted)
    assert isinstance(adopting.state("j"), Active | Exit)
    second = ended(runner)
    assert verdict(second, 3) == Over("trained")
    assert second.result is not None
    assert (second.attempts, second.result.sha256) == (2, whole.sha256)
