"""The database goes away while a route changes: the last route stays, and calls continue.

    python -m ops.faults.serving_database_down --count 20

PostgreSQL is killed at a random moment of a promotion, every second time of the part that decides,
and stays away for a while. Passes when no call failed, only the two adapters answered, and the
interrupted command ended with an error text or had done its work. The same command afterwards must
make the new adapter answer, by exactly one change of the route. Live tables must equal a rebuild.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.folding import create_tables, postgres
from ops.faults.serving_scene import Scene, promotion, scene
from ops.postgres.server import Postgres
from ops.waits import until

LONGEST_SECONDS: Final = 3.0
DECIDING_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 3.0
_CODES: Final = (0, 1, 4)


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill the database during `count` promotions; return the driver's result."""
    chance, wrong = random.Random(seed), list[str]()
    codes: dict[str, int] = {}
    with (
        postgres() as server,
        scene(folder, KINTSUGI_DATABASE_URL=create_tables(server)) as stage,
    ):
        stage.serve_new_version()
        for number in range(count):
            problems = _strike(stage, server, chance, codes, number % 2 == 1)
            wrong += [f"{number}: {problem}" for problem in problems]
        if not stage.run_json("rebuild")["equal"]:
            wrong.append("live and rebuilt tables differ")
    return {
        "fault": "database down while a route turns", "absences": count, "seeds": [seed],
        "exit_codes": codes, "wrong": wrong, "passed": not wrong,
    }  # fmt: skip


def _strike(
    stage: Scene, server: Postgres, chance: random.Random, codes: dict[str, int], deciding: bool
) -> Iterator[str]:
    before, name = stage.read_incumbent(), stage.push(stage.version())
    with stage.run_callers() as calls:
        events = len(stage.read_decisions())
        process = stage.launch_command(*promotion(name))
        if deciding:
            until(
                lambda: len(stage.read_decisions()) > events or process.poll() is not None,
                "it acts",
            )
        time.sleep(chance.uniform(0, DECIDING_SECONDS if deciding else LONGEST_SECONDS))
        server.kill()
        time.sleep(AWAY_SECONDS)
        server.start()
        code = process.wait()
        codes[str(code)] = codes.get(str(code), 0) + 1
        if code not in _CODES:
            yield f"the promotion ended with {code}; see {stage.folder}/commands.log"
        stage.promote(name)
        stage.wait_for(name)
    yield from calls.failed[:5]
    yield from calls.silent
    if not set(calls.by) <= {before, name}:
        yield f"{dict(calls.by)} answered"
    if stage.flips_to(name) != 1:
        yield f"the route turned {stage.flips_to(name)} times to {name}"


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
