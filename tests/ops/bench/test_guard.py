"""The bench of the live guard: its flags and its document are what INTERFACE promises."""

import json

import pytest

from ops.bench.guard import Traffic as Simulated
from ops.bench.guard import main, measure


def test_the_command_takes_its_flags_and_prints_one_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = {
        "runs": "2", "rate": "40", "share": "0.5", "incumbent": "0.9", "canary": "0.2",
        "minutes-pass": "1", "minutes-fail": "2", "harder-after": "30:0.9",
    }  # fmt: skip
    assert main([part for name, value in flags.items() for part in (f"--{name}", value)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["rolled_back"], found["promoted"]) == (2, 1.0, 0.0)
    assert found["undecided"] == 0
    assert 1 <= found["median_minutes"] <= 10


def test_the_same_runs_give_the_same_figures() -> None:
    traffic = Simulated(rate=40, shares=(0.5,), incumbent=0.3, canary=0.9, minutes_fail=1)
    assert measure(traffic, 2) == measure(traffic, 2)


def test_a_row_of_the_table_says_whether_it_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--table", "--rows", "broken", "--runs", "2"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["rolled_back"], row["met"]) == (1.0, True)
