"""The demo from outside: real customers, a real `kintsugi up`, and a kill in the middle.

Small: it shows that everything runs to its end and that what was killed goes on, and not that
anything is learnt.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from consumers.reads import learning, serving
from daemon.config.settings import Settings
from daemon.core.app import App
from ops.demo.mixture import MIX
from ops.demo.place import ROOT

pytestmark = [
    pytest.mark.long, pytest.mark.learning, pytest.mark.processes, pytest.mark.timeout(700),
]  # fmt: skip

PATIENCE: Final = 300.0


def command(folder: Path) -> list[str]:
    """The demo on a home of its own."""
    flags = ("--small", "--home", str(folder / "home"), "--out", str(folder))
    return [sys.executable, "-m", "ops.demo", *flags]


def environment() -> dict[str, str]:
    """What an operator has configured, which is none of the demo's business."""
    return {**os.environ, "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def test_it_goes_on_after_a_kill_and_reports_what_came_of_it(tmp_path: Path) -> None:
    output = tmp_path / "said"
    with output.open("wb") as said:
        process = subprocess.Popen(
            command(tmp_path), cwd=ROOT, env=environment(), stdout=said, stderr=said
        )
        deadline = time.monotonic() + PATIENCE
        while "cycle " not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()

    done = subprocess.run(
        command(tmp_path), cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    # So little training may help or do harm: the gate says which, and both are an end.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    report = json.loads((tmp_path / "demo-report.json").read_text())
    assert report["rebuild_equal"]
    assert report["target"]["capability"] in MIX
    assert report["tasks_written"] > 0
    assert report["gate"]["decision"] in ("PROMOTE", "REJECT")
    assert report["adapter"] in (tmp_path / "demo-report.html").read_text()
    assert "Why this adapter" in done.stdout
    assert ("Nothing was promoted" in done.stdout) == (done.returncode == 3)

    with App(Settings(home=tmp_path / "home")) as app, app.reading() as connection:
        (cycle,) = learning.cycles(connection)
        assert len(learning.jobs(connection)) == 1
        assert [one.adapter for one in serving.adapter_lines(connection)] == [report["adapter"]]
    assert cycle.outcome == report["outcome"]
    assert len([one for one in (tmp_path / "home" / "jobs").iterdir() if one.name != "slots"]) == 1
