"""Runs in the order of their worth, and only those that are missing."""

from pathlib import Path

import pytest

from ops.learning import queue, results
from ops.learning.__main__ import main
from tests.ops.learning.test_report import run


def named(shares: tuple[float, ...], seeds: list[int], arms: str) -> list[str]:
    wanted = queue.keys(
        [arm for arm in ("a", "b", "c", "d") if arm in arms], "main", shares, seeds,
        development=False,
    )  # fmt: skip
    return [key.name.replace("main-0.13-", "") for key in wanted]


def test_the_comparison_that_matters_most_is_made_first_on_every_seed() -> None:
    assert named((0.13,), [1, 2], "abcd") == [
        "base-seed1",
        "d-seed1",
        "a-seed1",
        "base-seed2",
        "d-seed2",
        "a-seed2",
        "b-seed1",
        "c-seed1",
        "b-seed2",
        "c-seed2",
    ]


def test_every_comparison_has_its_base() -> None:
    assert named((0.13,), [3], "b") == ["base-seed3", "b-seed3"]


def test_no_two_runs_have_one_name() -> None:
    made = named((0.13, 0.5), [1, 2, 3], "abcd")
    made += [
        key.name
        for key in queue.keys(["a"], "main", [0.13], [1, 2, 3], development=True)
        if key.arm == "a"
    ]
    assert len(set(made)) == len(made) == 33


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    made = [run("base", 1, {0: 0.4}), run("a", 1, {2048: 0.5})]
    for one in made:
        results.write(tmp_path, one)
    told: list[str] = []
    keys = queue.keys(["a"], "main", [0.13], [1], development=False)
    assert queue.work(tmp_path, keys, ["--no-such-flag"], 2, told.append) == []
    assert told == ["2 of 2 runs are there, 0 to be made"]


@pytest.mark.processes
def test_a_run_that_fails_is_named_and_stops_no_other(tmp_path: Path) -> None:
    told: list[str] = []
    keys = queue.keys(["a"], "main", [0.13], [1], development=False)
    flags = ["--checkpoint", str(tmp_path / "nothing")]
    assert queue.work(tmp_path / "out", keys, flags, 2, told.append) == keys
    assert len(told) == 3
    assert all("failed with exit code 1" in line for line in told[1:])
    assert results.read(tmp_path / "out") == []


def test_the_command_line_reports_the_results_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in (run("base", 1, {0: 0.4}), run("a", 1, {2048: 0.5})):
        results.write(tmp_path, one)
    image = tmp_path / "curves.svg"
    assert main(["report", "--out", str(tmp_path), "--image", str(image)]) == 0
    assert "### main capabilities, 13% of the traffic; seeds 1" in capsys.readouterr().out
    assert image.read_bytes().startswith(b"<?xml")


def test_a_folder_without_results_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--out", str(tmp_path)]) == 1
    assert "run the base first" in capsys.readouterr().err


def test_arms_that_do_not_exist_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--out", "x", "--arms", "a,z"])
    assert "names no arms" in capsys.readouterr().err
