"""A home is restored or moved under another path, and its old folder is gone.

    python -m ops.faults.serving_restored --count 20

An adapter is pushed and promoted; then its home is exported and restored as docs/backup.md says, or
moved as a whole, in turns. Passes when the new home has the tables of the old one, and `doctor`
says that its adapters are whole and names one whose files were taken away. An engine that holds
nothing must get the adapter from the new home and answer with it.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon.adapters.directory import WEIGHTS
from ops.command_line import run_command
from ops.faults.serving_scene import Scene, scene
from ops.processes import run_kintsugi


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Restore or move `count` homes."""
    chance, wrong = random.Random(seed), list[str]()
    for number in range(count):
        place = folder / str(number)
        before, home = place / "before", place / f"home-{chance.randrange(10**9)}"
        with scene(before) as stage:
            name = stage.serve_new_version()
            digest = stage.run_json("rebuild")["hash"]
            stage.run_json("log", "export", str(place / "log"))
            shutil.copytree(stage.store, place / "adapters")
        (_restore if number % 2 == 0 else _move)(place, before / "home", home)
        with scene(place / "after", home=home) as stage:
            wrong += [f"{number}: {problem}" for problem in _check(stage, name, digest)]
        shutil.rmtree(place)
    return {
        "fault": "homes restored elsewhere", "homes": count, "seeds": [seed], "wrong": wrong,
        "passed": not wrong,
    }  # fmt: skip


def _restore(place: Path, old: Path, home: Path) -> None:
    shutil.rmtree(old)
    shutil.copytree(place / "adapters", home / "adapters")
    archive = str(place / "log")
    for arguments in (["log", "import", archive], ["db", "upgrade"], ["rebuild", "--yes"]):
        run_kintsugi(["--home", str(home), *arguments], os.environ).check_returncode()


def _move(_: Path, old: Path, home: Path) -> None:
    old.rename(home)


def _check(stage: Scene, name: str, digest: str) -> Iterator[str]:
    if stage.run_json("rebuild")["hash"] != digest:
        yield "its tables are others"
    worker = stage.worker()
    worker.launch()
    try:
        stage.wait_for(name)
    except TimeoutError as error:
        yield str(error)
    finally:
        worker.kill()
    if not _says_whole(stage):
        yield "doctor misses files that are there"
    (stage.store / name / WEIGHTS).unlink()
    if _says_whole(stage):
        yield "doctor sees files that are not there"


def _says_whole(stage: Scene) -> bool:
    checks = json.loads(stage.command("doctor").stdout)["checks"]
    return all(check["ok"] for check in checks if check["check"] == "adapters")


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
