"""A real OpenTelemetry Collector in its own folder, for tests; it forwards what it receives.

    with Collector(folder, "http://127.0.0.1:8080/v1/traces", headers) as collector: ...
    python -m ops.collector.server      prints the program's path; builds it the first time

Its builder makes the program (builder.yaml) where `otelcol` is not on PATH. Not covered: processors
between receiver and exporter, such as sampling.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from ops.command_line import print_path
from ops.golang import ProgramUnavailable, install, program, step
from ops.processes import Server, find_ports

VERSION: Final = "v0.160.0"
BUILDER: Final = f"go.opentelemetry.io/collector/cmd/builder@{VERSION}"
MANIFEST: Final = Path(__file__).with_name("builder.yaml")


class Collector(Server):
    """A Collector and its folder."""

    READY_STATUS = 405

    def __init__(
        self,
        folder: Path,
        onward: str,
        headers: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        """Make it forward to the URL `onward` with `headers`; `most` limits a body's bytes."""
        place = f"127.0.0.1:{find_ports(1)[0]}"
        super().__init__(folder, f"http://{place}/v1/traces", ready="")
        # The default limit is 20 MiB.
        http = {"endpoint": place} | ({"max_request_body_size": most} if most else {})
        # Without a queue it answers only after it has forwarded.
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

    def build_command(self) -> Sequence[str]:
        """Return the command line. Raise ProgramUnavailable."""
        configuration = self.folder / "collector.yaml"
        configuration.write_text(yaml.safe_dump(self._configuration))
        return [str(otelcol()), "--config", str(configuration)]


def otelcol() -> Path:
    """Return the program's path; build it if it is missing. Raise ProgramUnavailable."""
    return program("otelcol", f"otelcol@{VERSION}", _build)


def _build(folder: Path) -> None:
    install(BUILDER, folder)
    step([str(folder / "builder"), "--config", str(MANIFEST)], folder)


if __name__ == "__main__":
    print_path(otelcol, ProgramUnavailable)
