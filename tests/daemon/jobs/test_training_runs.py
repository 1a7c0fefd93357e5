"""From a job that is wanted to an adapter of the home."""

import json
import os
import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from consumers.reads import learning, serving
from consumers.reads import rollouts as reads
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow
from daemon.config.settings import Environments, Jobs, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.core.isolation import Breaks
from daemon.jobs.local import LocalRunner
from daemon.jobs.own_successes import read_file
from daemon.jobs.recording import record_rollouts
from daemon.jobs.runner import OUT, Exit, JobRunner, State
from daemon.jobs.training_runs import advance
from daemon.solver.job import run
from daemon.solver.journal import SUCCESSES
from daemon.status.snapshot import situation
from daemon.status.stages import stops
from events.codec import decode
from events.envelope import utc_now
from events.jobs import JobSpec
from events.learning import JobRequested
from events.rollouts import RolloutEnded
from tests.daemon.jobs.looks import ended, runner, speaking, until
from tests.daemon.jobs.test_own_successes import record
from tests.daemon.jobs.trainer import COMMAND, WAYS
from tests.daemon.solver import letters
from tests.envs import mini
from tests.envs.model_server import ModelServer, said

HERE: Final = Environments(paths=(Path(letters.ENVIRONMENT),))
"""The jobs of these tests name a file."""

