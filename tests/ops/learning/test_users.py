"""The report on users: rates of all seeds with their intervals."""

from pathlib import Path

import pytest

from daemon.evaluation.user_trial import DialogueResult, summarize
from daemon.solver.telemetry.progress import UserFigures
from daemon.solver.users.job import UserJobResult
from ops.learning.results import NothingToReport, Source, write_document
from ops.learning.users.__main__ import main
from ops.learning.users.report import write_report
from ops.learning.users.run import SizeRun, UserRun
from ops.learning.users.settings import SETTINGS


def invent_run(
    seed: int, bad: int, settings: str = SETTINGS.compute_digest(manners=False)
) -> UserRun:
    """A base that always errs, and a user that does in so many of 600 dialogues."""

    def play(faults: int) -> SizeRun:
        dialogues = [
            DialogueResult(
                task=f"t{n}", with_oracle=True, termination="user_stop", written=3, success=True,
                fault="instruction" if n < faults else None, fault_reason="it errs", messages=(),
            )
            for n in range(600)
        ]  # fmt: skip
        figures = UserFigures(steps=9, tokens=99, first_loss=9.0, loss=0.2, held_out_loss=0.25)
        job = UserJobResult(gold=32, recorded=0, held_out=4, left_out=(), figures=figures)
        gate = summarize(dialogues)
        return SizeRun(job=None if faults == 600 else job, gate=gate, seconds=1.0)

    return UserRun(
        seed=seed, development=False, sizes={0: play(600), 32: play(bad)}, seconds=1.0,
        source=Source(commit="c" * 40, clean=True, settings=settings, base="b" * 64),
        processor_seconds=60.0,
    )  # fmt: skip


def test_the_report_has_rates_of_all_seeds_and_the_gates_that_passed() -> None:
    report = write_report([invent_run(1, 0), invent_run(2, 12)], SETTINGS)
    rows = {line.split(" | ")[0]: line for line in report.splitlines() if line.startswith("| ")}
    assert "2 core-minutes" in report
    assert "100.0% [99.7%, 100.0%] (100.0%, 100.0%)" in rows["| 0"]
    assert "| none | unknown |" in rows["| 0"]
    assert "1.0% [0.5%, 1.7%] (0.0%, 2.0%)" in rows["| 32"]
    assert "| 1 of 2 | 9, 9 | 0.250, 0.250 |" in rows["| 32"]
    assert "t0: it errs" in report


def test_results_of_other_settings_and_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NothingToReport, match="use another folder"):
        write_report([invent_run(1, 0, "f" * 64)], SETTINGS)
    assert main(["report", "--out", str(tmp_path)]) == 1
    assert "run some seeds first" in capsys.readouterr().err
    write_document(tmp_path / "seed1.json", invent_run(1, 0))
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "core-minutes" in capsys.readouterr().out


def test_a_user_in_manners_has_a_row_of_its_own() -> None:
    digest = SETTINGS.compute_digest(manners=True)
    in_manners = invent_run(1, 3, digest).model_copy(update={"manners": True})
    report = write_report([invent_run(1, 12), in_manners], SETTINGS)
    rows = {line.split(" | ")[0]: line for line in report.splitlines() if line.startswith("| ")}
    assert "(2.0%)" in rows["| 32"]
    assert "(0.5%)" in rows["| 32 in all manners"]
    older = invent_run(1, 3).model_copy(update={"manners": True})
    with pytest.raises(NothingToReport, match="use another folder"):
        write_report([invent_run(1, 12), older], SETTINGS)


def test_a_user_in_manners_needs_the_user_that_it_trains_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--out", str(tmp_path), "--seeds", "1", "--sizes", "32", "--manners"]
    assert main(command) == 1
    assert "run without --manners first" in capsys.readouterr().err
