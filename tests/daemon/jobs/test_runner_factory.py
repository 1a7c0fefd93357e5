"""Jobs are told where the adapters of their home are."""

import sys
import time
from pathlib import Path

from daemon.config.settings import load
from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import Exit, Job
from daemon.jobs.runner_factory import jobs_of
from events.messages import StrictModel

PROGRAM = """
import json
from daemon.config.adapter_paths import locate_for_job
found = [str(locate_for_job(path)) for path in ("adapters/a-1", "/old/home/adapters/a-1")]
print(json.dumps({"outcome": "failed", "reason": " ".join(found)}))
"""


class Spec(StrictModel):
    """What the program does not read."""


def test_a_job_finds_the_adapters_of_its_home_by_relative_and_by_old_paths(tmp_path: Path) -> None:
    settings = load(home=tmp_path)
    paths = settings.adapter_paths
    runner = LocalRunner(
        tmp_path / "jobs", command=(sys.executable, "-c", PROGRAM), variables=paths.variables
    )
    assert runner.start(Job("j", Spec()))
    while not isinstance(state := runner.state("j"), Exit):
        time.sleep(0.02)
    assert state.result is not None, state.complaint
    assert state.result.reason == " ".join([str(paths.store / "a-1")] * 2)


def test_every_runner_of_a_home_tells_its_jobs(tmp_path: Path) -> None:
    settings = load(home=tmp_path)
    runner = jobs_of(settings)
    assert isinstance(runner, LocalRunner)
    assert runner.variables == settings.adapter_paths.variables
