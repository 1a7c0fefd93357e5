"""Targeted against general training: which runs there are, what they show, and short real ones."""

import fcntl
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

import pytest

from daemon.adapters.directory import WEIGHTS, verify
from daemon.solver.reference.demonstrations import DEVELOPMENT, HELD_OUT, TRAINING
from envs.shop.kinds import PLAIN
from ops.learning import bootstrap
from ops.learning.results import Costs, PolicyEvaluation, Source, write_document
from ops.learning.seeds import BLOCK, COMPARED, PART, REPORTED
from ops.learning.sentinel import report
from ops.learning.sentinel.__main__ import list_keys, main
from ops.learning.sentinel.results import ComparisonRun, Key, Round, locate_unfinished, read
from ops.learning.sentinel.run import OtherSettings, compare, select_seeds
from ops.learning.sentinel.settings import ARMS, MIXES, PAIRS, SEEDS, SETTINGS, Arm
from ops.learning.settings import WEAK

TASKS = 16
SOURCE = Source(commit="c" * 40, clean=True, settings=SETTINGS.digest, base="b" * 64)
BUDGETS = SETTINGS.budgets
STARTS: Mapping[Arm, float] = {"base": 0.4, "warm": 0.6}


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole report has hundreds of intervals."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)


def test_the_traffic_is_the_issues_and_the_unseen_kind_has_all_of_the_weak_share() -> None:
    mixture, unseen = MIXES["mixture"], MIXES["unseen"]
    assert {kind: round(mixture[kind], 9) for kind in WEAK["main"]} == dict.fromkeys(
        WEAK["main"], 0.085
    )
    for mix in (mixture, unseen):
        assert {round(mix[kind], 9) for kind in PLAIN} == {0.11}
        assert sum(mix.values()) == pytest.approx(1)
    assert set(unseen) - set(PLAIN) == set(WEAK["unseen"])


def test_all_arms_of_a_seed_come_before_the_next_seed_and_the_mixture_before_the_unseen() -> None:
    keys = list_keys(list(MIXES), list(ARMS), SEEDS, development=False)
    assert [key.arm for key in keys[: len(ARMS)]] == list(ARMS)
    assert len({(key.mix, key.seed) for key in keys[: len(ARMS)]}) == 1
    assert [key.mix for key in keys] == ["mixture"] * 30 + ["unseen"] * 30


def test_no_two_rounds_of_reported_seeds_share_task_seeds_nor_any_that_were_used_before() -> None:
    keys = [Key(mix="mixture", arm="base", seed=seed) for seed in SEEDS]
    rounds = range(len(BUDGETS))
    first = [select_seeds(key, SETTINGS, number).first for key in keys for number in rounds]
    assert len(set(first)) == len(SEEDS) * len(BUDGETS)
    assert all(begin in COMPARED and begin + BLOCK <= COMPARED.stop for begin in first)
    for used in (REPORTED, DEVELOPMENT, HELD_OUT, TRAINING):
        assert used.stop <= COMPARED.start or COMPARED.stop <= used.start
    assert max(BUDGETS) // SETTINGS.size <= PART


def evaluated(budget: int, weak: float, seed: int) -> PolicyEvaluation:
    """Plain kinds always pass; of the other trials this share."""
    chance = Random(f"tasks {seed}")
    outcomes = {
        kind: {
            f"shop/{kind}/{n}": tuple(kind in PLAIN or chance.random() < weak for _ in range(3))
            for n in range(TASKS)
        }
        for kind in MIXES["mixture"]
    }
    return PolicyEvaluation(budget=budget, spent=budget, outcomes=outcomes)


def finished(arm: Arm, seed: int, rates: Iterable[float]) -> ComparisonRun:
    """A run whose weak kinds pass at these rates, budget after budget."""
    trained = ARMS[arm].training != "none"
    budgets = BUDGETS if trained else (256 if arm == "warm" else 0,)
    spent = Costs(diagnosis=256, training=2816)
    one = Round(spent=spent, targets=(), ended="trained", updates=44, adapter="a", steps=())
    return ComparisonRun(
        key=Key(mix="mixture", arm=arm, seed=seed),
        source=SOURCE,
        weights=MIXES["mixture"],
        warm_start=Costs(references=256 if ARMS[arm].warm else 0),
        rounds=(one,) * 3 if trained else (),
        evaluations=tuple(evaluated(b, r, seed) for b, r in zip(budgets, rates, strict=True)),
        seconds=60,
        processor_seconds=50,
    )


def runs(seeds: Iterable[int], general: float, targeted: float) -> list[ComparisonRun]:
    """All arms; after each budget the weak kinds pass at these rates."""
    made = []
    for seed in seeds:
        made += [finished(start, seed, [rate]) for start, rate in STARTS.items()]
        for _, other, own in PAIRS:
            made.append(finished(other, seed, [general] * 3))
            made.append(finished(own, seed, [targeted] * 3))
    return made


def gains(made: list[ComparisonRun]) -> list[list[str]]:
    """The rows of the table of gains of all traffic, from the base, of pass^1."""
    text = report.text(report.group_runs(made))
    after = text.partition("Gains over the start, all traffic")[2]
    table = after.split("\n\n")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [row for row in rows if row[0] == "base" and row[2] == "1"]


