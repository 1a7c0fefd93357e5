"""Row 27: an engine is killed while it streams, and started again without its adapters.

    python -m ops.faults.serving_engine_kill --count 20

An adapter answers, clients stream, and `kintsugi work` runs. Every second time, the restarted
engine finds other weights under the adapter's path. Passes when the adapter is served again within
30 s after the engine answers, and was first loaded under its name of probation. With wrong weights,
it must not get its own name until the weights are right again. No call that was cut off may look
complete. No decision may be made: the stream `learning` gets no event.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from daemon.engine.reference.weights import CHECKPOINT
from daemon.serving.desired_state import PROBATION
from events.streams import LEARNING
from ops.command_line import run_command
from ops.faults.serving_scene import (
    BASE,
    Engine,
    Scene,
    copy_store_with_other_files,
    point_view,
    scene,
)
from ops.vllm.server import Vllm
from ops.waits import repeat, until

RECONCILED_SECONDS: Final = 30.0
REFUSED_SECONDS: Final = 6.0
LIFE_SECONDS: Final = 1.0


def run(
    count: int, folder: Path, seed: int = 0, engines: Sequence[Engine] | None = None
) -> dict[str, Any]:
    """Kill the engine `count` times. `engines` has one engine, by default an embedded one."""
    moments = random.Random(seed)
    reconciled: list[float] = []
    mended: list[float] = []
    wrong: list[str] = []
    with scene(folder, engines) as stage:
        name = stage.push(stage.version())
        stage.promote(name)
        lie = copy_store_with_other_files(stage.store, folder / "lie", name, stage.version())
        stage.wait_for(name)
        (before,) = stage.app.spool.end(LEARNING.name)
        worker = stage.worker()
        worker.launch()
        try:
            with stage.run_callers() as calls:
                for number in range(count):
                    until(_more(calls.by, name), "the adapter answers")
                    time.sleep(moments.uniform(0, LIFE_SECONDS))
                    lies = number % 2 == 1
                    took = _strike(stage, name, lie if lies else None, wrong)
                    (mended if lies else reconciled).append(took)
        finally:
            worker.kill()
        (after,) = stage.app.spool.end(LEARNING.name)
    figures = {
        "reconciled_seconds": max(reconciled),
        "refused": len(mended),
        "mended_seconds": max(mended, default=0.0),
        "control_events": after - before,
        "answered_by_base": calls.by[BASE],
        "wrong": wrong,
        **calls.report(),
    }
    passed = not wrong and after == before and max(reconciled) < RECONCILED_SECONDS
    passed = passed and not calls.silent
    return {
        "fault": "kill -9 engine that serves adapters", "kills": count, "seeds": [seed], **figures,
        "passed": passed,
    }  # fmt: skip


def _more(by: Mapping[str, int], name: str) -> Callable[[], bool]:
    known = by.get(name, 0)
    return lambda: by.get(name, 0) > known


def _strike(stage: Scene, name: str, lie: Path | None, wrong: list[str]) -> float:
    """Kill the engine. Return the seconds until the adapter with the right files answers again."""
    (engine,), (view,) = stage.engines, stage.views
    engine.kill()
    if lie is not None:
        point_view(view, lie)
    seen: list[set[str]] = []
    with repeat(lambda: seen.append(stage.read_engine_adapters(engine)), every=0.005):
        engine.start()
        if lie is not None:
            tried = name + PROBATION
            until(lambda: any(tried in names for names in seen), "the adapter is tried")
            time.sleep(REFUSED_SECONDS)
            if any(name in names for names in seen):
                wrong.append(f"{name} was served with other weights")
            point_view(view, stage.store)
        began = time.monotonic()
        until(lambda: name in stage.read_engine_adapters(engine), "the adapter is loaded again")
        stage.wait_for(name)
        took = time.monotonic() - began
    first = next(names for names in seen if names)
    if name in first:
        wrong.append(f"{name} was served before it was proven")
    return round(took, 2)


def vllm(folder: Path) -> Sequence[Engine]:
    """Return a list of one real vLLM that is not started."""
    folder.mkdir(parents=True, exist_ok=True)
    return [Vllm(CHECKPOINT, BASE, folder, flags=("--max-model-len=512",))]


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
