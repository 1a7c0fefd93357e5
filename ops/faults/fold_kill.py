"""Row 4: kill -9 the folding process at random, on SQLite and on PostgreSQL.

    python -m ops.faults.fold_kill --count 100

Passes when the live tables equal a rebuild row for row and nothing became a dead letter.
"""

import random
import subprocess
from pathlib import Path
from typing import Any

from ops.command_line import run_command
from ops.faults.folding import DATABASES, Scene, scene, stop

EVENTS_PER_LIFE = 400
"""Events per process life: more than it can fold, so that it is killed while folding."""


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill `count` processes on each kind of database."""
    results = {kind: _run(kind, count, folder / kind, seed) for kind in DATABASES}
    passed = all(result["equal"] and not result["dead_letters"] for result in results.values())
    return {"fault": "kill -9 fold", "kills": count, **results, "passed": passed}


def _run(kind: str, count: int, folder: Path, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    with scene(kind, folder) as stage:
        at_work = sum(_one_life(stage, chance) for _ in range(count))
        last = stage.start()
        stage.wait_for_fold()
        stop(last)
        return {"killed_at_work": at_work, **stage.verdict()}


def _one_life(stage: Scene, chance: random.Random) -> bool:
    """Start a process and kill it soon after its first fold; return whether events were left."""
    stage.grow(EVENTS_PER_LIFE)
    before = stage.count_fold_events()
    process = stage.start(batch=20)
    try:
        while stage.count_fold_events() == before:
            if process.poll() is not None:
                raise RuntimeError(f"the folding process ended by itself with {process.returncode}")
        try:
            process.wait(chance.uniform(0, 0.15))
        except subprocess.TimeoutExpired:
            return stage.count_fold_events() < sum(stage.log.end("rollouts"))
        raise RuntimeError(f"the folding process ended by itself with {process.returncode}")
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
