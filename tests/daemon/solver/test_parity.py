"""`python -m daemon.solver parity FILE`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.solver.__main__ import main
from events.algorithm import LossConfig
from tests.daemon.solver.plain_loss import Arrays, plain_loss


def fixture(**changes: Any) -> dict[str, Any]:
    """Two rows of three tokens, one case, computed by the plain version."""
    logp = np.array([[-1.0, -0.5, -2.0], [-0.3, -0.9, -1.1]])
    mask = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    advantage = np.array([1.0, -0.5])
    loss, gradient = plain_loss(
        Arrays(logp, logp + 0.1, logp, logp, mask, advantage), LossConfig(level="sequence")
    )
    inputs = {name: logp.tolist() for name in ("logp", "roll", "ref")}
    inputs |= {"old": (logp + 0.1).tolist(), "mask": mask.tolist(), "adv": advantage.tolist()}
    case = {"config": {"level": "sequence"}, "loss": loss, "grad": gradient.tolist()}
    return {"inputs": inputs, "cases": {"one": {**case, **changes}}}


def written(folder: Path, document: dict[str, Any]) -> str:
    path = folder / "loss.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_equal_cases_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", written(tmp_path, fixture())]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"cases", "max_loss_error", "max_grad_error", "worst"}
    assert (found["cases"], found["worst"]) == (1, "one")
    assert max(found["max_loss_error"], found["max_grad_error"]) < 1e-12


@pytest.mark.parametrize("changes", [{"loss": 0.1}, {"config": {"level": "sequence", "lo": 0.05}}])
def test_a_case_that_differs_fails(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", written(tmp_path, fixture(**changes))]) == 1
    found = json.loads(capsys.readouterr().out)
    assert max(found["max_loss_error"], found["max_grad_error"]) > 1e-6


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"config": {"lvel": "token"}}, "lvel"),
        ({"config": {"agg": "mean"}}, "'mean'"),
        ({"grad": [[0.0]]}, "grad of one is not 2 x 3"),
    ],
)
def test_a_file_that_is_no_fixture_is_one_sentence(
    changes: dict[str, Any], names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", written(tmp_path, fixture(**changes))]) == 1
    said = capsys.readouterr().err
    assert names in said
    assert said.count("\n") == 1


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


@pytest.mark.benchmarks
def test_the_cases_of_the_benchmarks_match(
    benchmarks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", str(benchmarks / "parity" / "loss.json")]) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == 15


def test_wrong_usage_and_kintsugi_itself_need_no_torch() -> None:
    program = (
        "import sys, daemon.cli.root, daemon.solver.__main__\n"
        "import daemon.config.presets, daemon.solver.spec, daemon.solver.trajectory\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'peft')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
