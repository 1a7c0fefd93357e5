"""The benches of the data engine: their documents, and what they count."""

import json

import pytest

from ops.bench.synthesis.__main__ import STAGES, main
from ops.bench.synthesis.looks import Row


def test_the_bench_says_what_each_stage_took(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tasks", "12", "--plans", "4", "--rounds", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["benchmark"], document["environment"]) == ("synthesis", "shop")
    assert (document["accepted"], document["rejected"]) == (24, 0)
    shares = document["shares"]
    assert set(shares) == {*STAGES, "events"}
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert all(shares[stage] > 0 for stage in ("planning", "synthesis", "verification"))
    assert document["tasks_per_minute"] > 0


def test_good_revisions_stay_and_harmful_ones_rarely_do() -> None:
    assert Row(64, 1024, 0.2, "good").measure(3).less > 0.5
    assert Row(4, 1024, 0.2, "harmful").measure(10).stays < 0.2
    assert Row(64, 1024, 0.2, "none").measure(6).stays < 0.5
