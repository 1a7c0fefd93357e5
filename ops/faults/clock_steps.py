"""The wall clock is set forward and back, by up to a day, while jobs run.

A clock that is set forward makes all files look older, and a clock that is set back dates them in
the future. So the driver changes the times of files and never the machine's clock. Passes when no
job counts as silent or late, no job is killed within its grace, and the reported duration of each
finished job is right.
"""

import os
from pathlib import Path
from random import Random
from typing import Any, Final

from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import Active, Exit, Job
from events.messages import StrictModel
from ops.command_line import run_command
from ops.waits import until

_STEPS: Final = 4
_DAY: Final = 86_400.0
_PATIENCE: Final = 60.0
"""Time limit of a job in seconds: longer than a job here, shorter than most clock steps."""

_PROGRAM: Final = """
trap 'exit 0' TERM
second=0
while :; do
    echo '{"heartbeat": {"seconds": '$second'}}'
    second=$((second + 1))
    sleep 1
done
"""


class _Spec(StrictModel):
    name: str


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Run `count` jobs, each with `_STEPS` steps of the clock."""
    chance = Random(f"clock steps {seed}")
    wrong: list[str] = []
    for number in range(count):
        runner = LocalRunner(folder / f"{seed}-{number}", command=("sh", "-c", _PROGRAM, "sh"))
        try:
            wrong += _job(runner, f"job-{number}", chance)
        finally:
            _end(runner, f"job-{number}")
    return {"passed": not wrong, "jobs": count, "steps": count * _STEPS, "wrong": wrong[:3]}


def _job(runner: LocalRunner, name: str, chance: Random) -> list[str]:
    runner.start(Job(name, _Spec(name=name)))
    output = runner.folder(name) / "attempts" / "1.out"
    until(lambda: output.exists() and output.read_bytes(), "a job speaks", _PATIENCE)
    wrong: list[str] = []
    for _ in range(_STEPS):
        step = chance.uniform(-_DAY, _DAY)
        _set(runner.folder(name), step)
        state = runner.state(name)
        if not isinstance(state, Active) or not _plausible(state.silent, state.seconds):
            wrong.append(f"after {step:+.0f} s: {state}")
    runner.cancel(name, "it was long enough")
    until(lambda: isinstance(runner.state(name), Exit), "a job ends", _PATIENCE)
    state = runner.state(name)
    if not isinstance(state, Exit) or not _plausible(state.seconds):
        wrong.append(f"in the end: {state}")
    return wrong


def _plausible(*seconds: float) -> bool:
    return all(0 <= value < _PATIENCE for value in seconds)


def _set(folder: Path, forward: float) -> None:
    """Move the times of all files as if the clock had been set forward."""
    for path in folder.rglob("*"):
        moved = path.stat().st_mtime - forward
        os.utime(path, (moved, moved))


def _end(runner: LocalRunner, name: str) -> None:
    if isinstance(runner.state(name), Active):
        runner.cancel(name, "the driver ends")
        until(lambda: isinstance(runner.state(name), Exit), "a job ends", _PATIENCE)


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
