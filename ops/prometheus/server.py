"""A real Prometheus in its own folder, for tests.

    with Prometheus(folder, config) as server:
        server.ask("up")        # [({"job": "kintsugi"}, 1.0), ...]

Runs the Debian package's program on a free port of 127.0.0.1. Not covered: TLS, remote storage.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from ops.processes import Server, find_ports


class PrometheusUnavailable(Exception):
    """The program is not installed; the text names the package."""


class PrometheusError(Exception):
    """Prometheus refused a query; the text says why."""


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Raise PrometheusUnavailable."""
    path = shutil.which(name)
    if path is None:
        raise PrometheusUnavailable(f"no {name} on PATH; install it (Debian: prometheus)")
    return path


class Prometheus(Server):
    """A server and its folder."""

    def __init__(self, folder: Path, config: Path) -> None:
        (self._port,) = find_ports(1)
        super().__init__(folder, f"http://127.0.0.1:{self._port}", ready="/-/ready")
        self._config = config

    def build_command(self) -> Sequence[str]:
        """Return the command line. Raise PrometheusUnavailable."""
        return [
            program("prometheus"), f"--config.file={self._config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn",
        ]  # fmt: skip

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Return every sample of a query now. Raise PrometheusError if the query is refused."""
        data = self._get("/api/v1/query", query=query)
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """Return every loaded rule with the result of its last evaluation."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        answer = httpx2.get(f"{self.url}{path}", params=parameters, timeout=30, trust_env=False)
        document = answer.json()
        if document["status"] != "success":
            raise PrometheusError(f"{parameters}: {document['error']}")
        return document["data"]
