"""Figures reach the real libraries, each in an environment of its own."""

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from daemon.solver.telemetry.tracker import NoTrackerLibrary, UnknownTracker, flat, open_tracker
from ops.isolated import interpreter, ours

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys
from pathlib import Path
from daemon.solver.telemetry.tracker import open_tracker

setting, folder, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
with open_tracker(setting, run="job-1", folder=folder) as tracker:
    for step in (first, first + 1):
        tracker.log(step, {"steps": step, "metrics": {"loss": step / 4, "kl": None}})
"""


def logged(setting: str, requirement: str, folder: Path, first: int) -> None:
    """Two steps, by a process that has the library."""
    python = interpreter(requirement, *ours("pydantic"))
    environment = os.environ | {"TRACKIO_DIR": str(folder / "trackio"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-c", PROGRAM, setting, str(folder), str(first)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_trackio_has_every_step_once_of_a_run_that_was_taken_up_again(tmp_path: Path) -> None:
    for first in (1, 2):
        logged("trackio:shop", "trackio==0.43.0", tmp_path, first)
    (file,) = (tmp_path / "trackio").glob("shop*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step")
        found = [(run, step, json.loads(metrics)) for run, step, metrics in rows]
    database.close()
    assert [(run, step) for run, step, _ in found] == [("job-1", step) for step in (1, 2, 3)]
    assert [metrics["metrics/loss"] for _, _, metrics in found] == [0.25, 0.5, 0.75]


@pytest.mark.processes
def test_wandb_writes_a_run_that_can_be_sent_later(tmp_path: Path) -> None:
    logged("wandb:shop", "wandb==0.31.0", tmp_path, 1)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-job-1.wandb")
    assert b"metrics/loss" in file.read_bytes()


def test_numbers_are_named_by_their_way_and_the_rest_is_left_out() -> None:
    document = {"step": 3, "ok": True, "name": "x", "none": None, "a": {"b": {"c": 0.5}, "d": [1]}}
    assert flat(document) == {"step": 3.0, "ok": 1.0, "a/b/c": 0.5}


@pytest.mark.parametrize("setting", ["mlflow:shop", "trackio", "trackio:", ""])
def test_a_setting_that_names_no_tracker_is_refused(setting: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UnknownTracker, match="LIBRARY:PROJECT"),
        open_tracker(setting, "r", tmp_path),
    ):
        pass


def test_a_library_that_is_not_installed_is_named_with_the_remedy(tmp_path: Path) -> None:
    with (
        pytest.raises(NoTrackerLibrary, match="wandb is not installed: pip install wandb"),
        open_tracker("wandb:shop", "r", tmp_path),
    ):
        pass
