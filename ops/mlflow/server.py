"""A real MLflow in a folder of its own, for tests: a receiver of spans that people run.

    with Mlflow(folder) as server:
        server.url                      http://127.0.0.1:PORT
        server.spans(trace)             the spans of a trace, as it gives them back

    python -m ops.mlflow.server         prints the Python that has it, installed now if need be

It has an environment of its own (ops/isolated.py) and keeps what it takes in SQLite in the folder.
Not covered: anything of it that lasts beyond its end.
"""

import base64
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

import httpx2

from ops.answering import answers, last_words
from ops.isolated import InstallError, interpreter

MLFLOW: Final = "mlflow==3.17.2"
EXPERIMENT: Final = {"x-mlflow-experiment-id": "0"}
"""The header that spans have to come with; 0 is the experiment that is always there."""
READY_SECONDS: Final = 240
STOP_SECONDS: Final = 30
_QUIET: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""Settings that turn off telemetry, and the workers for jobs, which are not used here."""


class MlflowError(Exception):
    """It did not start; the text holds the end of what it said."""


class Mlflow:
    """One server and its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises InstallError, MlflowError, OSError."""
        command = [
            str(interpreter(MLFLOW)), "-m", "mlflow", "server", "--host=127.0.0.1",
            f"--port={self._port}", "--workers=1", "--backend-store-uri=sqlite:///mlflow.db",
        ]  # fmt: skip
        with (self._folder / "server.log").open("wb") as log:
            # A session of its own: the server is a child of what is started here.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, env=os.environ | _QUIET,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None, "it was started"
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def spans(self, trace: str) -> list[dict[str, Any]]:
        """The spans of a trace, with ids in hex and the attributes as a mapping."""
        answer = httpx2.get(
            f"{self.url}/api/3.0/mlflow/traces/get",
            params={"trace_id": f"tr-{trace}"}, timeout=60, trust_env=False,
        )  # fmt: skip
        answer.raise_for_status()
        return [_read_span(span) for span in answer.json()["trace"].get("spans", ())]

    def _wait_ready(self) -> None:
        assert self._process is not None, "it was started"
        if not answers(self._process, f"{self.url}/health", READY_SECONDS):
            log_end = last_words(self._folder / "server.log")
            raise MlflowError(f"it was not ready in {READY_SECONDS} s:\n{log_end}")


def _read_span(span: dict[str, Any]) -> dict[str, Any]:
    """A span of its JSON, in which ids are base64."""
    ids = {
        name: base64.b64decode(span.get(name, "")).hex()
        for name in ("trace_id", "span_id", "parent_span_id")
    }
    attributes = {pair["key"]: pair["value"] for pair in span.get("attributes", ())}
    return {**span, **ids, "attributes": attributes}


if __name__ == "__main__":
    try:
        print(interpreter(MLFLOW))
    except InstallError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
