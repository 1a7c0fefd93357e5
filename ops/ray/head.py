"""A Ray cluster of one machine, for tests.

    with Head(folder, cpus=2) as head:
        head.address                     http://127.0.0.1:PORT, of the Ray Jobs REST API

    python -m ops.ray.head               prints the Python that has it, installed now if need be

Every port is its own, so that several may run side by side. Ray's log files are in `folder`, whose
path has to be short: a socket's may have 107 bytes. All of it ends with `stop`: what Ray leaves in
its process group, and jobs, which a watcher of each kills once its supervisor is gone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from ops.command_line import print_path
from ops.isolated import InstallError, interpreter
from ops.processes import Server, find_ports

RAY: Final = "ray[default]==2.60.0"
_STORE_BYTES: Final = 80_000_000
"""The least that Ray takes for objects; a job has none."""
_PORTS: Final = (
    "port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
    "runtime-env-agent-port", "metrics-export-port", "node-manager-port", "object-manager-port",
    "ray-client-server-port",
)  # fmt: skip
"""Named, or they are the same for every cluster of a machine, or Ray waits 15 seconds at most for
its own processes to tell which they chose."""


class Head(Server):
    """One cluster."""

    READY_SECONDS = 240
    VARIABLES: ClassVar[Mapping[str, str]] = {"RAY_enable_metrics_collection": "0"}

    def __init__(self, folder: Path, *, cpus: int = 2, gpus: int = 0) -> None:
        """`gpus`: so many are handed out, whether there are any or not."""
        self._resources = (f"--num-cpus={cpus}", f"--num-gpus={gpus}")
        self._ports = dict(zip(_PORTS, find_ports(len(_PORTS)), strict=True))
        url = f"http://127.0.0.1:{self._ports['dashboard-port']}"
        super().__init__(folder, url, ready="/api/jobs/")

    @property
    def address(self) -> str:
        """URL of the Ray Jobs REST API."""
        return self.url

    def build_command(self) -> Sequence[str]:
        """Raises InstallError, OSError."""
        return [
            str(interpreter(RAY)), "-m", "ray.scripts.scripts", "start", "--head", "--block",
            "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--disable-usage-stats",
            "--include-log-monitor=false", f"--object-store-memory={_STORE_BYTES}",
            f"--temp-dir={self.folder}", "--min-worker-port=0", "--max-worker-port=0",
            *self._resources, *(f"--{name}={port}" for name, port in self._ports.items()),
        ]  # fmt: skip


if __name__ == "__main__":
    print_path(lambda: interpreter(RAY), InstallError)
