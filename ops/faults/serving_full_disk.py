"""The disk of a home is full while adapters are pushed, staged and promoted.

    python -m ops.faults.serving_full_disk --count 20

The file system of a home (128 MB) is filled except for a few bytes, a different number each time.
Then an adapter is pushed, and an earlier pushed one is promoted. Passes when each command did its
work or told why not. A refused command must leave no folder, no changed route, and no adapter on an
engine that the log does not call staged (the disk may fill between that and the route). Calls must
be answered all the time; only the end of a session may be refused, with a reason. The same commands
must do their work once there is space.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.gateway_full_disk import FILLER, fill
from ops.faults.serving_scene import Scene, promotion, scene
from ops.faults.small_disk import small_disk

DISK_BYTES: Final = 128 << 20
"""Bytes of the disk: enough for recorded events and for a rebuild."""
LEFT_BYTES: Final = 2 << 20
_CODES: Final = (0, 1, 4)


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Fill and free the disk `count` times."""
    chance, wrong = random.Random(seed), list[str]()
    refused = {"push": 0, "promote": 0}
    with (
        small_disk(folder / "disk", DISK_BYTES) as disk,
        scene(folder, home=disk / "home", KINTSUGI_SERVING__GRACE_SECONDS="0") as stage,
    ):
        stage.serve_new_version()
        for number in range(count):
            problems = _strike(stage, disk, chance, refused)
            wrong += [f"{number}: {problem}" for problem in problems]
            stage.run_json("work", "--once")
        verified = stage.run_json("log", "verify")["ok"]
        equal = stage.run_json("rebuild")["equal"]
    if not (verified and equal):
        wrong.append(f"the log is whole: {verified}; live equals rebuilt: {equal}")
    return {
        "fault": "disk full while adapters are staged", "fillings": count, "seeds": [seed],
        "refused": refused, "wrong": wrong,
        "passed": not wrong and refused["push"] > 0,
    }  # fmt: skip


def _strike(
    stage: Scene, disk: Path, chance: random.Random, refused: dict[str, int]
) -> Iterator[str]:
    (engine,) = stage.engines
    name, fresh = stage.push(stage.version()), stage.version()
    incumbent, folders = stage.read_incumbent(), stage.list_folders()
    with stage.run_callers() as calls:
        _fill_up(disk, chance)
        pushed = stage.command("adapters", "push", str(fresh))
        promoted = stage.command(*promotion(name))
        held, left = stage.read_engine_adapters(engine), stage.list_folders() - folders
        (disk / FILLER).unlink()
        staged = stage.state(name) == "staged"
        for what, ended in (("push", pushed), ("promote", promoted)):
            refused[what] += ended.returncode != 0
            if ended.returncode not in _CODES or "Traceback" in ended.stderr:
                yield f"{what} ended with {ended.returncode}: {ended.stderr.strip()}"
        if pushed.returncode and left:
            yield f"a push that was refused left {sorted(left)}"
        if (
            promoted.returncode
            and stage.read_incumbent() == incumbent
            and name in held
            and not staged
        ):
            yield f"a promotion that was refused left {name} on the engine, not staged by the log"
        last = stage.push(fresh)
        for adapter in (name, last):
            stage.promote(adapter)
            stage.wait_for(adapter)
    yield from calls.failed[:5]
    yield from calls.silent


def _fill_up(disk: Path, chance: random.Random) -> None:
    filler = disk / FILLER
    fill(filler)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - chance.randrange(LEFT_BYTES))


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
