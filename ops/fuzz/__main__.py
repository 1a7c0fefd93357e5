"""Send a gateway requests that no real client would send.

    python -m ops.fuzz [--requests 100000] [--examples 2000] [--seed 0] [--folder DIR]

`--requests` go over sockets (requests.py), `--examples` per operation come from schemathesis
(schema.py). Prints one line of JSON with the statuses that came back and what was wrong; exit code
1 if anything was.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ops.fuzz.requests import requests
from ops.fuzz.schema import schemathesis
from ops.fuzz.sockets import send_all
from ops.fuzz.stage import stage


def run(requests_count: int, examples: int, seed: int, folder: Path) -> dict[str, Any]:
    """What came back and what is wrong. Raises InstallError, OSError, RuntimeError."""
    with stage(folder) as fuzzed:
        port = fuzzed.gateway.port
        replies = send_all(port, requests(seed, requests_count))
        wrong = list(replies.wrong)
        if examples:
            report = schemathesis(f"http://127.0.0.1:{port}", examples, seed, folder)
            (folder / "schemathesis.txt").write_text(report.text)
            wrong += [] if report.passed else [report.text]
        wrong += fuzzed.problems()
    statuses = dict(sorted(replies.statuses.items()))
    return {"requests": requests_count, "statuses": statuses, "wrong": wrong}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work, kept; else a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kintsugi-fuzz-") as temporary:
        folder = options.folder or Path(temporary)
        result = run(options.requests, options.examples, options.seed, folder)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
