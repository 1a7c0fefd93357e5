"""The bench of the lift: its document, and that its rows can fail."""

import json
from dataclasses import replace

import pytest

from ops.bench.lift.__main__ import ROWS, main


def test_a_row_says_how_often_the_interval_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "2", "--rows", "equal at .99, share .02"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert (document["benchmark"], document["passed"]) == ("lift", True)
    assert (row["runs"], row["miscovered"], row["found"]) == (2, 0, 0)
    assert 0 < row["width"] < 0.2


def test_a_row_is_not_met_where_no_gain_is_found_or_nothing_is_told() -> None:
    found = next(row for row in ROWS if row.found is not None)
    without = replace(found, traffic=replace(found.traffic, lift=0.0, sessions=500))
    assert not without.document(2)["met"]
    alarm = next(row for row in ROWS if row.alarm is not None)
    silent = replace(alarm, traffic=replace(alarm.traffic, drawn=None, sessions=500))
    assert not silent.document(2)["met"]
