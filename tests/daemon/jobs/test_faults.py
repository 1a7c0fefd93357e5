"""Training goes wrong for real: the learner itself, in cycles that end and are followed by others.

Memory that the kernel refuses, a learning rate by which weights leave the numbers, a process that
is stopped dead, a disk that is full. Each ends with its reason in the job and in the cycle, leaves
no adapter and no slot taken; what can go on, does.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads import learning
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.scheduling import CYCLE_START
from daemon.config.settings import Agent, Jobs, Log, Scheduler, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.proposal import Proposal
from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import JobRunner
from daemon.jobs.runner_factory import jobs_of
from daemon.jobs.training_runs import advance
from events.envelope import derive_id
from events.jobs import JobSpec
from events.learning import JobRequested
from events.rollouts import Task
from ops.faults.gateway_full_disk import FILLER, fill
from ops.faults.small_disk import small_disk
from tests.consumers.folding import at, ended
from tests.daemon.jobs import starved
from tests.daemon.jobs.looks import speaking, until
from tests.daemon.jobs.test_training_runs import adapters
from tests.daemon.solver import letters
from tests.daemon.written import Fixed

pytestmark = [pytest.mark.processes, pytest.mark.faults]

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="mounting a disk needs root"
)

SCHEDULER: Final = Scheduler(
    min_rollouts=1, min_failures=1, min_priority=1e9, cooldown_seconds=3600
)
SMALL: Final = {"groups": 4, "size": 4, "rollouts": 32, "max_tokens": 24}
STARVED: Final = (sys.executable, starved.__file__)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


class Asking(Fixed):
    """Asks for one job after the other."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self._base = base
        self.changes: dict[str, Any] = {}
        """What the next job's spec has that is its own."""

    def propose_tasks(self, cycle: CycleRow) -> Proposal:
        """The job."""
        name = derive_id("job", cycle.cycle)
        spec = letters.spec(self._base, job=name, **{"sampler": SMALL, **self.changes})
        requested = JobRequested(
            job=name, cycle=cycle.cycle, alias=cycle.alias, base=cycle.base, capability="half",
            spec=JobSpec.model_validate(spec), minutes=10,
        )  # fmt: skip
        return Proposal({derive_id("requested", cycle.cycle): requested})


