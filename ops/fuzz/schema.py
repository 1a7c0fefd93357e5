"""Run schemathesis against a gateway: requests that its OpenAPI document allows, and others.

Runs in its own environment (ops/isolated.py). Checks the gateway's promises: no status of 500 or
more, and the described content types, headers and shapes. The engine decides what a request may
hold, so a request beyond the description may be accepted or refused.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.isolated import interpreter

REQUIREMENT: Final = "schemathesis==4.32.5"
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
_SECONDS: Final = 6 * 3600


@dataclass(frozen=True, slots=True)
class Report:
    """The result of schemathesis."""

    passed: bool
    text: str


def schemathesis(url: str, examples: int, seed: int, folder: Path) -> Report:
    """Run `examples` per operation and phase; `url` lacks `/v1`. Raise InstallError or OSError."""
    done = subprocess.run(
        [
            *(str(interpreter(REQUIREMENT)), "-m", "schemathesis.cli"),
            *("run", f"{url}/openapi.json", "--url", url),
            *("--max-examples", str(examples), "--seed", str(seed), "--no-color"),
            *("--phases", "examples,coverage,fuzzing"),
            *("--checks", ",".join(CHECKS), "--generation-database", "none"),
            *("--warnings", "off", "--continue-on-failure", "--request-timeout", "120"),
            *("--suppress-health-check", "all"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return Report(done.returncode == 0, done.stdout + done.stderr)
