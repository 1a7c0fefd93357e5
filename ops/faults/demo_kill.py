"""`kill -9` of the demo in the middle, and the same command again: it goes on where it was.

    python -m ops.faults.demo_kill --count 2

Each demo (`--small`) is killed a few times at random moments: either the program alone, whose
children notice it, or the program and all its descendants at once. Then it may finish. Passes when
each demo ends with a report and its home passes loop_audit.py: one cycle, one job, nothing lost or
twice, and tables that equal a rebuild.
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from daemon.core.app import App
from ops.command_line import run_command
from ops.demo.place import ROOT, Place
from ops.faults.loop_audit import outcome, wrong
from ops.faults.loop_scene import CustomerLedger, settings_of
from ops.processes import list_descendants, read_end

KILLS: Final = 4
PAUSE_SECONDS: Final = (5.0, 60.0)
DEMO_SECONDS: Final = 1800.0
_ENDS: Final = (0, 3)


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill and finish `count` demos; return the driver's result."""
    kills, outcomes, problems = Counter[str](), Counter[str](), list[str]()
    for number in range(seed, seed + count):
        place = Place((folder / str(number) / "home").absolute())
        place.home.parent.mkdir(parents=True)
        chance = random.Random(number)
        for _ in range(KILLS):
            kills.update(_kill_midway(place, chance))
        problems += [f"seed {number}: {problem}" for problem in _run_to_end(place)]
        with App(settings_of(place)) as app:
            problems += [
                f"seed {number}: {problem}" for problem in wrong(app, place, CustomerLedger())
            ]
            outcomes[outcome(app)] += 1
        if problems:
            break
    return {
        "fault": "kill -9 the demo, then the same command", "demos": count, "seeds": [seed],
        "kills": dict(kills), "outcomes": dict(outcomes), "wrong": problems,
        "passed": not problems and kills.total() > 0,
    }  # fmt: skip


def _kill_midway(place: Place, chance: random.Random) -> Iterator[str]:
    process = _launch(place)
    try:
        process.wait(chance.uniform(*PAUSE_SECONDS))
    except subprocess.TimeoutExpired:
        alone = chance.random() < 0.5
        _kill(process, alone=alone)
        yield "demo" if alone else "everything"


def _run_to_end(place: Place) -> Iterator[str]:
    process = _launch(place)
    try:
        code = process.wait(DEMO_SECONDS)
    except subprocess.TimeoutExpired:
        _kill(process, alone=False)
        yield f"the demo has not ended within {DEMO_SECONDS:g} s: {read_end(_log(place))}"
        return
    if code not in _ENDS:
        yield f"the demo ended with {code}: {read_end(_log(place))}"
    elif not (place.home.parent / "demo-report.json").exists():
        yield "the demo ended without a report"


def _kill(process: "subprocess.Popen[bytes]", *, alone: bool) -> None:
    for pid in [process.pid] if alone else [process.pid, *list_descendants(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _launch(place: Place) -> "subprocess.Popen[bytes]":
    folder = place.home.parent
    flags = ("--small", "--home", str(place.home), "--out", str(folder))
    with _log(place).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ops.demo", *flags], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, process_group=0,
        )  # fmt: skip


def _log(place: Place) -> Path:
    return place.home.parent / "demo.log"


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
