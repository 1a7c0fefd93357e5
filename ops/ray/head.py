"""A Ray cluster of one machine, for tests.

    with Head(folder, cpus=2) as head:
        head.address                     http://127.0.0.1:PORT, of the Ray Jobs REST API

Every port is its own, so that several may run side by side. Ray's log files are in `folder`, whose
path has to be short: a socket's may have 107 bytes. All of it ends with `stop`: what Ray leaves in
its process group, and jobs, which a watcher of each kills once its supervisor is gone.
"""

import os
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from ops.answering import answers, last_words
from ops.ray.environment import python

READY_SECONDS: Final = 240
STOP_SECONDS: Final = 30
_STORE_BYTES: Final = 80_000_000
"""The least that Ray takes for objects; a job has none."""
_PORTS: Final = (
    "port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
    "runtime-env-agent-port", "metrics-export-port", "node-manager-port", "object-manager-port",
    "ray-client-server-port",
)  # fmt: skip
"""Named, or they are the same for every cluster of a machine, or Ray waits 15 seconds at most for
its own processes to tell which they chose."""


class RayError(Exception):
    """It did not start; the text holds the end of what it said."""


class Head:
    """One cluster."""

    def __init__(self, folder: Path, *, cpus: int = 2, gpus: int = 0) -> None:
        """`gpus`: so many are handed out, whether there are any or not."""
        self._folder = folder
        self._resources = (f"--num-cpus={cpus}", f"--num-gpus={gpus}")
        self._ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """URL of the Ray Jobs REST API."""
        return f"http://127.0.0.1:{self._ports['dashboard-port']}"

    def start(self) -> Self:
        """Install it if it is not there yet, and return when it takes jobs.

        Raises InstallError, RayError, OSError.
        """
        command = [
            str(python()), "-m", "ray.scripts.scripts", "start", "--head", "--block",
            "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--disable-usage-stats",
            "--include-log-monitor=false", f"--object-store-memory={_STORE_BYTES}",
            f"--temp-dir={self._folder}", "--min-worker-port=0", "--max-worker-port=0",
            *self._resources, *(f"--{name}={port}" for name, port in self._ports.items()),
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
                env=os.environ | {"RAY_enable_metrics_collection": "0"}, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it, with whatever runs in it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._folder / "ray.log"

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        if not answers(process, f"{self.address}/api/jobs/", READY_SECONDS):
            raise RayError(
                f"Ray at {self.address} did not come up (exit {process.poll()}):\n"
                f"{last_words(self._log)}"
            )


def _free_ports(count: int) -> list[int]:
    """Different ones: all are held until the last is found."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
