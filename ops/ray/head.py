"""A Ray cluster of one machine, for tests.

    with Head(folder, cpus=2) as head: ...
    python -m ops.ray.head               prints its Python; installs it the first time

Each cluster has its own ports, so several may run side by side. `folder` holds Ray's logs and needs
a short path: that of a socket may have 107 bytes. A watcher ends each job after its supervisor.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from ops.command_line import print_path
from ops.isolated import InstallError, interpreter
from ops.processes import Server, find_ports

RAY: Final = "ray[default]==2.60.0"
_STORE_BYTES: Final = 80_000_000
"""Ray's minimum for its object store; jobs use none."""
_PORTS: Final = (
    "port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
    "runtime-env-agent-port", "metrics-export-port", "node-manager-port", "object-manager-port",
    "ray-client-server-port",
)  # fmt: skip
"""Options of Ray for ports. Default ports collide with other clusters, or Ray waits up to 15
seconds until its processes report their choice."""


class Head(Server):
    """A Ray cluster of one machine."""

    READY_SECONDS = 240
    VARIABLES: ClassVar[Mapping[str, str]] = {"RAY_enable_metrics_collection": "0"}

    def __init__(self, folder: Path, *, cpus: int = 2, gpus: int = 0) -> None:
        """`gpus` is the number that Ray hands out, whether they exist or not."""
        self._resources = (f"--num-cpus={cpus}", f"--num-gpus={gpus}")
        self._ports = dict(zip(_PORTS, find_ports(len(_PORTS)), strict=True))
        url = f"http://127.0.0.1:{self._ports['dashboard-port']}"
        super().__init__(folder, url, ready="/api/jobs/")

    @property
    def address(self) -> str:
        """Return the URL of the Ray Jobs REST API."""
        return self.url

    def build_command(self) -> Sequence[str]:
        """Return the command line. Raise InstallError or OSError."""
        return [
            str(interpreter(RAY)), "-m", "ray.scripts.scripts", "start", "--head", "--block",
            "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--disable-usage-stats",
            "--include-log-monitor=false", f"--object-store-memory={_STORE_BYTES}",
            f"--temp-dir={self.folder}", "--min-worker-port=0", "--max-worker-port=0",
            *self._resources, *(f"--{name}={port}" for name, port in self._ports.items()),
        ]  # fmt: skip


if __name__ == "__main__":
    print_path(lambda: interpreter(RAY), InstallError)
