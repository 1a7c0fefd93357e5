"""`kill -9` of the demo in the middle, and the same command again: it goes on where it was.

    python -m ops.faults.demo_kill --count 2

Each demo (`--small`) is killed a few times at random moments: the program itself, whose children
see that it is gone, or it and every process below it at one instant. Then it is left alone. Passes
when each ends with a report, and its home is what loop_audit.py asks: one cycle, one job, nothing
lost or twice, tables that equal a rebuild.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from daemon.core.app import App
from ops.demo.place import ROOT, Place
from ops.faults.command import command
from ops.faults.loop_audit import outcome, wrong
from ops.faults.loop_scene import CustomerLedger, settings_of

KILLS: Final = 4
"""Most kills of each demo: it may end before."""
PAUSE_SECONDS: Final = (5.0, 60.0)
"""Between a start and a kill."""
DEMO_SECONDS: Final = 1800.0
"""After which a demo that has not ended counts as one that never will."""
_ENDS: Final = (0, 3)
_LOOK_SECONDS: Final = 0.2


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill and finish `count` demos."""
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
    """Start it and kill it in the middle; what was killed, if it was there."""
    process = _launch(place)
    try:
        process.wait(chance.uniform(*PAUSE_SECONDS))
    except subprocess.TimeoutExpired:
        alone = chance.random() < 0.5
        for pid in [process.pid] if alone else [process.pid, *below(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        yield "demo" if alone else "everything"


def _run_to_end(place: Place) -> Iterator[str]:
    """Left alone, it ends; what is wrong with that."""
    process, until_when = _launch(place), time.monotonic() + DEMO_SECONDS
    while process.poll() is None and time.monotonic() < until_when:
        time.sleep(_LOOK_SECONDS)
    if process.poll() is None:
        for pid in [process.pid, *below(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        yield f"the demo has not ended within {DEMO_SECONDS:g} s: {_read_output_tail(place)}"
    elif process.returncode not in _ENDS:
        yield f"the demo ended with {process.returncode}: {_read_output_tail(place)}"
    elif not (place.home.parent / "demo-report.json").exists():
        yield "the demo ended without a report"


def _launch(place: Place) -> "subprocess.Popen[bytes]":
    folder = place.home.parent
    flags = ("--small", "--home", str(place.home), "--out", str(folder))
    with (folder / "demo.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ops.demo", *flags], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, process_group=0,
        )  # fmt: skip


def _read_output_tail(place: Place) -> str:
    return (place.home.parent / "demo.log").read_text(errors="replace")[-1500:]


def below(root: int) -> list[int]:
    """Every process that this one started, directly or not, and that still has a parent there."""
    parents = dict(_parents())
    pids, layer = list[int](), {root}
    while layer := {pid for pid, parent in parents.items() if parent in layer}:
        pids += layer
    return pids


def _parents() -> Iterator[tuple[int, int]]:
    """Each process and its parent."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # It may end while it is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            yield int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    command(run, __doc__)