SAMPLER: Final = {"groups": 4, "size": 4, "rollouts": 32, "max_tokens": 24}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real job that has trained an adapter."""
    out = tmp_path_factory.mktemp("trained")
    spec = letters.spec(base, sampler=SAMPLER, seed=WAYS.index("trains"))
    outcome = run(JobSpec.model_validate(spec), out)
    assert outcome.outcome == "trained", outcome.reason
    left = {"sha256": outcome.sha256, "steps": outcome.steps, "rollouts": outcome.rollouts}
    (out / "left.json").write_text(json.dumps(left))
    return out


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    jobs = Jobs(attempts=2, heartbeat_seconds=60)
    settings = Settings(home=tmp_path, jobs=jobs, environments=HERE)
    with App(settings) as app:
        yield app


def requested(
    app: App, base: Path, way: str, minutes: float = 10, name: str = "j", **changes: Any
) -> None:
    """The log wants a job whose trainer behaves in this way."""
    spec = letters.spec(base, job=name, seed=WAYS.index(way), sampler=SAMPLER, **changes)
    data = JobRequested(
        job=name, alias="agent", base="letters", capability="half",
        spec=JobSpec.model_validate(spec), minutes=minutes,
    )  # fmt: skip
    app.settle()
    Decisions(app).take(data, name, cause="somebody")


def after_an_end(app: App, here: JobRunner, **options: Any) -> list[str]:
    """What a look does once an attempt has ended."""
    ended(here)
    return advance(app, here, **options)


def row(app: App, name: str = "j") -> JobRow:
    app.settle()
    with app.reading() as connection:
        found = learning.job(connection, name)
    assert found is not None
    return found


def adapters(app: App) -> list[AdapterRow]:
    with app.reading() as connection:
        return list(serving.route_table(connection).adapters)


def rollouts(app: App) -> list[RolloutEnded]:
    """Every one in the log."""
    spool = app.spool
    return [
        data
        for partition in range(len(spool.end("rollouts")))
        for data in (decode(record).data for record in spool.read("rollouts", partition, 0))
        if isinstance(data, RolloutEnded)
    ]


def test_what_a_job_leaves_becomes_an_adapter_of_the_home_once(
    app: App, base: Path, trained: Path, tmp_path: Path
) -> None:
    requested(app, base, "trains")
    folder = tmp_path / "jobs" / "j"
    folder.mkdir(parents=True)
    (folder / "out").symlink_to(trained)
    here = runner(tmp_path)
    assert advance(app, here) == ["job j was started, attempt 1"]
    assert after_an_end(app, here) == ["32 rollouts of job j were recorded", "job j ended, trained"]
    assert advance(app, here) == []
    played = rollouts(app)
    assert len({one.rollout for one in played}) == 32
    assert {(one.purpose, one.alias, one.base) for one in played} == {("train", "agent", "letters")}
    assert {one.policy for one in played} <= {"j-0", "j-1"}
    assert 0 < sum(bool(one.success) for one in played) < 32
    (folder / "recorded").write_text("1")
    assert record_rollouts(app, row(app), folder) == 16, "a record that was cut short is made again"
    app.settle()
    with app.reading() as connection:
        known = reads.verdicts(connection, [one.rollout for one in played])
    assert {name: one.success for name, one in known.items()} == {
        one.rollout: one.success for one in played
    }
    found, left = row(app), json.loads((trained / "left.json").read_bytes())
    assert (found.outcome, found.attempts, found.rollouts) == ("trained", 1, 32)
    assert found.sha256 == left["sha256"]
    (adapter,) = adapters(app)
    assert (adapter.job, adapter.alias, adapter.base) == ("j", "agent", "letters")
    assert (adapter.capability, adapter.sha256) == ("half", left["sha256"])
    assert adapter.adapter.startswith(f"agent-half-{left['steps']}-")
    assert Path(adapter.path).parent == Path("adapters"), "a home may be moved"
    assert (app.settings.home / adapter.path).is_dir()
    assert found.adapter == adapter.path


def test_an_adapter_that_somebody_changed_is_none(
    app: App, base: Path, trained: Path, tmp_path: Path
) -> None:
    requested(app, base, "trains")
    folder = tmp_path / "jobs" / "j" / "out"
    folder.mkdir(parents=True)
    (folder / "adapter").symlink_to(trained / "adapter")
    (folder / "left.json").write_text(json.dumps({"sha256": "0" * 64, "steps": 2, "rollouts": 32}))
    here = runner(tmp_path)
    advance(app, here)
    (told,) = after_an_end(app, here)
    assert "somebody changed them" in told
    assert row(app).outcome == "failed"
    assert adapters(app) == []


def test_a_job_waits_while_the_model_of_its_users_is_away(
    app: App, base: Path, tmp_path: Path
) -> None:
    with ModelServer(lambda _: said("Hello.")) as server:
        user = {"url": server.url, "model": "customer"}
    pools = [{"name": "half", "tasks": ["letters/half/0"], "user": user}]
    requested(app, base, "waits", pools=pools)
    here = runner(tmp_path)
    for _ in range(4):
        (told,) = advance(app, here)
        assert told.startswith("job j waits for the model that plays the users: ")
        assert "cannot be reached" in told
    assert row(app).outcome is None
    document = situation(app)
    assert document["job"]["waits_for"] == [server.url]
    (stop,) = (item for item in stops(document, utc_now()) if item.name == "job")
    assert f"until the model of its users answers at {server.url}" in " ".join(stop.facts)
    with ModelServer(lambda _: said("Hello."), port=httpx2.URL(server.url).port or 0) as server:
        assert advance(app, here) == ["job j was started, attempt 1"]
        assert situation(app)["job"]["waits_for"] == []
        speaking(here, tmp_path)
        os.killpg(int((tmp_path / "jobs/j/attempts/1.pid").read_text()), signal.SIGKILL)
        ended(here)
    for _ in range(4):
        (told,) = advance(app, here)
        assert "waits for the model" in told, "no attempt is spent on it"
    assert situation(app)["job"]["waits_for"] == [server.url], "also between attempts"


def test_a_job_that_dies_is_tried_again_and_then_has_failed(
    app: App, base: Path, tmp_path: Path
) -> None:
    requested(app, base, "memory")
    here = runner(tmp_path)
    advance(app, here)
    (told,) = after_an_end(app, here)
    assert told.startswith("job j was started, attempt 2, for it was killed (signal 9)")
    (told,) = after_an_end(app, here)
    assert "2 attempts in a row brought no rollout" in told
    found = row(app)
    assert (found.outcome, found.attempts) == ("failed", 2)
    assert found.reason is not None
    assert "memory ran out" in found.reason


def test_a_failure_that_the_learner_names_is_the_jobs(app: App, base: Path, tmp_path: Path) -> None:
    requested(app, base, "diverges")
    here = runner(tmp_path)
    advance(app, here)
    after_an_end(app, here)
    found = row(app)
    assert (found.outcome, found.steps) == ("failed", 3)
    assert found.reason == "the loss of update 3 is not finite; lower optimizer.lr"


def test_a_job_past_its_minutes_is_stopped_for_good(app: App, base: Path, tmp_path: Path) -> None:
    requested(app, base, "waits", minutes=1e-6)
    here = runner(tmp_path)
    advance(app, here)
    speaking(here, tmp_path)
    (told,) = advance(app, here)
    assert told == f"job j is told to stop: {too_long(1e-6)}"
    assert after_an_end(app, here) == [f"job j ended, failed: {too_long(1e-6)}"]
    assert row(app).attempts == 1


def too_long(minutes: float) -> str:
    return f"it ran for its {minutes:g} minutes; raise jobs.minutes, or train less"


def test_a_silent_job_is_stopped_and_tried_again(base: Path, tmp_path: Path) -> None:
    jobs = Jobs(attempts=2, heartbeat_seconds=1e-6)
    with App(Settings(home=tmp_path, jobs=jobs, environments=HERE)) as app:
        requested(app, base, "waits")
        here = runner(tmp_path)
        advance(app, here)
        speaking(here, tmp_path)
        (told,) = until(lambda: advance(app, here) or None)
        assert "it said nothing for" in told
        (told,) = after_an_end(app, here)
        assert told.startswith("job j was started, attempt 2, for it said nothing for")
        speaking(here, tmp_path)
        (told,) = until(lambda: advance(app, here) or None)
        assert "it said nothing for" in told
        (told,) = after_an_end(app, here)
        assert "2 attempts in a row brought no rollout" in told


def test_a_job_that_is_called_off_ends(app: App, base: Path, tmp_path: Path) -> None:
    requested(app, base, "waits")
    requested(app, base, "waits", name="second")
    here = runner(tmp_path)
    called_off = {"j": "ada changed her mind", "second": "ada did"}
    assert advance(app, here) == ["job j was started, attempt 1"], "there is one slot"
    speaking(here, tmp_path)
    told = advance(app, here, called_off)
    assert told == [
        "job j is told to stop: ada changed her mind",
        "job second ended, cancelled: ada did",
    ]
    after_an_end(app, here, cancelled=called_off)
    assert (row(app).outcome, row(app).reason) == ("cancelled", "ada changed her mind")
    assert (row(app, "second").outcome, row(app, "second").attempts) == ("cancelled", 0)


def test_an_end_is_said_once_whoever_looks(app: App, base: Path, tmp_path: Path) -> None:
    requested(app, base, "diverges")
    here = runner(tmp_path)
    advance(app, here)
    found = ended(here)
    assert isinstance(found, Exit)
    with App(app.settings) as other:
        for one in (app, other):
            advance(one, runner(tmp_path))
    stored = [
        r for r in app.spool.read("learning", 0, 0) if b"JobEnded" in dict(r.headers)["ce_type"]
    ]
    assert len(stored) == 1


def test_a_job_whose_environment_is_no_file_of_the_settings_is_not_started(
    tmp_path: Path, base: Path
) -> None:
    with App(Settings(home=tmp_path)) as app:
        requested(app, base, "trains")
        (said,) = advance(app, runner(tmp_path))
        assert said.startswith("job j ended, failed: an event names the environment")
        assert "environments.paths" in said
        assert row(app).outcome == "failed"
    assert not (tmp_path / "jobs" / "j").exists()


def test_neither_is_one_whose_pool_names_such_a_file(app: App, base: Path, tmp_path: Path) -> None:
    target, kept = letters.spec(base)["pools"]
    elsewhere = kept | {"environment": str(Path(mini.__file__)), "tasks": ["mini/cancel/0"]}
    requested(app, base, "trains", pools=[target, elsewhere])
    (said,) = advance(app, runner(tmp_path))
    assert said.startswith("job j ended, failed: an event names the environment")
    assert "mini.py" in said
    assert not (tmp_path / "jobs" / "j").exists()


def test_a_job_that_breaks_keeps_no_other_from_its_turn(app: App, base: Path) -> None:
    requested(app, base, "trains", name="a")
    requested(app, base, "trains", name="b")
    breaks, here = Breaks(), Broken("a", app.home)
    assert advance(app, here, breaks=breaks) == ["job b was started, attempt 1"]
    assert breaks.failed == ["jobs"]
    assert breaks.troubles == ["job a broke off: OSError: gone; the next round tries again"]
    ended(here, "b")


class Broken(LocalRunner):
    """Cannot tell how one job is doing, by an error that nobody foresaw."""

    def __init__(self, job: str, home: Path) -> None:
        super().__init__(home / "jobs", command=COMMAND)
        self._broken = job

    def state(self, job: str) -> State:
        if job == self._broken:
            raise OSError("gone")
        return super().state(job)


def wanted_with_successes(app: App, base: Path, digest: str, *names: str) -> None:
    """The log wants a job that shows these rollouts first."""
    given = letters.spec(base, seed=WAYS.index("trains"), sampler=SAMPLER)
    given["pools"][0]["successes"] = list(names)
    given["warm_start"] = {"mode": "always", "successes": digest}
    data = JobRequested(
        job="j", alias="agent", base="letters", capability="half",
        spec=JobSpec.model_validate(given), minutes=10,
    )  # fmt: skip
    app.settle()
    Decisions(app).take(data, "j", cause="somebody")


def test_a_job_finds_the_successes_that_its_spec_names(
    app: App, base: Path, tmp_path: Path
) -> None:
    name = record(app, "shop/cancel/5")
    with app.reading() as connection:
        content = read_file(app, connection, [name])
    wanted_with_successes(app, base, sha256(content).hexdigest(), name)
    here = runner(tmp_path)
    assert advance(app, here) == ["job j was started, attempt 1"]
    assert (here.folder("j") / OUT / SUCCESSES).read_bytes() == content
    ended(here)


def test_a_job_whose_successes_are_gone_from_the_log_ends_with_the_reason(
    app: App, base: Path, tmp_path: Path
) -> None:
    wanted_with_successes(app, base, "0" * 64, "gone")
    assert advance(app, runner(tmp_path)) == [
        "job j ended, failed: rollout gone is not in the tables; kintsugi rebuild folds the log"
    ]
