"""A real OpenTelemetry Collector in a folder of its own, for tests: it sends on what it takes.

    with Collector(folder, "http://127.0.0.1:8080/v1/traces", headers) as collector:
        collector.url                   http://127.0.0.1:PORT/v1/traces, where it takes them

    python -m ops.collector.server      prints where the program is; minutes the first time

The Collector's own builder makes the program of its core's modules (builder.yaml), where `otelcol`
is not on PATH. Not covered: anything between receiver and exporter, such as sampling.
"""

import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import yaml

from ops.answering import answers, last_words
from ops.golang import ProgramUnavailable, install, program, step

VERSION: Final = "v0.160.0"
"""Version of the builder, and of every module in builder.yaml."""
BUILDER: Final = f"go.opentelemetry.io/collector/cmd/builder@{VERSION}"
MANIFEST: Final = Path(__file__).with_name("builder.yaml")
READY_SECONDS: Final = 60
STOP_SECONDS: Final = 30
_NOT_WITH_GET: Final = 405


class CollectorError(Exception):
    """It did not start; the text holds the end of what it said."""


class Collector:
    """One Collector and its folder."""

    def __init__(
        self,
        folder: Path,
        onward: str,
        headers: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        """What it takes goes on to a URL, with headers; `most`: bytes of a body that it reads."""
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{place}/v1/traces"
        # Without its own limit it reads 20 MiB.
        http = {"endpoint": place} | ({"max_request_body_size": most} if most else {})
        # Without a queue what it has taken is what went on.
        sent = {
            "traces_endpoint": onward, "headers": dict(headers or {}),
            "sending_queue": {"enabled": False},
        }  # fmt: skip
        self._configuration = {
            "receivers": {"otlp": {"protocols": {"http": http}}},
            "exporters": {"otlp_http": sent},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]}},
            },
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises ProgramUnavailable, CollectorError, OSError."""
        binary = otelcol()
        configuration = self._folder / "collector.yaml"
        configuration.write_text(yaml.safe_dump(self._configuration))
        with (self._folder / "collector.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(binary), "--config", str(configuration)], stdout=log, stderr=log
            )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_ready(self) -> None:
        assert self._process is not None, "it was started"
        if not answers(self._process, self.url, READY_SECONDS, status=_NOT_WITH_GET):
            log_end = last_words(self._folder / "collector.log")
            raise CollectorError(f"it was not ready in {READY_SECONDS} s:\n{log_end}")


def otelcol() -> Path:
    """Where the program is, built now if it is nowhere yet. Raises ProgramUnavailable."""
    return program("otelcol", f"otelcol@{VERSION}", _build)


def _build(folder: Path) -> None:
    install(BUILDER, folder)
    step([str(folder / "builder"), "--config", str(MANIFEST)], folder)


if __name__ == "__main__":
    try:
        print(otelcol())
    except ProgramUnavailable as error:
        print(error, file=sys.stderr)
        sys.exit(1)
