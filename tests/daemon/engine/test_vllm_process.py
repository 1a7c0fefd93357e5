"""What starts and ends a vLLM: every process of it goes, whoever dies first."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, create_connection, create_server, socket

import pytest

from daemon.engine.vllm import Vllm, VllmFailure
from ops.processes import is_alive

PROGRAM = """
import sys
from pathlib import Path
from daemon.engine.vllm import Vllm

Vllm(sys.argv[1], Path("."), "small", Path(sys.argv[2])).start()
"""

SERVER = """#!/bin/sh
{first}
sleep 1000 &
echo $$ $! > {pids}.unfinished && mv {pids}.unfinished {pids}
wait
"""


class Given(Exception):
    """Somebody does not want to wait."""


def interpreter(folder: Path, first: str = "") -> Path:
    """A program that never answers and has a process of its own, in place of an interpreter."""
    path = folder / "python"
    path.write_text(SERVER.format(first=first, pids=folder / "pids"))
    path.chmod(0o755)
    return path


def pids(folder: Path) -> list[int]:
    """Of the server and its process; none before they run."""
    file = folder / "pids"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def until(true: Callable[[], bool]) -> None:
    """The test's time limit ends it otherwise."""
    while not true():
        os.sched_yield()


def gone(folder: Path) -> bool:
    return not any(is_alive(pid) for pid in pids(folder))


@pytest.mark.faults
def test_its_processes_end_with_the_one_that_started_it_also_after_a_kill(tmp_path: Path) -> None:
    given = [str(interpreter(tmp_path)), str(tmp_path / "vllm.log")]
    command = [sys.executable, "-c", PROGRAM, *given]
    with subprocess.Popen(command) as owner:
        until(lambda: len(pids(tmp_path)) == 2)
        owner.send_signal(signal.SIGKILL)
    until(lambda: gone(tmp_path))


@pytest.mark.faults
def test_a_server_that_does_not_stop_when_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.engine.vllm.STOP_SECONDS", 1)

    def waiting() -> None:
        if pids(tmp_path):
            raise Given

    python = interpreter(tmp_path, first="trap '' TERM")
    with pytest.raises(Given):
        Vllm(python, tmp_path, "small", tmp_path / "vllm.log").start(waiting)
    until(lambda: gone(tmp_path))


def test_an_interpreter_without_vllm_is_told_from_the_end_of_its_log(tmp_path: Path) -> None:
    server = Vllm(sys.executable, tmp_path, "small", tmp_path / "vllm.log")
    with pytest.raises(VllmFailure, match=r"(?s)exited while starting.*No module named"):
        server.start()


def test_a_server_that_fails_leaves_no_process_of_its_own(tmp_path: Path) -> None:
    python = interpreter(tmp_path)
    python.write_text(python.read_text().replace("wait\n", "exit 3\n"))
    with pytest.raises(VllmFailure, match="exited while starting"):
        Vllm(python, tmp_path, "small", tmp_path / "vllm.log").start()
    until(lambda: gone(tmp_path))


def test_only_its_own_server_can_take_the_port_before_it_answers(tmp_path: Path) -> None:
    server = Vllm(sys.executable, tmp_path, "small", tmp_path / "vllm.log")
    with socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", server.port))
    # What vLLM and asyncio do.
    with create_server(("127.0.0.1", server.port)), create_connection(("127.0.0.1", server.port)):
        server.stop()
    with socket() as stranger:
        stranger.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", server.port))