def test_more_than_one_time_is_the_interval_of_the_difference() -> None:
    better = gains(runs(SEEDS, 0.6, 0.9))
    assert [row[1] for row in better] == ["3,072", "6,144", "9,216"]
    assert all(row[-1] == "yes" for row in better)
    assert all(1 < float(row[-2].split()[0]) < 5 for row in better)
    assert all(row[-1] == "no" for row in gains(runs(SEEDS, 0.9, 0.6)))
    assert all(row[-1] == "not shown" for row in gains(runs(SEEDS, 0.7, 0.7)))


def test_a_general_gain_that_may_be_nothing_gives_no_ratio() -> None:
    rows = gains(runs(SEEDS, 0.4, 0.9))
    assert all("may be 0" in row[-2] for row in rows)
    assert all(row[-1] == "yes" for row in rows)


def test_a_report_of_some_runs_says_which_are_missing() -> None:
    made = [run for run in runs((1, 2), 0.6, 0.9) if run.key.arm != "warm_targeted"]
    text = report.text(report.group_runs(made))
    assert "0 of 5 seeds have all arms" in text
    assert "Missing or unfinished" in text
    assert "warm_targeted of seed 1, 2, 3, 4, 5" in text
    assert "general of seed 3, 4, 5" in text
    assert gains(made)[0][3] == "2"
    with pytest.raises(report.NothingToReport):
        report.group_runs([run for run in made if ARMS[run.key.arm].training == "none"])


def test_an_unfinished_run_enters_at_the_budgets_that_it_has_come_to(tmp_path: Path) -> None:
    for run in runs((1,), 0.6, 0.9):
        if run.key.arm != "targeted":
            write_document(run.key.locate(tmp_path), run)
            continue
        begun = run.model_copy(
            update={"rounds": run.rounds[:1], "evaluations": run.evaluations[:1]}
        )
        write_document(locate_unfinished(tmp_path, run.key), begun)
    made = read(tmp_path)
    assert [row[1] for row in gains(made)] == ["3,072"]
    text = report.text(report.group_runs(made))
    assert "targeted of seed 1, 2, 3, 4, 5" in text
    report.draw(report.group_runs(made), tmp_path / "gains.svg")
    assert f"{ARMS['targeted'].title} (1 of 5 seeds)" in (tmp_path / "gains.svg").read_text()


def test_the_image_has_the_four_arms_and_is_the_same_again(tmp_path: Path) -> None:
    comparisons = report.group_runs(runs((1, 2), 0.6, 0.9))
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    report.draw(comparisons, one)
    report.draw(comparisons, two)
    drawn = one.read_text()
    assert drawn == two.read_text()
    trained = [definition for definition in ARMS.values() if definition.training != "none"]
    assert all(f"{definition.title} (2 of 5 seeds)" in drawn for definition in trained)


def test_the_command_reports_what_is_there_and_refuses_a_folder_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--out", str(tmp_path)]) == 1
    for run in runs((1,), 0.6, 0.9):
        write_document(run.key.locate(tmp_path), run)
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "1 of 5 seeds have all arms" in capsys.readouterr().out
    there = ["run", "--out", str(tmp_path), "--seeds", "1", "--mixes", "mixture"]
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
    assert main(there) == 0
    assert {f.name: f.stat().st_mtime_ns for f in tmp_path.glob("*.json")} == before
    with (tmp_path / "lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(there) == 1
    assert "another process" in capsys.readouterr().err


SHORT = SETTINGS.model_copy(
    update={
        "diagnosis": 48, "budgets": (96, 176), "groups": 4, "size": 4, "references": 16,
        "tasks": 1, "trials": 3,
    }
)  # fmt: skip


@pytest.mark.learning
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(900)
def test_both_arms_begin_with_one_warm_start_and_spend_the_same(tmp_path: Path) -> None:
    made = {}
    for arm in ("warm_targeted", "warm_general"):
        key = Key(mix="mixture", arm=arm, seed=1, development=True)
        made[arm] = compare(key, SHORT, tmp_path)
        write_document(key.locate(tmp_path), made[arm])
    assert sorted(read(tmp_path), key=lambda run: run.key.name) == [
        made["warm_general"], made["warm_targeted"],
    ]  # fmt: skip
    start = verify(tmp_path / "mixture-development1-warm" / "adapter").files[WEIGHTS]
    for arm, run in made.items():
        assert run.warm_start.references == 16
        assert [evaluation.spent for evaluation in run.evaluations] == [96, 176]
        diagnosed = 48 if arm == "warm_targeted" else 0
        assert [finished.spent.diagnosis for finished in run.rounds] == [diagnosed] * 2
        parents = [
            verify(tmp_path / run.key.name / str(number) / "adapter").parent for number in (0, 1)
        ]
        assert parents == [start, run.rounds[0].adapter]
        # What is finished is not done again, and the result is the same.
        again = compare(run.key, SHORT, tmp_path)
        assert again.model_copy(update={"seconds": 0, "processor_seconds": 0}) == run.model_copy(
            update={"seconds": 0, "processor_seconds": 0}
        )
        with pytest.raises(OtherSettings, match="another folder"):
            compare(run.key, SHORT.model_copy(update={"replay": 0.1}), tmp_path)
    assert all(not finished.targets for finished in made["warm_general"].rounds)
    assert made["warm_targeted"].rounds[0].targets
