"""A spec of a job of one step, and a process that runs it, for drivers."""

import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from daemon.engine.reference.weights import CHECKPOINT
from daemon.jobs.attempts import last_lines

Json = dict[str, Any]

STOP_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 120.0
MEMORY_BYTES: Final = 12 << 30
"""Limit on a job's address space, so that other programs keep their memory."""


def name_tasks(kind: str, first: int, count: int) -> list[str]:
    """Return the names of `count` tasks of the shop."""
    return [f"shop/{kind}/{first + number}" for number in range(count)]


POOL: Final[Json] = {
    "name": "target",
    "tasks": name_tasks("cancel", 1, 4),
    "references": name_tasks("cancel", 90, 2),
}
PLAIN: Final[Json] = {
    "job": "fuzzed",
    "base": "reference",
    "checkpoint": str(CHECKPOINT),
    "environment": "shop",
    "pools": [POOL, {"name": "kept", "replay": True, "tasks": name_tasks("question", 1, 2)}],
    "sampler": {
        "groups": 1, "size": 2, "rollouts": 2, "max_tokens": 16,
        "source": {"kind": "in_process", "slots": 2, "length": 512},
    },
    "threads": 1,
    # Groups with equal rewards teach too, so that no mutant ends without an update.
    "algorithm": {
        "filter": {"informative": False},
        "advantage": {"center": "none", "scale": "none", "reward": {"offset": 0.5}},
        "overlong": "keep",
    },
    "limits": {"kl": None, "ratio_low": None, "ratio_high": None, "entropy_factor": None},
}  # fmt: skip


def run_job(place: Path) -> int | None:
    """Run the job in `place` for one or two updates; return its exit code, None if killed."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(place,))
    process.start()
    assert process.pid is not None, "it was started"
    began = time.monotonic()
    while process.is_alive():
        process.join(0.1)
        updates = sum(b'"batch"' in line for line in last_lines(place / "stdout"))
        if updates < 2 and time.monotonic() - began < STOP_SECONDS:
            continue
        os.kill(process.pid, signal.SIGTERM)
        process.join(GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
            return None
    return process.exitcode


def _run(place: Path) -> None:
    from daemon.solver.__main__ import main

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.chdir(place)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    code = main([str(place / "job.json"), "--out", str(place / "out")])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
