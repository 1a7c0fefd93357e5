"""`python -m daemon.solver reward FILE`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.solver.__main__ import main
from tests.daemon.commands import environment
from tests.envs.reflection.test_reward import CALL, GOLD

LINES = [
    {"completion": GOLD, "gold": GOLD},
    {"completion": CALL, "gold": GOLD, "id": 7},
    {"completion": "I am sorry.", "gold": GOLD},
]


def written(folder: Path, *lines: Any) -> str:
    path = folder / "completions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.parametrize("form", ["paper", "release"])
def test_each_line_has_its_reward(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [] if form == "paper" else ["--form", form]
    assert main(["reward", written(tmp_path, *LINES), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["form"]) == (3, form)
    assert found["rewards"][:2] == pytest.approx([1.0, 0.854], abs=1e-6)
    assert (found["rewards"][2] == 0) == (form == "release")


def test_no_lines_have_no_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reward", written(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 0, "rewards": [], "form": "paper"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1]", "[1] and no JSON object"),
        (b"[" * 900 + b"]" * 900, "and no JSON object"),
        (b'{"completion": "x"}', "has no field 'gold'"),
        (b'{"completion": null, "gold": ""}', "'completion' is None and no text"),
    ],
    ids=lambda value: value[:30],
)
def test_a_bad_line_is_named_with_the_remedy(
    line: bytes, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(json.dumps(LINES[0]).encode() + b"\n\n" + line)
    assert main(["reward", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{path}, line 3" in captured.err
    assert complaint in captured.err
    assert 'write {"completion"' in captured.err
    assert captured.err.count("\n") == 1


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reward", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl: No such file" in capsys.readouterr().err


@pytest.mark.processes
def test_no_torch_is_needed(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; from daemon.solver.__main__ import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "reward", written(tmp_path, *LINES)],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, json.loads(done.stdout)["n"]) == (0, 3), done.stderr
