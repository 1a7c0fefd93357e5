"""A real MLflow in a folder of its own, for tests: a receiver of spans that people run.

    with Mlflow(folder) as server:
        server.url                      http://127.0.0.1:PORT
        server.spans(trace)             the spans of a trace, as it gives them back

    python -m ops.mlflow.server         prints the Python that has it, installed now if need be

It has an environment of its own (ops/isolated.py) and keeps what it takes in SQLite in the folder.
Not covered: anything of it that lasts beyond its end.
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
"""The header that spans have to come with; 0 is the experiment that is always there."""


class Mlflow(Server):
    """One server and its folder."""

    READY_SECONDS = 240
    VARIABLES: ClassVar[Mapping[str, str]] = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    """Without telemetry, and without the workers for jobs, which are not used here."""

    def __init__(self, folder: Path) -> None:
        (self._port,) = find_ports(1)
        super().__init__(folder, f"http://127.0.0.1:{self._port}", ready="/health")

    def build_command(self) -> Sequence[str]:
        """Raises InstallError, OSError."""
        return [
            str(interpreter(MLFLOW)), "-m", "mlflow", "server", "--host=127.0.0.1",
            f"--port={self._port}", "--workers=1", "--backend-store-uri=sqlite:///mlflow.db",
        ]  # fmt: skip

    def spans(self, trace: str) -> list[dict[str, Any]]:
        """The spans of a trace, with ids in hex and the attributes as a mapping."""
        answer = httpx2.get(
            f"{self.url}/api/3.0/mlflow/traces/get",
            params={"trace_id": f"tr-{trace}"}, timeout=60, trust_env=False,
        )  # fmt: skip
        answer.raise_for_status()
        return [_read_span(span) for span in answer.json()["trace"].get("spans", ())]


def _read_span(span: dict[str, Any]) -> dict[str, Any]:
    """A span of its JSON, in which ids are base64."""
    ids = {
        name: base64.b64decode(span.get(name, "")).hex()
        for name in ("trace_id", "span_id", "parent_span_id")
    }
    attributes = {pair["key"]: pair["value"] for pair in span.get("attributes", ())}
    return {**span, **ids, "attributes": attributes}


if __name__ == "__main__":
    print_path(lambda: interpreter(MLFLOW), InstallError)
