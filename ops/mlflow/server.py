"""A real MLflow in its own folder and environment (ops/isolated.py), for tests of exported spans.

    with Mlflow(folder) as server:
        server.spans(trace)             the spans of a trace
    python -m ops.mlflow.server         prints its Python; installs it the first time

Not covered: persistence beyond its end.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx2

from ops.command_line import print_path
from ops.isolated import InstallError, interpreter
from ops.processes import Server, find_ports

MLFLOW: Final = "mlflow==3.17.2"
EXPERIMENT: Final = {"x-mlflow-experiment-id": "0"}
"""Header with which spans must be sent; experiment 0 always exists."""


class Mlflow(Server):
    """A server and its folder."""

    READY_SECONDS = 240
    VARIABLES: ClassVar[Mapping[str, str]] = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }

    def __init__(self, folder: Path) -> None:
        (self._port,) = find_ports(1)
        super().__init__(folder, f"http://127.0.0.1:{self._port}", ready="/health")

    def build_command(self) -> Sequence[str]:
        """Return the command line. Raise InstallError or OSError."""
        return [
            str(interpreter(MLFLOW)), "-m", "mlflow", "server", "--host=127.0.0.1",
            f"--port={self._port}", "--workers=1", "--backend-store-uri=sqlite:///mlflow.db",
        ]  # fmt: skip

    def spans(self, trace: str) -> list[dict[str, Any]]:
        """Return the spans of a trace with ids in hex and attributes as a mapping."""
        answer = httpx2.get(
            f"{self.url}/api/3.0/mlflow/traces/get",
            params={"trace_id": f"tr-{trace}"}, timeout=60, trust_env=False,
        )  # fmt: skip
        answer.raise_for_status()
        return [_read_span(span) for span in answer.json()["trace"].get("spans", ())]


def _read_span(span: dict[str, Any]) -> dict[str, Any]:
    ids = {
        name: base64.b64decode(span.get(name, "")).hex()
        for name in ("trace_id", "span_id", "parent_span_id")
    }
    attributes = {pair["key"]: pair["value"] for pair in span.get("attributes", ())}
    return {**span, **ids, "attributes": attributes}


if __name__ == "__main__":
    print_path(lambda: interpreter(MLFLOW), InstallError)
