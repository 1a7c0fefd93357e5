"""A program that behaves as a learner may, in a moment and without torch.

Its spec's `seed` says how: see `WAYS`. It speaks and is spoken to as `python -m daemon.solver` is,
so that every end a process can have is seen. The learner itself runs in test_faults.py and, by
make long, in the last test of tests/contract/test_job_runner.py.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

WAYS: Final = (
    "trains", "waits", "deaf", "memory", "raises", "usage", "plays and dies", "diverges", "traced",
)  # fmt: skip
PYTHON: Final = sys.executable
COMMAND: Final = (PYTHON, __file__)


def say(**document: Any) -> None:
    print(json.dumps(document), flush=True)


def end(outcome: str, reason: str | None = None, **found: Any) -> None:
    told = {"adapter": None, "sha256": None, "steps": 0, "rollouts": 0, **found}
    say(outcome=outcome, reason=reason, **told)


def stopped(*_: object) -> None:
    end("failed", "stopped after 0 rollouts; run the same command to go on")
    sys.exit(1)


def main() -> None:
    spec, out = json.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[3])
    out.mkdir(exist_ok=True)
    way = WAYS[spec["seed"]]
    if way == "waits":
        signal.signal(signal.SIGTERM, stopped)
    if way == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(heartbeat={"seconds": 0, "phase": "starting"})
    match way:
        case "trains":
            left = json.loads((out / "left.json").read_text())
            end("trained", adapter=str(out / "adapter"), **left)
        case "waits" | "deaf":
            time.sleep(60)
        case "memory":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raises":
            raise MemoryError("no room")
        case "usage":
            print("daemon.solver: rank: must be above 0", file=sys.stderr)
            sys.exit(2)
        case "plays and dies":
            with (out / "rollouts.jsonl").open("ab") as journal:
                journal.write(b"[]\n")
            os.kill(os.getpid(), signal.SIGKILL)
        case "diverges":
            end("failed", "the loss of update 3 is not finite; lower optimizer.lr", steps=3)
            sys.exit(1)
        case "traced":
            end("failed", os.environ.get("TRACEPARENT", "no span"))


if __name__ == "__main__":
    main()
