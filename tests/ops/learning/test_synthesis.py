"""The experiment on the data engine: what arms write, what is counted of it, and the reports."""

import json
from pathlib import Path

import pytest

from envs.shop.environment import Shop
from ops.learning.results import NothingToReport, Source
from ops.learning.synthesis.__main__ import main
from ops.learning.synthesis.outcomes import write_outcomes
from ops.learning.synthesis.report import estimate_mean, write_report
from ops.learning.synthesis.run import WritingRun
from ops.learning.synthesis.settings import ARMS, JOBS, SETTINGS, TRAINED, Arm
from ops.learning.synthesis.training import BASE, TrainedRun
from ops.learning.synthesis.writing import SOUND, Figures, Part, Round, Writing, write_tasks

FEW = SETTINGS.model_copy(update={"tries": 48, "audited": 16})


def write(mode: str, rate: float = 0.6) -> Writing:
    arm = Arm.model_validate({"rate": rate, "plans": 4, "mode": mode})
    return write_tasks(arm, "test", 0, FEW)


def count(part: Part) -> int:
    return sum(part.tries.values()) + part.empty


def test_arms_have_equal_tries_and_keep_the_bodies_of_what_they_accept() -> None:
    shop = Shop()
    shares = {}
    for mode in ("reflection", "verification", "neither"):
        writing = write(mode)
        figures = writing.figures
        assert sum(map(count, figures.parts)) == FEW.tries
        assert [count(part) for part in figures.parts] == [12, 12, 12, 12]
        accepted = sum(sum(part.accepted.values()) for part in figures.parts)
        # The same task may be written twice where nothing looks at repetition.
        assert len(writing.accepted) <= accepted
        shop.use_definitions(writing.accepted.get)
        assert all(shop.task(task).id == task for task in writing.accepted)
        sound = sum(part.accepted.get(SOUND, 0) for part in figures.parts)
        shares[mode] = 1 - sound / accepted
        assert bool(figures.audits) == (mode != "neither")
    assert shares["verification"] < shares["neither"] / 2


def test_a_writer_without_faults_has_all_tries_sound() -> None:
    figures = write("verification", rate=0.0).figures
    assert all(set(part.tries) == {SOUND} for part in figures.parts)
    assert all(set(audit) == {SOUND} for audit in figures.audits)


def test_what_is_written_follows_from_name_seed_and_settings() -> None:
    assert write("reflection") == write("reflection")


def invent_figures(audits: tuple[int, ...]) -> Figures:
    """Of ten fresh tasks each, so many with a fault; two of ten tries are planted, one is found."""
    part = Part(tries={SOUND: 8, "leak": 2}, accepted={SOUND: 7, "leak": 1}, empty=0)
    return Figures(
        plans=4, parts=(part,), rounds=(Round(tried=2, kept=1, stopped="over"),),
        audits=tuple({SOUND: 10 - bad, "leak": bad} for bad in audits),
        checks={"leak": {"leak": 1}, "novelty": {SOUND: 1}},
    )  # fmt: skip


def invent_source(settings: str) -> Source:
    return Source(commit="c" * 40, clean=True, settings=settings, base="b" * 64)


def invent_run(seed: int, settings: str = SETTINGS.digest) -> WritingRun:
    return WritingRun(
        seed=seed, development=False, source=invent_source(settings),
        arms={arm.name: invent_figures((8, 2)) for arm in ARMS}, accepted={},
        seconds=1.0, processor_seconds=60.0,
    )  # fmt: skip


def test_the_report_says_what_reflection_and_checks_leave_of_planted_faults() -> None:
    report = write_report([invent_run(1), invent_run(2)], SETTINGS)
    assert "seeds 1, 2; 2 core-minutes" in report
    assert "| 40% | 64 | reflection | 0.200 [0.200, 0.200] | 0.800 [0.800, 0.800] | 0.125" in report
    # Rounds ended after the first: the plans stay as they are.
    row = next(line for line in report.splitlines() if line.startswith("| 5% | 4 | 0.800"))
    assert row.count("0.200 [0.200, 0.200]") == 3
    assert "+0.750 [+0.750, +0.750] | 1.0 of 2.0 |" in row
    assert "| `leak` | 32 | 50.0% | 0.0% | 50.0% |" in report


def test_intervals_are_students_over_seeds() -> None:
    found = estimate_mean([0.1, 0.2, 0.3])
    # t with two degrees of freedom at 97.5 %: 4.303; standard error .1 / sqrt(3).
    assert found.value == pytest.approx(0.2)
    assert found.high - found.value == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    alone = estimate_mean([0.4])
    assert (alone.low, alone.high) == (0.4, 0.4)


def invent_trained(arm: str, seed: int, *, passed: bool) -> TrainedRun:
    kinds = Shop.capabilities
    return TrainedRun(
        seed=seed, development=False, source=invent_source(JOBS.digest), arm=arm, tasks=9,
        batches=2, informative=0.5,
        outcomes={kind: {f"{kind}/{n}": (passed, passed) for n in range(2)} for kind in kinds},
        seconds=1.0, processor_seconds=1.0,
    )  # fmt: skip


def test_outcomes_are_compared_over_seeds_that_all_arms_have() -> None:
    runs = [invent_trained(BASE, seed, passed=False) for seed in (1, 2)]
    assert "No seed has all" in write_outcomes(
        [*runs[:1], invent_trained(TRAINED[0].name, 2, passed=True)], JOBS
    )
    runs += [invent_trained(TRAINED[0].name, 1, passed=True)]
    text = write_outcomes(runs, JOBS)
    assert "seeds 1; differences" in text
    assert "| 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] | +1.000 [+1.000, +1.000] |" in text


def test_results_of_other_settings_and_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NothingToReport, match="seed 1 was made with the settings 0000"):
        write_report([invent_run(1, "0" * 64)], SETTINGS)
    assert main(["report", "--out", str(tmp_path)]) == 1
    assert "no result" in capsys.readouterr().err
    (tmp_path / "written").mkdir()
    (tmp_path / "written" / "seed1.json").write_text(invent_run(1).model_dump_json())
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert json.loads(invent_run(1).model_dump_json())["seed"] == 1
