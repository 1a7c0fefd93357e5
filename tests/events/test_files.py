"""A file is the old one or the new one, whoever is killed, and whatever the disk refuses."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from events.files import UNFINISHED, replace_file

DYING = """
import os, signal, sys
from pathlib import Path
from events.files import replace_file
def stop(event, arguments):
    if event == "os.rename":
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(stop)
replace_file(Path(sys.argv[1]), b"new")
"""


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_file_takes_the_place_of_another(
    tmp_path: Path, is_durable: bool, is_shared: bool
) -> None:
    path = tmp_path / "a.json"
    for content in (b"first", b""):
        replace_file(path, content, is_durable=is_durable, is_shared=is_shared)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    dying = subprocess.run([sys.executable, "-c", DYING, str(path)], check=False)
    assert dying.returncode < 0
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["a.json"])


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"x", is_private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(path, b"x")
    assert [name for name in os.listdir(tmp_path) if name.startswith(UNFINISHED)] == []
