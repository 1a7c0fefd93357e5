"""One short loop under `kill -9`, audited from the log (ops/faults/loop_kill.py runs many)."""

from pathlib import Path

import pytest

from ops.faults import clock_steps, job_answers, loop_kill
from ops.faults.loop_processes import role_of
from tests.faults.reports import expect_pass

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1000)]


@pytest.mark.long
def test_a_loop_whose_processes_are_killed_comes_to_its_end_and_is_what_the_log_says(
    tmp_path: Path,
) -> None:
    found = expect_pass(loop_kill.run(1, tmp_path, logs=("sqlite",)))
    (outcome,) = found["sqlite"]["outcomes"]
    assert outcome != "open"


def test_a_role_is_known_by_its_command_line() -> None:
    assert (
        role_of(["python", "-m", "daemon.roles.parent_watch", "daemon", "work", "--home", "x"])
        == "work"
    )
    assert (
        role_of(["python", "-m", "daemon.roles.parent_watch", "daemon.engine", "--port", "1"])
        == "engine"
    )
    assert role_of(["python", "-m", "daemon.solver", "job.json"]) is None


def test_a_clock_that_is_set_forward_and_back_ends_no_job(tmp_path: Path) -> None:
    expect_pass(clock_steps.run(5, tmp_path))


@pytest.mark.long
def test_no_answer_of_a_policy_ends_its_job(tmp_path: Path) -> None:
    found = expect_pass(job_answers.run(len(job_answers.ANSWERS), tmp_path))
    assert found["jobs"] == sum(found["outcomes"].values())
