"""The bench of learner and engine on a GPU, on a CPU with a tiny model."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ops.bench.gpu.__main__ import main

RUN = ("--device", "cpu", "--shape", "tiny", "--dtype", "float32", "--rounds", "1", "--steps", "1")


def test_every_part_runs_and_our_arithmetic_is_that_of_the_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    code = main([*RUN, "--adapters", "3", "--out", str(out)])
    document = json.loads(capsys.readouterr().out)
    assert code == 0, document
    assert json.loads(out.read_text()) == document
    parts: dict[str, Any] = {name: part["result"] for name, part in document["parts"].items()}
    assert parts["reference/answers"]["adapter_from_base"] > 0.1
    assert parts["reference/training"]["adapter_gap"] == 0.0
    # The adapters do something, and the same however they are computed.
    assert parts["tiny/joint"]["largest"] < 1e-5 < parts["tiny/joint"]["from_base"]
    learner, engine = parts["tiny/learner"], parts["tiny/engine"]
    assert learner["gradient_norm_ratio"] == pytest.approx(1.0, abs=1e-3)
    assert [each["micro_rows"] for each in learner["peer_tried"]] == [8, 4, 2]
    speeds = [side["tokens_per_second"] for of in ("ours", "peer") for side in engine[of].values()]
    assert len(speeds) == 6
    assert all(math.isfinite(speed) and speed > 0 for speed in speeds)


def test_a_part_that_fails_is_reported_and_the_others_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Of no steps there is no median.
    code = main([*RUN, "--steps", "0", "--adapters", "2", "--parts", "learner", "engine"])
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert code == 1
    assert parts["tiny/learner"]["error"].startswith("statistics.StatisticsError: ")
    assert parts["tiny/engine"]["result"]["adapters"] == 2
