"""Programs that are started for tests, and what Linux says of processes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.processes import (
    Server,
    ServerError,
    find_ports,
    is_alive,
    list_descendants,
    read_cpu_seconds,
    read_memory,
)
from ops.waits import until


class Files(Server):
    """Python's own server of files."""

    def __init__(self, folder: Path, *words: str) -> None:
        (self.port,) = find_ports(1)
        super().__init__(folder, f"http://127.0.0.1:{self.port}", ready="/server.log")
        self.words = words or (str(self.port),)

    def build_command(self) -> Sequence[str]:
        return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", *self.words]


def test_a_server_answers_until_the_end_of_its_block(tmp_path: Path) -> None:
    with Files(tmp_path / "files") as server:
        first = server.pid
        assert first is not None
        assert server.start().pid == first
        assert server.restart().pid not in (None, first)
        assert not is_alive(first)
        assert server.answers()
    assert server.pid is None
    assert not server.answers()


def test_a_server_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    server = Files(tmp_path, "no port")
    with pytest.raises(ServerError, match=r"(?s)does not answer:.*invalid"):
        server.start()
    assert server.pid is None


def test_descendants_are_found_and_measured() -> None:
    words = ["sh", "-c", "sleep 60 & sleep 60"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as shell:
        until(lambda: len(list_descendants(shell.pid)) == 2, "both sleep")
        pids = list_descendants(shell.pid)
        assert all(map(is_alive, pids))
        assert shell.pid in list_descendants(os.getpid())
        os.killpg(shell.pid, 9)
    until(lambda: not any(map(is_alive, pids)), "none of them runs")
    assert read_memory(os.getpid()) <= read_memory(os.getpid(), "VmHWM")
    assert read_cpu_seconds(os.getpid()) > 0
