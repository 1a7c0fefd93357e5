"""Several cycles of the demo from outside: the daemon goes on by itself, whatever is killed.

Least of everything: it shows that each cycle ends, that the next one begins, that what was killed
goes on in the same cycle, and that the report has an entry for each; and not that anything is
learnt.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import select

from consumers.diagnosis.round_counts import of_agents
from consumers.reads import learning
from consumers.tables import Rollout
from daemon.config.settings import Settings
from daemon.core.app import App
from ops.demo.crowd import FIRST_TASK, PER_SEED
from ops.demo.place import ROOT, SIZES, make
from ops.processes import list_descendants

pytestmark = [pytest.mark.learning, pytest.mark.long, pytest.mark.timeout(2400)]

CYCLES: Final = 2
SEED: Final = 23
STARTED: Final[list["subprocess.Popen[bytes]"]] = []
"""What is ended if the test fails."""
PATIENCE: Final = 600.0
MIX: Final = {"two_writes": 0.3, "question": 0.3, "cancel": 0.4}


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """The same command every time, on the home in this folder."""
    mix = folder / "mix.json"
    mix.write_text(json.dumps(MIX))
    flags = ("--home", str(folder / "home"), "--out", str(folder))
    several = ("--mix", str(mix), "--cycles", str(CYCLES), "--seed", str(SEED))
    with (folder / "lines").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.demo", *flags, *several],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
        )  # fmt: skip
    STARTED.append(process)
    return process


def wait_until(folder: Path, process: "subprocess.Popen[bytes]", done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        lines = (folder / "lines").read_text()
        assert process.poll() is None, lines
        assert time.monotonic() < deadline, lines
        time.sleep(0.1)


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_at(folder: Path, line: str, select: Callable[[int], list[int]]) -> None:
    """Run the demo until it says this, then kill those of its processes that are selected, and it.
    The same command may say the line again, so only what is new counts."""
    before = (folder / "lines").read_text().count(line) if (folder / "lines").exists() else 0
    process = start(folder)
    wait_until(folder, process, lambda: (folder / "lines").read_text().count(line) > before)
    kill(select(process.pid))
    process.kill()
    process.wait()


def kill_children_until_end(folder: Path) -> "subprocess.Popen[bytes]":
    """Leave the demo alone, and kill one child of any depth now and then while cycles run."""
    process, chance = start(folder), random.Random(5)
    deadline = time.monotonic() + 2 * PATIENCE
    for _ in range(4):
        time.sleep(chance.uniform(2, 12))
        children = list_descendants(process.pid)
        if process.poll() is not None or not children:
            break
        kill([chance.choice(children)])
    while process.poll() is None:
        assert time.monotonic() < deadline, (folder / "lines").read_text()
        time.sleep(0.2)
    return process


def test_each_cycle_ends_and_the_next_one_begins_whatever_is_killed(tmp_path: Path) -> None:
    try:
        kill_and_go_on(tmp_path)
    finally:
        running = [process.pid for process in STARTED if process.poll() is None]
        kill([pid for root in running for pid in (*list_descendants(root), root)])


def kill_and_go_on(tmp_path: Path) -> None:
    make(tmp_path / "home", replace(SIZES["least"], cycles=CYCLES, seed=SEED), mix=MIX)
    kill_at(tmp_path, f"1/{CYCLES}  cycle ", lambda pid: [])
    kill_at(tmp_path, f"2/{CYCLES}  ", list_descendants)
    process = kill_children_until_end(tmp_path)
    assert process.returncode in (0, 3), (tmp_path / "lines").read_text()
    check(tmp_path, process.returncode)

    finished = (tmp_path / "demo-report.json").read_bytes()
    again = start(tmp_path)
    assert again.wait(PATIENCE) == process.returncode
    changed = json.loads((tmp_path / "demo-report.json").read_bytes())
    assert changed["cycles"] == json.loads(finished)["cycles"]


def check(folder: Path, code: int) -> None:
    """The report has an entry per cycle of the log, and the home has nothing twice."""
    report = json.loads((folder / "demo-report.json").read_text())
    assert report["rebuild_equal"]
    entries = report["cycles"]
    assert [entry["number"] for entry in entries] == list(range(CYCLES + 1))
    assert all(set(entry["kinds"]) == set(MIX) for entry in entries)
    assert any(entry["outcome"] == "promoted" for entry in entries) == (code == 0)
    for before, after in pairwise(entries):
        if after["outcome"] != "promoted":
            assert (after["adapter"], after["kinds"]) == (before["adapter"], before["kinds"])
    with App(Settings(home=folder / "home")) as app, app.reading() as connection:
        # On a slow machine one more may have begun before the end of the last was seen.
        rows = learning.cycles(connection)[::-1][:CYCLES]
    assert [row.outcome for row in rows] == [entry["outcome"] for entry in entries[1:]]
    tasks = read_customers(folder / "home")
    assert len(tasks) == len(set(tasks)) > 0, "no customer comes twice"
    first = FIRST_TASK + SEED * PER_SEED
    seeds = [int(task.rpartition("/")[2]) for task in tasks]
    assert first <= min(seeds) <= max(seeds) < first + PER_SEED


def read_customers(home: Path) -> list[str]:
    """The task of each live rollout."""
    rows = Rollout.table().c
    with App(Settings(home=home)) as app, app.reading() as connection:
        query = select(rows.task_key).where(of_agents(rows))
        return [str(task) for task in connection.execute(query).scalars()]
