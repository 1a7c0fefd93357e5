"""From accepted dialogues to a gate with the real learner, the real trial and real engines."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads import learning, serving
from consumers.reads.serving import AdapterRow
from consumers.rebuild import rebuild
from daemon.config.settings import Agent, Improve, Scheduler, Training
from daemon.core.isolation import Breaks
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.engine.reference.weights import CHECKPOINT
from daemon.jobs.attempts import number_in
from daemon.jobs.runner_factory import jobs_of
from daemon.jobs.training_runs import advance
from daemon.methods.synthesis.users.practice import read_user_practices
from daemon.methods.synthesis.users.state_machine import LEAST_DIALOGUES
from daemon.methods.synthesis.users.worker import UserWorker, user_trials_of
from events.lifecycle import State
from events.serving import AdapterProduced, UserEvaluated
from tests.consumers.folding import at, ended
from tests.daemon.methods.synthesis.users.conftest import play
from tests.daemon.serving.conftest import MakeHome, make_home, reference
from tests.daemon.serving.homes import Home
from tests.daemon.written import Fixed

__all__ = ["make_home", "reference"]

pytestmark = pytest.mark.learning

PATIENCE: Final = 240.0
SETTINGS: Final[dict[str, Any]] = {
    "agents": (Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
    "improve": Improve(users="trained", users_dialogues=LEAST_DIALOGUES),
    "scheduler": Scheduler(min_rollouts=10**6, min_priority=1e9, max_age_seconds=1e9),
    "training": Training(warm_start_epochs=1, threads=1),
}


def record(home: Home) -> None:
    """Record dialogues of the oracle with the exact user, and traffic of the agent."""
    home.app.append([ended("seen", at(1), base="reference")])
    tasks = [f"shop/return/{seed}" for seed in range(LEAST_DIALOGUES)]
    play(home.app, *tasks, base="reference")


def lead(home: Home) -> list[str]:
    leadership = Leadership(home.app)
    try:
        return Leader(home.app, Fixed(), leadership).tick().told
    finally:
        leadership.resign()


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def users(home: Home) -> list[AdapterRow]:
    with home.app.reading() as connection:
        return serving.list_user_adapters(connection, "agent")


def train(home: Home) -> None:
    """Run the open job to its end, with another process looking each time."""

    def is_over() -> bool:
        advance(home.app, jobs_of(home.app.settings))
        with home.app.reading() as connection:
            return not learning.open_jobs(connection)

    wait_for(is_over)
    with home.app.reading() as connection:
        (job,) = learning.jobs(connection)
    assert (job.outcome, job.cycle) == ("trained", None), job.reason


def work(home: Home) -> list[str]:
    """A round of another worker, whose gates are short."""
    trials = user_trials_of(home.app.settings)
    worker = UserWorker(home.app, home.fleet, trials, home.clock, dialogues=8)
    breaks = Breaks()
    notes = worker.advance(breaks)
    assert breaks.troubles == []
    return notes


def kill_trial(home: Home) -> None:
    """Kill what plays the gate, once it runs."""
    folder = home.app.settings.home / "user-trials"

    def find() -> list[Path]:
        return [path for path in folder.glob("*/attempts/1.pid") if number_in(path) is not None]

    wait_for(lambda: bool(find()))
    number = number_in(find()[0])
    assert number is not None
    os.killpg(number, signal.SIGKILL)


@pytest.mark.long
def test_a_job_trains_one_and_its_gate_decides_whatever_is_killed(make_home: MakeHome) -> None:
    home = make_home(1, **SETTINGS)
    record(home)
    assert len(lead(home)) == 1
    train(home)
    (row,) = users(home)
    assert (row.role, row.state, row.capability) == ("user", State.PRODUCED, None)
    assert row.adapter.startswith("agent-user-")
    (note,) = work(home)
    assert note == f"{row.adapter}: its gate began, 8 dialogues"
    kill_trial(home)

    def is_measured() -> bool:
        work(home)
        return users(home)[0].role_gate is not None

    wait_for(is_measured)
    (row,) = users(home)
    gate = row.role_gate
    assert gate is not None
    assert (gate.dialogues, gate.previous, gate.environment) == (8, None, "shop")
    assert not gate.passed, "eight dialogues show no rate of 1 %"
    assert row.state is State.REJECTED
    assert work(home) == []
    assert lead(home) == [], "not before there are twice as many dialogues"
    kinds = [type(event.data) for event in home.decided()]
    assert [kinds.count(kind) for kind in (AdapterProduced, UserEvaluated)] == [1, 1]
    with home.app.reading() as connection:
        (practice,) = read_user_practices(connection, home.app.settings)
    assert practice.plays == "script"
    assert f"attempt 1 failed ({row.adapter} failed its gate: violations" in practice.says
    assert rebuild(home.app.log, home.app.engine).equal is True
