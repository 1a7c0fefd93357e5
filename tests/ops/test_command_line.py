"""The command line of drivers: flags, a folder, figures as JSON, an exit code."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.command_line import print_path, run_command


def run(capsys: pytest.CaptureFixture[str], **figures: Any) -> tuple[int, dict[str, Any]]:
    """The exit code of a driver with these figures, and what it printed."""

    def drive(folder: Path, count: int, seconds: float) -> dict[str, Any]:
        return {"there": folder.is_dir(), "count": count, "seconds": seconds, **figures}

    with pytest.raises(SystemExit) as ended:
        run_command("About it.", drive, count=100, seconds=0.5)
    assert isinstance(ended.value.code, int)
    return ended.value.code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("figures", "code"),
    [({}, 0), ({"passed": True}, 0), ({"passed": False}, 1), ({"wrong": ["a"]}, 1)],
)
def test_figures_decide_the_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    figures: dict[str, Any],
    code: int,
) -> None:
    monkeypatch.setattr(sys, "argv", ["driver", "--count", "3"])
    assert run(capsys, **figures) == (
        code,
        {"there": True, "count": 3, "seconds": 0.5, **figures},
    )


def test_a_folder_that_is_named_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["driver", "--folder", str(tmp_path / "kept")])
    assert run(capsys)[0] == 0
    assert (tmp_path / "kept").is_dir()


def test_what_cannot_be_found_ends_with_the_remedy(tmp_path: Path) -> None:
    def find() -> Path:
        raise FileNotFoundError("install it")

    with pytest.raises(SystemExit, match="install it"):
        print_path(find, FileNotFoundError)
    with pytest.raises(SystemExit) as ended:
        print_path(lambda: tmp_path)
    assert ended.value.code == 0
