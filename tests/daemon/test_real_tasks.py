"""`kintsugi env replay` and `kintsugi env gold`: what scripts rely on."""

import json
from pathlib import Path

import pytest

from tests.daemon.commands import Result, run_here
from tests.envs.tau2.files import write_folder

CALL = {"name": "calculate", "arguments": {"expression": "1+1"}, "error": False, "output": "2.0"}


def kintsugi(*arguments: str, home: Path, folder: Path | None = None) -> Result:
    """A command, with the folder of real tasks that `files.py` writes."""
    variables = {"KINTSUGI_HOME": str(home)}
    if folder is not None:
        variables["KINTSUGI_BENCHMARKS"] = str(folder)
    return run_here(arguments, variables)


def test_an_equal_recording_is_done(tmp_path: Path) -> None:
    folder, file = write_folder(tmp_path / "real"), tmp_path / "calls.jsonl"
    file.write_text(json.dumps({"calls": [CALL, CALL]}))
    arguments = ("env", "replay", "--env", "retail", str(file))
    done = kintsugi(*arguments, "--json", home=tmp_path, folder=folder)
    assert (done.code, done.json) == (0, {"rows": 1, "calls": 2, "equal": 2, "mismatches": []})
    shown = kintsugi(*arguments, home=tmp_path, folder=folder)
    assert (shown.code, shown.out) == (
        0,
        "2 of 2 calls in 1 rows are equal, 0 values differ\n",
    )


def test_a_recording_that_differs_is_done_in_part_and_named(tmp_path: Path) -> None:
    folder, file = write_folder(tmp_path / "real"), tmp_path / "calls.jsonl"
    file.write_text("{\n" + json.dumps({"calls": [{**CALL, "output": "3.0"}]}))
    arguments = ("env", "replay", "--env", "retail", str(file))
    done = kintsugi(*arguments, "--json", home=tmp_path, folder=folder)
    assert done.code == 3
    assert (done.json["rows"], done.json["calls"], done.json["equal"]) == (2, 1, 0)
    first, second = done.json["mismatches"]
    assert (first["row"], first["call"], first["what"]) == (0, None, "row")
    assert second == {"row": 1, "call": 0, "what": "output", "expected": "3.0", "actual": "2.0"}
    assert "3.0" in kintsugi(*arguments, home=tmp_path, folder=folder).out


def test_a_recording_without_rows_proves_nothing(tmp_path: Path) -> None:
    folder, file = write_folder(tmp_path / "real"), tmp_path / "calls.jsonl"
    file.write_text("\n")
    arguments = ("env", "replay", "--env", "retail", str(file), "--json")
    done = kintsugi(*arguments, home=tmp_path, folder=folder)
    assert (done.code, done.json["rows"]) == (1, 0)
    assert f"{file} has no rows" in done.err


def test_gold_names_what_needs_a_judge(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "real")
    done = kintsugi("env", "gold", "--env", "retail", "--json", home=tmp_path, folder=folder)
    assert (done.code, done.json) == (
        0,
        {
            "tasks": 3,
            "reward_one": 2,
            "unevaluated": {"NL_ASSERTION": ["retail/1"]},
            "failed": [],
        },
    )
    train = ("env", "gold", "--env", "retail", "--split", "train")
    assert "needs NL_ASSERTION" in kintsugi(*train, home=tmp_path, folder=folder).out


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("gold", "--env", "retail"), 1, "set KINTSUGI_BENCHMARKS"),
        (("gold", "--env", "shop"), 2, "shop has no real tasks; give retail, airline or telecom"),
        (("gold", "--env", "nowhere"), 1, "no environment 'nowhere'"),
        (("replay", "--env", "retail", "none.jsonl"), 2, "does not exist"),
    ],
)
def test_an_error_says_what_to_do(
    tmp_path: Path, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    done = kintsugi("env", *arguments, home=tmp_path)
    assert done.code == code
    assert reason in done.err
