"""`kill -9` of commands and of `kintsugi work` at random moments; then the same command again.

    python -m ops.faults.serving_kill --count 20

Each time, a command that promotes an adapter is killed, and then run again to its end. Then `work`,
which should unload and collect an earlier adapter, is killed and started again. Passes when each
repetition has the result of an uninterrupted run: one route change to the adapter, the adapter
loaded and answering, earlier adapters unloaded and their files gone, live tables equal to a
rebuild. No call may fail.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.serving_scene import Scene, promotion, scene
from ops.waits import until

LONGEST_SECONDS: Final = 3.0
"""Most seconds until a kill; a command mostly takes longer."""


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill a promotion and the worker `count` times each."""
    moments, wrong = random.Random(seed), list[str]()
    killed = 0
    with (
        scene(
            folder, KINTSUGI_SERVING__GRACE_SECONDS="0", KINTSUGI_SERVING__KEPT_VERSIONS="1"
        ) as stage,
        stage.run_callers() as calls,
    ):
        names: list[str] = []
        for number in range(count):
            names.append(stage.push(stage.version()))
            killed += _kill_at_random(stage.launch_command(*promotion(names[-1])), moments)
            stage.promote(names[-1])
            stage.wait_for(names[-1])
            killed += _kill_at_random(stage.launch_command("work"), moments)
            stage.run_json("work", "--once")
            until(lambda: _is_cleanup_complete(stage, names), "what is not kept is collected")
            wrong += [f"{number}: {problem}" for problem in _wrong(stage, names)]
        equal = stage.run_json("rebuild")["equal"]
    if not equal:
        wrong.append("live and rebuilt tables differ")
    wrong += calls.failed[:5]
    figures = {"killed": killed, "wrong": wrong, **calls.report()}
    return {
        "fault": "kill -9 commands and work", "rounds": count, "seeds": [seed], **figures,
        "passed": not wrong and killed > 0 and not calls.silent,
    }  # fmt: skip


def _kill_at_random(process: "Popen[bytes]", moments: random.Random) -> bool:
    time.sleep(moments.uniform(0, LONGEST_SECONDS))
    running = process.poll() is None
    process.kill()
    process.wait()
    return running


def _is_cleanup_complete(stage: Scene, names: list[str]) -> bool:
    gone = {stage.state(name) for name in names[:-2]} <= {"collected"}
    if not gone:
        stage.run_json("work", "--once")
    return gone


def _wrong(stage: Scene, names: list[str]) -> Iterator[str]:
    (engine,) = stage.engines
    name = names[-1]
    if (stage.read_incumbent(), stage.state(name)) != (name, "promoted"):
        yield f"{name} is {stage.state(name)}, and {stage.read_incumbent()} answers"
    if stage.flips_to(name) != 1:
        yield f"the route turned {stage.flips_to(name)} times to {name}"
    if stage.read_engine_adapters(engine) != set(names[-2:]):
        yield f"the engine holds {sorted(stage.read_engine_adapters(engine))}, not {names[-2:]}"
    if (left := stage.list_folders()) != set(names[-2:]):
        yield f"the folders {sorted(left)} are there, not {names[-2:]}"


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
