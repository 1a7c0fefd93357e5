"""Tests are shared out by files: what a module sets up is set up in one process."""

import subprocess
import sys
from pathlib import Path

from tests.sharing import unit_of

TESTS = Path(__file__).parent
CONFTEST = """
import os

import pytest


@pytest.fixture(scope="module", autouse=True)
def set_up(request):
    with open(request.path.with_suffix(".log"), "a") as log:
        log.write(os.environ["PYTEST_XDIST_WORKER"])
"""
MODULE = """
import pytest


@pytest.mark.parametrize("number", range(4))
def test_it(number):
    pass
"""


def test_what_a_module_sets_up_is_set_up_once(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.sharing"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", "/dev/null", tmp_path],
        cwd=TESTS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
    assert sorted(log.read_text() for log in tmp_path.glob("*.log")) == ["gw0", "gw1"]


def test_what_asks_for_one_server_stays_together() -> None:
    gateway, jobs = TESTS / "daemon/gateway", TESTS / "daemon/jobs"
    assert unit_of(gateway / "test_vllm.py") == unit_of(gateway / "test_vllm_messages.py")
    assert unit_of(gateway / "test_vllm.py") != unit_of(gateway / "test_metrics.py")
    assert unit_of(gateway / "test_vllm.py") == unit_of(TESTS / "daemon/serving/test_vllm.py")
    assert unit_of(jobs / "test_ray.py") == unit_of(TESTS / "contract/test_job_runner.py")
