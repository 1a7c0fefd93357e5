"""schemathesis against a gateway: what its own description allows, and what it does not.

In an environment of its own (ops/isolated.py). Checked is what a gateway can promise: no status of
500 or more, and the content types, headers and shapes that it describes. What a request may hold is
the engine's affair, so that an engine takes or refuses what the description does not say is right.
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
    """What schemathesis says."""

    passed: bool
    text: str


def schemathesis(url: str, examples: int, seed: int, folder: Path) -> Report:
    """Examples per operation and phase. `url` is the gateway's, without `/v1`.

    Raises InstallError, OSError.
    """
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
