"""The report on routers: panels beside perfect routing."""

from pathlib import Path

import pytest

from daemon.solver.routing.job import RouterResult
from daemon.solver.telemetry.progress import RouterFigures
from ops.learning.merging.settings import KINDS, TAUGHT
from ops.learning.results import NothingToReport, Source
from ops.learning.routing.__main__ import main
from ops.learning.routing.report import write_report
from ops.learning.routing.run import RoutingRun
from ops.learning.routing.settings import SETTINGS, TRAINED, UNTRAINED
from tests.ops.learning.test_merging import made_up

FIGURES = RouterFigures(
    held_out=100, accuracy=0.97, low=0.91, most_frequent=0.4, options={}, doubts={"tie": 2},
    held_out_loss=0.1,
)  # fmt: skip


def invent_run(settings: str = SETTINGS.digest) -> RoutingRun:
    """The trained router takes the last weak kind for none; the other never finds a skill."""
    outcomes = made_up(1).outcomes
    routed = {**outcomes["base"], **{kind: outcomes[kind][kind] for kind in KINDS[:-1]}}
    kinds = (*TAUGHT, *KINDS)
    found = {kind: {kind if kind in KINDS[:-1] else "base: none": 8} for kind in kinds}
    return RoutingRun(
        seed=1, development=False,
        source=Source(commit="c" * 40, clean=True, settings=settings, base="b" * 64),
        members=made_up(1), outcomes={TRAINED: routed, UNTRAINED: outcomes["base"]},
        choices={TRAINED: found, UNTRAINED: {kind: {"base: tie": 8} for kind in kinds}},
        router=RouterResult(steps=9, prompts=288, figures=FIGURES),
        seconds=1.0, processor_seconds=120.0,
    )  # fmt: skip


def test_the_report_says_what_errors_of_the_router_cost() -> None:
    report = write_report([invent_run()], SETTINGS)
    rows = {line.split("`")[1]: line for line in report.splitlines() if line.startswith("| `")}
    assert "2 core-minutes" in report
    assert "chooses rightly in 97.0% of 100 held-out tasks" in report
    assert "0.667 [0.667, 0.667] | 1.000 [1.000, 1.000] | -0.333" in rows[TRAINED]
    assert "0.000 [0.000, 0.000] | 1.000 [1.000, 1.000] | -1.000" in rows[UNTRAINED]
    assert "1.000 [1.000, 1.000] | 1.000 [1.000, 1.000]" in rows["routed"]
    assert f"Choices of `{TRAINED}`" in report


def test_results_of_other_settings_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingToReport, match="seed 1 was made with the settings 0000"):
        write_report([invent_run("0" * 64)], SETTINGS)
    assert main(["report", "--out", str(tmp_path)]) == 1
