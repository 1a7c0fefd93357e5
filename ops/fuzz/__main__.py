"""Send a gateway requests that no real client would send.

    python -m ops.fuzz [--requests 100000] [--examples 2000] [--seed 0] [--folder DIR]

`--requests` go over sockets (requests.py), `--examples` per operation come from schemathesis
(schema.py). Prints one line of JSON with the statuses that came back and what was wrong; exit code
1 if anything was.
"""

from pathlib import Path
from typing import Any

from ops.command_line import run_command
from ops.fuzz.requests import requests as make_requests
from ops.fuzz.schema import schemathesis
from ops.fuzz.sockets import send_all
from ops.fuzz.stage import stage


def run(requests: int, examples: int, seed: int, folder: Path) -> dict[str, Any]:
    """Return the answers and the errors. Raise InstallError, OSError or RuntimeError."""
    with stage(folder) as fuzzed:
        port = fuzzed.gateway.port
        replies = send_all(port, make_requests(seed, requests))
        wrong = list(replies.wrong)
        if examples:
            report = schemathesis(f"http://127.0.0.1:{port}", examples, seed, folder)
            (folder / "schemathesis.txt").write_text(report.text)
            wrong += [] if report.passed else [report.text]
        wrong += fuzzed.problems()
    statuses = dict(sorted(replies.statuses.items()))
    return {"requests": requests, "statuses": statuses, "wrong": wrong}


if __name__ == "__main__":
    run_command(__doc__, run, requests=10_000, examples=200, seed=0)
