"""Several cycles of which none left an adapter: the demo ends with a report all the same."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from daemon.config.settings import Settings
from daemon.core.app import App
from events.codec import encode
from events.envelope import Envelope
from events.learning import CycleEnded, CycleStarted, LeaderClaimed
from events.log import now_ms
from ops.demo import fruitless
from ops.demo.__main__ import OTHERWISE, main
from ops.demo.place import ROOT, SIZES, make
from tests.ops.demo.test_report import PROMISED

MIX = {"cancel": 0.5, "question": 0.5}


def end_cycles(home: Path, count: int) -> None:
    """Write cycles that ended before they had a job, as the leader does."""
    events = [("claimed", LeaderClaimed(epoch=1, holder="test"))]
    decisions = [
        pair
        for number in range(1, count + 1)
        for pair in (
            (f"started {number}", CycleStarted(
                cycle=f"c{number}", alias="agent", base="reference", number=number,
                environment="shop", trigger="rollouts", reason="240 new rollouts", position={},
            )),
            (f"ended {number}", CycleEnded(
                cycle=f"c{number}", outcome="nothing_learnable", reason=f"<b>nothing</b> {number}",
            )),
        )
    ]  # fmt: skip
    with App(Settings(home=home)) as app:
        app.settle()
        app.append(
            [
                encode(
                    Envelope(
                        id=name, type=data.TYPE, version=data.VERSION, subject=data.key(), epoch=1
                    ),
                    data,
                    now_ms(),
                ).entry
                for name, data in [*events, *decisions]
            ]
        )
        app.settle()


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_cycles_without_an_adapter_end_with_a_report_of_the_base(tmp_path: Path) -> None:
    place = make(tmp_path / "home", replace(SIZES["least"], cycles=2), mix=MIX)
    end_cycles(place.home, 2)
    done = subprocess.run(
        [sys.executable, "-m", "ops.demo", "--home", str(place.home), "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    report = json.loads((tmp_path / "demo-report.json").read_text())
    assert set(report) >= PROMISED
    assert (report["target"], report["adapter"], report["gate"]["decision"]) == (None, None, "NONE")
    assert [entry["outcome"] for entry in report["cycles"]] == [None, *["nothing_learnable"] * 2]
    assert report["cycles"][2]["why"] == "<b>nothing</b> 2"
    figures = [(entry["adapter"], entry["traffic"], entry["kinds"]) for entry in report["cycles"]]
    assert all(before == after for before, after in pairwise(figures))
    assert set(figures[0][2]) == set(MIX)
    assert figures[0][1] == pytest.approx(sum(MIX[kind] * x for kind, x in figures[0][2].items()))
    assert report["traffic"]["before"] == report["traffic"]["after"] == figures[0][1]
    assert report["rebuild_equal"]
    page = (tmp_path / "demo-report.html").read_text()
    assert "2 cycles, and none left an adapter" in page
    assert "&lt;b&gt;nothing" in page
    assert "<script" not in page
    assert not re.search(r"\b(src|href)\s*=", page)
    assert "Nothing was promoted" in done.stdout


def test_one_cycle_without_an_adapter_is_no_failure_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came out otherwise than promoted, which is exit code 3 for however many cycles."""
    place = make(tmp_path / "home", replace(SIZES["least"], seed=3), mix=MIX)
    end_cycles(place.home, 1)
    rates = {"number": 0, "traffic": 0.5, "kinds": dict.fromkeys(MIX, 0.5)}
    entry = dict.fromkeys(("outcome", "why", "adapter", "candidate", "capability")) | rates
    document = {
        "cycles": [entry, {**entry, "number": 1}], "reason": "<b>nothing 1", "rebuild_equal": True,
    }  # fmt: skip
    monkeypatch.setattr(fruitless, "build_report", lambda *_: document)
    command = ["demo", "--home", str(place.home), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    assert main() == OTHERWISE
    assert "--fresh --seed 4" in capsys.readouterr().out, "its home has seed 3"
    page = (tmp_path / "demo-report.html").read_text()
    assert "the cycle left no adapter" in page
    assert "<p>&lt;b&gt;nothing 1</p>" in page
    assert json.loads((tmp_path / "demo-report.json").read_text()) == document
