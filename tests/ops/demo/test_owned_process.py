"""Processes of the demo end with it, and never work in one place at the same time."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.demo.owned_process import owned_process
from ops.demo.place import ROOT, SIZES, Place, make

PROGRAM = """
import fcntl, sys
from pathlib import Path
from ops.demo.owned_process import owned_process
from ops.demo.place import Place
home, lock = Path(sys.argv[1]), Path(sys.argv[2])
with (home / "out").open("ab") as output:
    with owned_process(["http.server", "0"], Place(home), lock, output, output) as process:
        print(process.pid, flush=True)
        process.wait()
"""


def start(home: Path, lock: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(home), str(lock)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.processes
def test_the_next_one_waits_for_an_orphan_which_ends_with_its_starter(tmp_path: Path) -> None:
    home, lock = make(tmp_path / "home", SIZES["least"]).home, tmp_path / "lock"
    with start(home, lock) as killed:
        assert killed.stdout is not None
        orphan = int(killed.stdout.readline())
        assert Path(f"/proc/{orphan}").exists()
        killed.send_signal(signal.SIGKILL)
    with start(home, lock) as following:
        assert following.stdout is not None
        second = int(following.stdout.readline())
        assert not is_running(orphan), "it held the lock until it ended"
        following.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_running(second):
        assert time.monotonic() < deadline, "a killed starter leaves nothing behind"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """A process that nobody waits for stays as a zombie, which runs no more."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_has_not_ended_is_ended_on_the_way_out(tmp_path: Path) -> None:
    place: Place = make(tmp_path / "home", SIZES["least"])
    with (
        (tmp_path / "out").open("wb") as output,
        owned_process(["http.server", "0"], place, tmp_path / "lock", output, output) as process,
    ):
        assert process.poll() is None
    assert process.returncode == -signal.SIGTERM
