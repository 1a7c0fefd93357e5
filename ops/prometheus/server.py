"""A real Prometheus in a folder of its own, for tests.

    with Prometheus(folder, config) as server:
        server.ask("up")        # [({"job": "kintsugi"}, 1.0), ...]

Runs the Debian package's program on a free port of 127.0.0.1 and keeps nothing afterwards. Not
covered: TLS, remote storage.
"""

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, Final, Self

import httpx2

from ops.answering import answers, last_words

READY_SECONDS: Final = 60
STOP_SECONDS: Final = 30


class PrometheusUnavailable(Exception):
    """The program is not installed; the text names the package."""


class PrometheusError(Exception):
    """It did not start, or refused a query; the text says why."""


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is. Raises PrometheusUnavailable."""
    path = shutil.which(name)
    if path is None:
        raise PrometheusUnavailable(f"no {name} on PATH; install it (Debian: prometheus)")
    return path


class Prometheus:
    """One server and its folder."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder = folder
        self._config = config
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [
            program("prometheus"), f"--config.file={self._config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=warn",
        ]  # fmt: skip
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None, "it was started"
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Every sample of a query now. Raises PrometheusError for one that it refuses."""
        data = self._get("/api/v1/query", query=query)
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule that was loaded, and how its last evaluation went."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        answer = httpx2.get(f"{self.url}{path}", params=parameters, timeout=30, trust_env=False)
        document = answer.json()
        if document["status"] != "success":
            raise PrometheusError(f"{parameters}: {document['error']}")
        return document["data"]

    def _wait_ready(self) -> None:
        assert self._process is not None, "it was started"
        if not answers(self._process, f"{self.url}/-/ready", READY_SECONDS):
            log_end = last_words(self._folder / "server.log")
            raise PrometheusError(f"it was not ready in {READY_SECONDS} s:\n{log_end}")
