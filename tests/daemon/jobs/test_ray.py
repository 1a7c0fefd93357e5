"""Jobs on a Ray cluster, beyond what every runner does (tests/contract)."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from daemon.config.settings import Jobs, Ray, Settings
from daemon.core.app import App
from daemon.jobs.ray import Cluster, Needs, RayRunner
from daemon.jobs.runner import Absent, Active, Again, RunnerUnavailable, verdict
from daemon.jobs.runner_factory import jobs_of
from daemon.jobs.training_runs import advance
from ops.ray.head import Head
from tests.daemon.conftest import Kintsugi
from tests.daemon.jobs.looks import ended, job, speaking, until
from tests.daemon.jobs.test_training_runs import HERE, adapters, requested, row
from tests.daemon.jobs.trainer import COMMAND
from tests.daemon.solver import letters

GPU: Final = Needs(cpus=0.5, gpus=1.0)


@pytest.fixture
def cluster(ray: Head) -> Iterator[Cluster]:
    found = Cluster(ray.address)
    yield found
    found.close()


def on(cluster: Cluster, folder: Path, needs: Needs = GPU) -> RayRunner:
    return RayRunner(folder / "jobs", cluster, command=COMMAND, needs=needs, slots=2, grace=5.0)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.faults
def test_a_hung_learner_is_reaped_and_its_next_attempt_trains(ray: Head, tmp_path: Path) -> None:
    """By the settings alone: hung by SIGSTOP, silent for too long, killed, adopted, gone on."""
    base = letters.checkpoint(tmp_path / "base")
    reached = Ray(address=ray.address, python=sys.executable)
    jobs = Jobs(runner="ray", ray=reached, heartbeat_seconds=6, attempts=2)
    with App(Settings(home=tmp_path, jobs=jobs, environments=HERE)) as app:
        requested(app, base, "trains")
        here = jobs_of(app.settings)
        told = advance(app, here)
        assert told == ["job j was started, attempt 1"]
        attempts = tmp_path / "jobs" / "j" / "attempts"
        until(lambda: True if (attempts / "1.out").exists() else None)
        speaking(here, tmp_path)
        os.killpg(int((attempts / "1.pid").read_text()), signal.SIGSTOP)
        here.close()
        here = jobs_of(app.settings)

        def over() -> str | None:
            told.extend(advance(app, here))
            return row(app).outcome

        assert until(over) == "trained"
        here.close()
        assert any("is told to stop: it said nothing for" in one for one in told)
        assert any("attempt 2, for it said nothing for" in one for one in told)
        assert (row(app).attempts, row(app).rollouts) == (2, 32)
        (adapter,) = adapters(app)
        assert Path(adapter.path).parent == Path("adapters")


@pytest.mark.ray
def test_a_job_that_waits_for_a_gpu_has_not_begun_and_can_be_called_off(
    cluster: Cluster, tmp_path: Path
) -> None:
    here = on(cluster, tmp_path)
    here.start(job("waits"))
    speaking(here, tmp_path)
    assert here.start(job("waits", "second")), "there are slots; the GPU is the cluster's"
    waiting = here.state("second")
    assert isinstance(waiting, Active)
    assert max(waiting.seconds, waiting.silent) < 1
    here.cancel("second", "ada did")
    over = ended(here, "second")
    assert (over.stopped, over.result) == ("ada did", None)
    here.cancel("j", "over")
    ended(here)


@pytest.mark.long
@pytest.mark.ray
def test_two_homes_with_a_job_of_one_name_share_nothing(cluster: Cluster, tmp_path: Path) -> None:
    one, other = (on(cluster, tmp_path / name, Needs(cpus=0.5)) for name in ("a", "b"))
    one.start(job("waits"))
    assert other.state("j") == Absent()
    other.start(job("diverges"))
    assert ended(other).result is not None
    assert isinstance(one.state("j"), Active)
    one.cancel("j", "over")
    ended(one)


@pytest.mark.long
@pytest.mark.ray
def test_what_the_cluster_has_forgotten_is_over_or_was_never_begun(
    ray: Head, cluster: Cluster, tmp_path: Path
) -> None:
    here = on(cluster, tmp_path)
    here.start(job("raises", "lost"))
    told = ended(here, "lost")
    names = [one.submission_id or "" for one in cluster.jobs()]
    (name,) = [one for one in names if one.endswith("-lost-1")]
    httpx2.delete(f"{ray.address}/api/jobs/{name}").raise_for_status()
    assert cluster.job(name) is None
    assert here.state("lost") == told, "the files tell as much"
    (tmp_path / "jobs" / "lost" / "attempts" / "1.code").unlink()
    found = verdict(ended(here, "lost"), 3)
    assert isinstance(found, Again)
    assert "it ended with whatever ran it" in found.reason
    (tmp_path / "jobs" / "lost" / "attempts" / "2.before").write_text("0")
    assert ended(here, "lost").attempts == 1, "somebody was killed before the second was submitted"
    assert here.start(job("raises", "lost"))
    until(lambda: True if ended(here, "lost").attempts == 2 else None)


@pytest.mark.ray
def test_a_program_that_the_machines_do_not_have_is_named(cluster: Cluster, tmp_path: Path) -> None:
    here = RayRunner(tmp_path / "jobs", cluster, command=("no-such-python",))
    here.start(job("waits"))
    found = verdict(ended(here), 1)
    assert "exit code 127" in found.reason
    assert "no-such-python" in found.reason


def test_a_cluster_that_is_away_is_said_in_a_sentence(
    home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KINTSUGI_JOBS__RUNNER", "ray")
    monkeypatch.setenv("KINTSUGI_JOBS__RAY__ADDRESS", "http://127.0.0.1:1")
    for arguments in (("work", "--once"), ("doctor",)):
        told = kintsugi(*arguments)
        assert told.code == (4 if arguments[0] == "work" else 1)
        assert "Ray cluster at http://127.0.0.1:1 does not answer" in told.err + told.out
    reached = Jobs(runner="ray", ray=Ray(address="http://127.0.0.1:1"))
    with App(Settings(home=tmp_path, jobs=reached, environments=HERE)) as app:
        requested(app, tmp_path, "trains")
        requested(app, tmp_path, "trains", name="second")
        here = jobs_of(app.settings)
        (told_once,) = advance(app, here)
        here.close()
    assert "set jobs.ray.address, or set jobs.runner to local" in told_once


def test_a_cluster_that_hangs_costs_no_more_than_the_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = Cluster(f"http://127.0.0.1:{silent.getsockname()[1]}", patience=0.2)
        with pytest.raises(RunnerUnavailable, match="does not answer"):
            cluster.job("any")
        cluster.close()


def test_what_is_no_cluster_is_said() -> None:
    cluster = Cluster("no address")
    with pytest.raises(RunnerUnavailable, match="no address"):
        cluster.version()
    cluster.close()
