"""Row 25: PostgreSQL goes away, deadlocks and serialization failures strike, while a fold runs.

    python -m ops.faults.database_down --count 300

`count` is how many seconds the server stays away. Passes when everything was folded afterwards,
nothing became a dead letter, and the live tables equal a rebuild.
"""

import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from consumers import database
from ops.command_line import run_command
from ops.faults.folding import Scene, open_scene, postgres, stop
from ops.waits import repeat, until

ADVERSARY_SECONDS = 8.0


def run(count: int, folder: Path) -> dict[str, Any]:
    """Stop the server for `count` seconds in the middle of a fold, then cause deadlocks."""
    with postgres() as server, open_scene(server.create_database(), folder) as stage:
        stage.grow(2_000)
        process = stage.start(batch=20)
        try:
            until(stage.count_fold_events, "an event is folded")
            server.kill()
            time.sleep(count)
            server.start()
            deadlocks = _disturb(stage)
            stage.wait_for_fold()
            counters = stop(process)
        finally:
            process.kill()
        result = stage.verdict()
    passed = result["equal"] and not result["dead_letters"] and counters["retries"] > 0
    return {
        "fault": "database down, deadlocks",
        "seconds_down": count,
        "retries": counters["retries"],
        "adversary_failures": deadlocks,
        **result,
        "passed": passed,
    }


def _disturb(stage: Scene) -> int:
    """Lock the fold's rows in opposite order while the log grows; return the failed locks."""
    failures: list[str] = []
    deadline = time.monotonic() + ADVERSARY_SECONDS
    with repeat(lambda: _lock_backwards(stage.engine, failures), every=0):
        while time.monotonic() < deadline:
            stage.grow(100)
            time.sleep(0.1)
    return len(failures)


def _lock_backwards(engine: Engine, failures: list[str]) -> None:
    try:
        with database.write_transaction(engine) as connection:
            connection.execute(text("SELECT * FROM sources FOR UPDATE"))
            time.sleep(0.05)
            connection.execute(text("SELECT * FROM positions FOR UPDATE"))
    except DBAPIError as error:
        failures.append(str(error.orig))


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
