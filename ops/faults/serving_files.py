"""Adapters' files are truncated, deleted or damaged, before an engine has read them and after.

    python -m ops.faults.serving_files --count 20

Before: the files of a pushed adapter are damaged, and then a command tries to promote it. Passes
when the command refuses with an error text, no engine holds the adapter, the route stays and calls
continue. Once the files are right again, the same command must promote it. Each third strike is one
of the named damages, in their order: pipes, links, broken configurations, patterns without end. The
full count strikes with all of them. After: the files of the answering adapter are damaged. Passes
when it continues to answer, and when a restarted engine does not get it and answers as the base.
Once the files are right again, the engine must get it back.
"""

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from daemon.adapters.directory import CONFIG, WEIGHTS
from ops.adapter_damages import DAMAGES
from ops.command_line import run_command
from ops.faults.serving_scene import Scene, promotion, scene
from ops.waits import until

WATCHED_SECONDS: Final = 5.0


def truncate_weights(folder: Path, chance: random.Random) -> None:
    """Cut the weights off at a random byte."""
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[: chance.randrange(weights.stat().st_size)])


def delete_files(folder: Path, chance: random.Random) -> None:
    """Delete the adapter's weights, its configuration, or the whole folder."""
    gone = chance.choice((WEIGHTS, CONFIG, None))
    shutil.rmtree(folder) if gone is None else (folder / gone).unlink()


Damage = Callable[[Path, random.Random], object]


def choose_damages(seed: int) -> Iterator[tuple[str, Damage]]:
    """Yield (name, damage) in turn. A run with a higher seed begins where the earlier one ended."""
    for name in islice(cycle(DAMAGES), seed // 3, None):
        yield "truncated", truncate_weights
        yield "deleted", delete_files
        yield name, lambda folder, _, name=name: DAMAGES[name](folder)  # type: ignore[misc]


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Damage files `count` times."""
    chance, wrong = random.Random(seed), list[str]()
    moments = cycle((_before, _before, _before, _after, _after, _after))
    with scene(folder) as stage:
        stage.serve_new_version()
        worker = stage.worker()
        worker.launch()
        try:
            strikes = zip(range(count), choose_damages(seed), moments, strict=False)
            for _, (name, damage), when in strikes:
                wrong += [f"{name}: {problem}" for problem in when(stage, damage, chance)]
        finally:
            worker.kill()
    return {
        "fault": "files of adapters truncated, deleted and damaged", "damages": count,
        "seeds": [seed], "wrong": wrong, "passed": not wrong,
    }  # fmt: skip


def _before(stage: Scene, damage: Damage, chance: random.Random) -> Iterator[str]:
    (engine,) = stage.engines
    incumbent, name = stage.read_incumbent(), stage.push(stage.version())
    with stage.run_callers() as calls:
        with _damage_files(stage.store / name, damage, chance):
            ended = stage.command(*promotion(name))
            if ended.returncode != 1 or "Traceback" in ended.stderr:
                yield f"the promotion ended with {ended.returncode}: {ended.stderr.strip()}"
            if name in stage.read_engine_adapters(engine):
                yield f"the engine holds {name}"
            if stage.read_incumbent() != incumbent or stage.state(name) != "produced":
                yield f"{name} is {stage.state(name)}, and {stage.read_incumbent()} answers"
        stage.promote(name)
        stage.wait_for(name)
    yield from calls.failed
    yield from calls.silent


def _after(stage: Scene, damage: Damage, chance: random.Random) -> Iterator[str]:
    (engine,) = stage.engines
    name = stage.read_incumbent()
    assert name is not None, "an adapter answers"
    with _damage_files(stage.store / name, damage, chance):
        with stage.run_callers() as calls:
            time.sleep(1)
        yield from calls.failed
        yield from calls.silent
        if set(calls.by) != {name}:
            yield f"{dict(calls.by)} answered"
        engine.kill()
        engine.start()
        until(lambda: stage.answerer() != "nobody", "the engine answers")
        deadline = time.monotonic() + WATCHED_SECONDS
        while time.monotonic() < deadline:
            if name in stage.read_engine_adapters(engine) or stage.answerer() == name:
                yield f"{name} came back with damaged files"
                break
            time.sleep(0.05)
    stage.wait_for(name)


@contextmanager
def _damage_files(folder: Path, damage: Damage, chance: random.Random) -> Iterator[None]:
    kept = folder.with_name(f"kept-{folder.name}")
    shutil.copytree(folder, kept)
    damage(folder, chance)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        kept.rename(folder)


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
