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


def test_a_revision_that_is_no_better_rarely_stays_and_a_good_one_does() -> None:
    assert Row(16, 256, 0.5, 0.0).measure(60) < 0.15
    assert Row(16, 256, 0.5, 0.3).measure(20) > 0.9
    assert Row(64, 256, 0.3, 0.3).measure(10) > 0.8