class Loop:
    """A home that leads and trains."""

    def __init__(self, app: App, base: Path) -> None:
        self.app = app
        self.author = Asking(base)
        self.runner: JobRunner = jobs_of(app.settings)
        self.told: list[str] = []
        self._leader = Leader(app, self.author, Leadership(app))

    def go(self) -> None:
        """One round of both roles."""
        self.told += self._leader.tick().told
        self.told += advance(self.app, self.runner)

    def over(self) -> tuple[CycleRow, JobRow]:
        """The newest cycle and its job, once the job is over."""

        def look() -> tuple[CycleRow, JobRow] | None:
            self.go()
            time.sleep(0.1)
            with self.app.reading() as connection:
                cycle = learning.cycles(connection)[0]
                job = learning.job(connection, cycle.job or "")
            assert job is not None
            ended = job.outcome == "trained" or cycle.outcome is not None
            return (cycle, job) if ended else None

        return until(look)

    def ask(self, **changes: Any) -> None:
        """A person asks for a cycle with such a job."""
        self.author.changes = changes
        Decisions(self.app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        self.go()

    def folder(self) -> Path:
        """Of the newest cycle's job."""
        with self.app.reading() as connection:
            cycle = learning.cycles(connection)[0]
        return self.runner.folder(cycle.job or "")


@contextmanager
def loop(home: Path, base: Path, **jobs: Any) -> Iterator[Loop]:
    settings = Settings(
        home=home, log=Log(durability="process"), scheduler=SCHEDULER, jobs=Jobs(**jobs),
        agents=(Agent(alias="agent", environment=letters.ENVIRONMENT, checkpoint=base),),
    )  # fmt: skip
    with App(settings) as app:
        app.append([ended("fails", at(1), base="letters", task=Task(id="letters/half/1"))])
        yield Loop(app, base)


def failed(found: tuple[CycleRow, JobRow], words: str) -> None:
    """Job and cycle say why, and nothing is left."""
    cycle, job = found
    assert job.reason is not None
    assert words in job.reason
    assert (job.outcome, job.adapter) == ("failed", None)
    assert (cycle.outcome, cycle.ended_because) == ("failed", job.reason)


@pytest.mark.long
def test_what_diverges_fails_and_what_hangs_goes_on_in_the_next_cycle(
    tmp_path: Path, base: Path
) -> None:
    with loop(tmp_path, base, heartbeat_seconds=5, attempts=2) as here:
        here.author.changes = {
            "optimizer": {"lr": 10, "weight_decay": 100}, "sampler": SMALL | {"rollouts": 320},
        }  # fmt: skip
        diverged = here.over()
        failed(diverged, "no answer of the policy has log-probabilities that are numbers")
        assert (diverged[1].rollouts or 0) < 320, "what was left of the budget is not spent"
        assert adapters(here.app) == []
        here.ask()
        name = here.folder().name
        here.runner = LocalRunner(here.folder().parent, command=_learner(), grace=0.5)
        speaking(here.runner, tmp_path, name)
        group = int((here.folder() / "attempts" / "1.pid").read_text())
        os.killpg(group, signal.SIGSTOP)
        cycle, job = here.over()
        assert (cycle.number, job.outcome, job.rollouts) == (2, "trained", 32)
        assert any("attempt 2, for it said nothing for" in one for one in here.told)
        (adapter,) = adapters(here.app)
        assert adapter.job == job.job


@pytest.mark.long
def test_what_nobody_passes_ends_as_a_competence_gap(tmp_path: Path, base: Path) -> None:
    with loop(tmp_path, base) as here:
        never = [{"name": "target", "tasks": letters.ids("spell", 0, 40)}]
        here.author.changes = {"pools": never, "probe": {"groups": 4, "below": 0.2}}
        cycle, job = here.over()
        assert job.reason is not None
        assert job.reason.startswith("nothing to learn from (spell: 0 of ")
        assert (job.outcome, job.adapter) == ("competence_gap", None)
        assert (cycle.outcome, cycle.ended_because) == ("nothing_learnable", job.reason)
        assert (here.folder() / "attempts" / "1.code").read_text() == "3\n"


@pytest.mark.long
def test_what_finds_no_memory_fails_with_the_reason(tmp_path: Path, base: Path) -> None:
    with loop(tmp_path, base, attempts=1) as here:
        here.runner = LocalRunner(tmp_path / "jobs", command=STARVED)
        found = here.over()
        failed(found, "1 attempts in a row brought no rollout")
        # Whichever part of it is the first to be refused some.
        aborted = "it was aborted (signal 6): memory was refused"
        ways = (aborted, "it ended with exit code 1: ", "MemoryError", "RuntimeError: ")
        assert (found[1].reason or "").startswith(ways)
        assert adapters(here.app) == []
        here.ask()
        assert any("attempt 1" in one for one in here.told[-2:]), "the slot is free"
        here.runner.cancel(here.folder().name, "that is enough")


@pytest.mark.long
@needs_root
def test_a_full_disk_ends_the_job_unless_there_is_room_again(tmp_path: Path, base: Path) -> None:
    with (
        loop(tmp_path, base, attempts=2) as here,
        small_disk(tmp_path / "jobs", 8 << 20) as disk,
    ):
        here.author.changes = {"sampler": SMALL | {"rollouts": 320}}
        here.go()
        _play(here)
        fill(disk / FILLER)
        failed(here.over(), "the disk of the job is full")
        assert adapters(here.app) == []
        (disk / FILLER).unlink()
        here.ask(sampler=SMALL | {"rollouts": 320})
        _play(here)
        fill(disk / FILLER)
        until(lambda: True if _refused(here) else None)
        (disk / FILLER).unlink()
        cycle, job = here.over()
        assert (cycle.number, job.outcome, job.rollouts) == (2, "trained", 320)
        assert job.attempts is not None
        assert job.attempts > 1


def _play(here: Loop) -> None:
    """Until a batch is on disk."""
    journal = here.folder() / "out" / "rollouts.jsonl"

    def look() -> bool | None:
        here.go()
        return True if journal.exists() and journal.read_bytes().count(b"\n") > 1 else None

    until(look)


def _refused(here: Loop) -> bool:
    """Whether the attempt that runs has ended for want of room."""
    state = here.runner.state(here.folder().name)
    return bool(getattr(state, "full", False))


def _learner() -> tuple[str, ...]:
    return (sys.executable, "-m", "daemon.solver")
