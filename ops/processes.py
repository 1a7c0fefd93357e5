"""Start programs, and read what Linux reports of a process."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Self

import httpx2

from ops.waits import until

ROOT: Final = Path(__file__).resolve().parents[1]
_LOOK_SECONDS: Final = 0.05
_LAST_WORDS: Final = 2000
_STOP_SECONDS: Final = 60.0


class ServerError(Exception):
    """A program did not start; the text holds the end of its output."""


class Server(ABC):
    """A third-party server for tests, in a folder of its own, with its output in a file."""

    ERROR: ClassVar[type[ServerError]] = ServerError
    LOG: ClassVar[str] = "server.log"
    READY_SECONDS: ClassVar[float] = 60
    READY_STATUS: ClassVar[int] = 200
    STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGTERM
    STOP_SECONDS: ClassVar[float] = 30
    VARIABLES: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path, url: str, ready: str = "") -> None:
        """`url` is its address; `ready` is a path of `url` that has READY_STATUS once it is up."""
        self.folder = folder.resolve()
        self.url = url
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def build_command(self) -> Sequence[str]:
        """Return the command line; install the program if it is missing."""

    def start(self) -> Self:
        """Start it unless it runs, and wait until it answers. Raise ERROR, OSError, or an error of
        `build_command`."""
        if self.pid is not None:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.build_command()
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder,
                env=os.environ | self.VARIABLES, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def _log(self) -> Path:
        return self.folder / self.LOG

    @property
    def pid(self) -> int | None:
        """Return its process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    def answers(self) -> bool:
        """Return whether the server is ready."""
        return answers(f"{self.url}{self._ready}", self.READY_STATUS)

    def _wait_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + self.READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if self.answers():
                return
            time.sleep(_LOOK_SECONDS)
        raise self.ERROR(f"{self.url}{self._ready} does not answer:\n{read_end(self._log)}")

    def stop(self) -> None:
        """End it and all processes of its process group."""
        if self._process is None:
            return
        self._process.send_signal(self.STOP_SIGNAL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self.STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def restart(self) -> Self:
        """Stop and start it."""
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Program:
    """A process of one of our modules, with its output in a file; it may be started again."""

    def __init__(self, output: Path, *arguments: str, **variables: str) -> None:
        self.output = output
        self._arguments = arguments
        self._environment = build_environment(**variables)
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it without waiting."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                env=self._environment,
                cwd=self.output.parent,
                stdout=output,
                stderr=output,
            )

    @property
    def _active_process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "start it first"
        return self._process

    def runs(self) -> bool:
        """Return whether it runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL, which also ends a paused process, and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Send SIGTERM, wait, and return the exit status."""
        self._active_process.terminate()
        return self._active_process.wait(_STOP_SECONDS)

    def pause(self) -> None:
        """Send SIGSTOP."""
        self._active_process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._active_process.send_signal(signal.SIGCONT)

    def wait_for_answer(self, url: str, seconds: float, status: int = 200) -> None:
        """Wait until a GET of `url` has `status`. Raise RuntimeError if the process ended, or
        TimeoutError."""

        def is_up() -> bool:
            if not self.runs():
                raise RuntimeError(f"{self.output} ends:\n{read_end(self.output)}")
            return answers(url, status)

        until(is_up, f"{url} answers {status}; see {self.output}", seconds)

    def resident_bytes(self) -> int:
        """Return its resident memory in bytes."""
        return read_memory(self._active_process.pid)

    def peak_bytes(self) -> int:
        """Return its peak memory in bytes."""
        return read_memory(self._active_process.pid, "VmHWM")


def answers(url: str, status: int = 200) -> bool:
    """Return whether a GET of `url` has `status`; false without an answer."""
    try:
        return httpx2.get(url, timeout=5, trust_env=False).status_code == status
    except httpx2.HTTPError:
        return False


def build_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with `variables` and without any kintsugi settings."""
    clean = {name: v for name, v in os.environ.items() if not name.startswith("KINTSUGI_")}
    return {**clean, "PYTHONPATH": str(ROOT), **variables}


def run_kintsugi(
    arguments: Sequence[str], environment: Mapping[str, str], seconds: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `kintsugi ARGUMENTS` to its end. Raise TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-m", "daemon", *arguments], cwd=ROOT, env=environment, text=True,
        capture_output=True, timeout=seconds, check=False,
    )  # fmt: skip


def read_end(log: Path) -> str:
    """Return the end of a program's output."""
    return log.read_text(errors="replace")[-_LAST_WORDS:] if log.exists() else "(it wrote no log)"


def compile_library(source: Path, library: Path) -> None:
    """Compile a C library for preloading. Raise RuntimeError."""
    compiled = subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", library, source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if compiled.returncode:
        raise RuntimeError(
            f"{source.name} does not compile, is a C compiler there? {compiled.stderr}"
        )


def find_ports(count: int) -> list[int]:
    """Return free consecutive ports, below Linux's ephemeral ports to avoid races."""
    while True:
        first = random.SystemRandom().randint(15_000, 32_000)
        ports = list(range(first, first + count))
        if all(_is_free(port) for port in ports):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process runs. An ended process without a wait (a zombie) does not."""
    fields = _read_stat(pid)
    return bool(fields) and fields[0] != "Z"


def list_children(parent: int) -> Iterator[int]:
    """Yield the child processes of `parent`."""
    return (pid for pid, other in _list_parents() if other == parent)


def list_descendants(root: int) -> list[int]:
    """Return the ids of all processes below `root`: children, their children, and so on."""
    parents, layer, pids = dict(_list_parents()), {root}, list[int]()
    while layer := {pid for pid, parent in parents.items() if parent in layer}:
        pids += layer
    return pids


def _list_parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _read_stat(int(folder.name)):
            yield int(folder.name), int(fields[1])


def read_cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = _read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int, row: str = "VmRSS") -> int:
    """Return the resident memory of a process in bytes; with `row="VmHWM"`, its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    (entry,) = [line for line in status.splitlines() if line.startswith(row)]
    return int(entry.split()[1]) * 1024


def _read_stat(pid: int) -> list[str]:
    # The process may end meanwhile.
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
