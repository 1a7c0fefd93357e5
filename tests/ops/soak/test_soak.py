"""The soak itself for less than a minute: too short to tell what grows, long enough to tell that
nothing is lost and everything comes to rest."""

import json
from pathlib import Path

import pytest

from ops.soak.run import soak

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1800)]


def test_a_short_soak_comes_to_rest_and_is_what_the_log_says(tmp_path: Path) -> None:
    found = soak(0.7, tmp_path, seed=0, kind="sqlite")
    assert found["passed"], json.dumps(found, indent=1)
    assert found["rest"]["left"] == {"lag": 0, "unshipped": 0, "open cycles": 0}
    assert min(found["acknowledged"].values()) > 0
    assert found["strays"]["hung up"] > 0
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {"gateway", "engine", "consume", "schedule", "work", "up"} <= samples[-1]["roles"].keys()
    assert samples[-1]["figures"].keys() >= {"fold lag", "log WAL", "database WAL", "in flight"}
