"""One of two replicas refuses an adapter: the adapter must answer no call and stay on no replica.

    python -m ops.faults.serving_twins --count 20

In turn, the second replica does not find the folder, finds other weights in it, or is killed while
the adapter is loaded. Passes when the promotion is refused with an error text, the route stays, and
no replica holds the adapter. Calls must go on; those of the killed engine may be told that it was
lost. The same command must promote it once both are well.
"""

import random
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from ops.command_line import run_command
from ops.faults.serving_scene import (
    Scene,
    copy_store_with_other_files,
    embedded,
    point_view,
    promotion,
    scene,
)
from ops.waits import until

REFUSALS = ("nothing", "lie", "killed")


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Have the second replica refuse an adapter `count` times; return the driver's result."""
    chance, wrong = random.Random(seed), list[str]()
    outrun = 0
    with scene(folder, embedded(folder, 2)) as stage:
        stage.serve_new_version()
        for number, refusal in zip(range(count), cycle(REFUSALS), strict=False):
            problems = list(_strike(stage, refusal, chance))
            outrun += problems == [_OUTRUN]
            wrong += [
                f"{number}, {refusal}: {problem}" for problem in problems if problem != _OUTRUN
            ]
    return {
        "fault": "one of two replicas refuses", "refusals": count, "seeds": [seed],
        "promoted_before_the_kill": outrun, "wrong": wrong, "passed": not wrong,
    }  # fmt: skip


_OUTRUN = "it was promoted before the engine was killed"


def _strike(stage: Scene, refusal: str, chance: random.Random) -> Iterator[str]:
    name = stage.push(stage.version())
    incumbent = stage.read_incumbent()
    with stage.run_callers() as calls:
        code, output = _provoke_refusal(stage, refusal, name, chance)
        held = [name in stage.read_engine_adapters(engine) for engine in stage.engines]
        if refusal == "killed" and code == 0:
            yield _OUTRUN
        elif code != 1 or "Traceback" in output:
            yield f"the promotion ended with {code}: {output}"
        elif any(held) or stage.read_incumbent() != incumbent or stage.flips_to(name):
            yield f"held {held}, {stage.read_incumbent()} answers, {stage.flips_to(name)} flips"
        _undo_refusal(stage, refusal)
        stage.promote(name)
        stage.wait_for(name)
    if not all(name in stage.read_engine_adapters(engine) for engine in stage.engines):
        yield "it answers, and is not on both"
    yield from calls.silent
    yield from calls.failed if refusal != "killed" else ()


def _provoke_refusal(
    stage: Scene, refusal: str, name: str, chance: random.Random
) -> tuple[int, str]:
    engine, view = stage.engines[1], stage.views[1]
    if refusal != "killed":
        other = stage.folder / "nothing"
        if refusal == "lie":
            other = copy_store_with_other_files(
                stage.store, stage.folder / "lie", name, stage.version()
            )
        point_view(view, other)
        ended = stage.command(*promotion(name))
        return ended.returncode, ended.stderr.strip()
    process = stage.launch_command(*promotion(name))
    # The kill falls between the load on the other replica and some time after the proof.
    other_one = stage.engines[0]
    until(
        lambda: name in stage.read_engine_adapters(other_one) or process.poll() is not None,
        "it is loaded",
    )
    time.sleep(chance.uniform(0, 0.3))
    engine.kill()
    return process.wait(), ""


def _undo_refusal(stage: Scene, refusal: str) -> None:
    if refusal == "killed":
        stage.engines[1].start()
    else:
        point_view(stage.views[1], stage.store)
    # The worker reloads what a restarted engine has forgotten.
    stage.run_json("work", "--once")


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
