"""Rows 5 and 6: two folding processes on the same partitions; one is paused in the middle.

    python -m ops.faults.fold_twins --count 60

`count` is how many seconds the paused process sleeps. On PostgreSQL the other one takes over while
it sleeps (the server ends the sleeper's transaction); on SQLite a sleeper inside its transaction
holds the one write lock, so the other waits and goes on when it wakes. Passes when the live tables
equal a rebuild, nothing became a dead letter, and at least one write was refused because another
process had moved the position.
"""

import signal
import time
from pathlib import Path
from typing import Any

from ops.command_line import run_command
from ops.faults.folding import DATABASES, scene, stop

GROWTH = 25


def run(count: int, folder: Path) -> dict[str, Any]:
    """Pause one of two processes for `count` seconds, on each kind of database."""
    results = {kind: _run(kind, count, folder / kind) for kind in DATABASES}
    sound = all(result["equal"] and not result["dead_letters"] for result in results.values())
    fenced = all(result["fenced"] > 0 for result in results.values())
    return {
        "fault": "two folds, one paused",
        "seconds": count,
        **results,
        "passed": sound and fenced,
    }


def _run(kind: str, seconds: int, folder: Path) -> dict[str, Any]:
    with scene(kind, folder) as stage:
        stage.grow(2_000)
        twins = [stage.start(batch=10), stage.start(batch=10)]
        try:
            for _ in range(GROWTH):
                stage.grow(100)
                time.sleep(0.02)
            twins[0].send_signal(signal.SIGSTOP)
            stage.grow(500)
            before = stage.count_fold_events()
            time.sleep(seconds)
            while_paused = stage.count_fold_events() - before
            twins[0].send_signal(signal.SIGCONT)
            stage.grow(500)
            stage.wait_for_fold()
            fenced = sum(stop(twin)["fenced"] for twin in twins)
        finally:
            for twin in twins:
                twin.kill()
        return {"fenced": fenced, "folded_while_paused": while_paused, **stage.verdict()}


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
