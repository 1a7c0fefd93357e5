"""What the demo shows: a job's curve from what it says, and lines that are said once each."""

import json
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import Settings
from daemon.core.app import App
from ops.demo.general import spec_of
from ops.demo.mixture import MIX
from ops.demo.view import picture, smooth, spark, steps, stop
from ops.demo.watch import Point, curve, look
from tests.ops.demo.test_report import story


def kind_of(task: str) -> str:
    return task.split("/")[1]


def batch(number: int, passed: float, **more: Any) -> str:
    """A line of a job, as it says it: what is null is left out."""
    figures = {"attempts": 8, "passed": passed, "groups": 1, "informative": 1.0}
    pools = {"p": {"batch": figures, "so_far": figures}, "traffic": {"so_far": figures}}
    return json.dumps(
        {"batch": number, "rollouts": 8 * number, "budget": 64, "pools": pools, **more}
    )


def test_a_curve_has_each_batch_once_over_all_attempts(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    beat = json.dumps({"heartbeat": {"phase": "rollouts"}})
    (attempts / "1.out").write_text(
        f"{beat}\n{batch(1, 0.25)}\n{batch(2, 0.5)}\n{batch(3, 1)[:20]}"
    )
    # The next attempt makes the journal's batches again.
    (attempts / "10.out").write_text(f"{batch(3, 0.75)}\n")
    (attempts / "2.out").write_text(f"{batch(1, 0.25)}\n{batch(2, 0.5)}\n")
    assert list(curve(tmp_path)) == [
        Point(8, 0.25, None, 1.0),
        Point(16, 0.5, None, 1.0),
        Point(24, 0.75, None, 1.0),
    ]


def test_general_rl_has_the_curve_of_its_traffic(tmp_path: Path) -> None:
    job = story().job
    (pool,) = spec_of(job, MIX, job.spec.sampler.rollouts).pools
    assert set(map(kind_of, pool.tasks)) <= set(MIX)
    figures = {"attempts": 8, "passed": 0.75, "groups": 1, "informative": 1.0}
    said: dict[str, Any] = {"batch": 1, "rollouts": 64, "budget": 128}
    said["pools"] = {pool.name: {"batch": figures, "so_far": figures}}
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "1.out").write_text(f"{json.dumps(said)}\n")
    assert [one.traffic for one in curve(tmp_path)] == [0.75]


def test_an_empty_home_waits_for_customers(tmp_path: Path) -> None:
    with App(Settings(home=tmp_path / "home")) as app:
        app.settle()
        seen = look(app)
    assert (seen.over, stop(seen), seen.events) == (False, 0, 0)
    ((_, words),) = steps(seen)
    assert "none was served yet" in words
    assert picture(seen, 0) is not None


def test_a_curve_is_smoothed_and_fits_its_line() -> None:
    assert smooth([0.0, None, 1.0, 1.0]) == pytest.approx([0, 1 / 2, 2 / 3])
    assert spark([0.0, 0.5, 1.0], 60) == "▁▅█"
    assert len(spark([0.5] * 500, 60)) <= 60
