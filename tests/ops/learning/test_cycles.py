"""The comparison of eight cycles with other arms: what they train on, and which goals are met."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import Settings as HomeSettings
from envs.statistics import Interval
from ops.demo import crowd, general, heldout
from ops.demo.place import ROOT, SEEDS, Place, make
from ops.faults.demo_kill import below
from ops.learning.cycles import report
from ops.learning.cycles.__main__ import main
from ops.learning.cycles.arms import (
    PER_SEED,
    build_general,
    build_sft,
    count_references,
    first_task,
)
from ops.learning.cycles.run import ArmResult, path_of, write
from ops.learning.cycles.settings import SETTINGS, Arm, Settings
from ops.learning.results import Source
from tests.ops.demo.test_place import untouched as untouched

SMALL = Settings(
    mixture={"two_writes": 0.25, "question": 0.25, "cancel": 0.25, "return": 0.25},
    weak=("two_writes", "question"), cycles=2, size="least",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make(tmp_path / "home", SMALL.build_size(7), mix=SMALL.mixture)


def kinds(tasks: tuple[str, ...]) -> Counter[str]:
    return Counter(task.split("/")[1] for task in tasks)


def test_general_rl_has_the_loops_learner_and_all_its_rollouts(place: Place) -> None:
    home: HomeSettings = place.settings()
    spec = build_general(place, SMALL)
    assert spec.sampler.rollouts == SMALL.cycles * home.training.rollouts == 256
    assert (spec.parent, spec.warm_start) == (None, None)
    assert spec.optimizer.lr == home.training.lr
    (pool,) = spec.pools
    assert len(pool.tasks) == len(set(pool.tasks)) == 256 // spec.sampler.size
    assert set(kinds(pool.tasks)) <= set(SMALL.mixture)
    assert build_general(place, SMALL) == spec, "a run that is begun again goes on with its job"


def test_supervised_training_has_twice_the_rollouts_as_references_of_every_weak_kind(
    place: Place,
) -> None:
    spec = build_sft(place, SMALL)
    assert spec.reference_count == spec.sampler.rollouts == 2 * 256
    assert not spec.grpo
    shown = [kinds(pool.references) for pool in spec.pools]
    assert shown == [{"two_writes": 128}, {"question": 128}]
    assert spec.warm_start is not None
    plain = kinds(spec.warm_start.siblings)
    assert set(plain) == {"cancel", "return"}
    assert plain.total() == 256


def test_no_arm_of_any_seed_meets_another_or_a_customer_or_a_held_out_task() -> None:
    arms = [range(first_task(seed), first_task(seed) + PER_SEED) for seed in range(SEEDS)]
    customers = range(crowd.FIRST_TASK, crowd.FIRST_TASK + SEEDS * crowd.PER_SEED)
    held_out = range(heldout.FIRST_TASK, heldout.FIRST_TASK + SEEDS * heldout.PER_SEED)
    compared = range(general.FIRST_TASK, first_task(0))
    bounds = sorted((seeds.start, seeds.stop) for seeds in (*arms, customers, held_out, compared))
    assert all(end <= start for (_, end), (start, _) in pairwise(bounds))
    assert bounds[-1][1] <= 1 << 28, "where written tasks begin"


def test_the_frozen_references_are_twice_the_rollouts_and_more_than_fit_are_refused() -> None:
    each, rest = count_references(SETTINGS)
    assert len(SETTINGS.weak) * each + rest == 2 * 8 * 1280
    with pytest.raises(ValueError, match="lower cycles or references"):
        count_references(SETTINGS.model_copy(update={"cycles": 1000}))


# The report


def result(arm: Arm, seed: int, **rates: float) -> ArmResult:
    """Eight tasks of each kind, of which this share passes all trials."""
    return ArmResult(
        arm=arm, seed=seed, seconds=1.0,
        source=Source(commit="c" * 40, clean=True, settings=SMALL.digest, base="b"),
        outcomes={
            kind: {
                f"shop/{kind}/{n}": (n < 8 * rates.get(kind, 1.0),) * 3 for n in range(8)
            }
            for kind in SMALL.mixture
        },
    )  # fmt: skip


def goals(results: list[ArmResult]) -> dict[str, str]:
    """Goal -> its outcome, from the text."""
    rows = [line.strip("| ").split(" | ") for line in report.text(results, SMALL).splitlines()]
    start = next(n for n, row in enumerate(rows) if row[0].startswith("goal"))
    return {row[0]: row[-1] for row in rows[start + 2 :]}


def test_a_goal_is_met_where_its_figure_reaches_it_and_shown_where_its_interval_does() -> None:
    assert report.judge(Interval(0.95, 0.941, 0.96), 0.94) == "met and shown"
    assert report.judge(Interval(0.95, 0.93, 0.97), 0.94) == "met, not shown"
    assert report.judge(Interval(0.93, 0.91, 0.95), 0.94) == "**not met**"
    assert report.judge(Interval(0.9, 0.88, 0.92), 0.94) == "**not met**, and shown to be below"


def test_the_report_judges_traffic_weak_kinds_and_losses() -> None:
    results = [
        run
        for seed in (21, 22)
        for run in (
            result("base", seed, two_writes=0.25, question=0.5),
            result("loop", seed, two_writes=0.875, question=0.5, cancel=0.5),
            result("sft", seed, two_writes=0.75, question=0.75),
        )
    ]
    outcomes = goals(results)
    assert outcomes["all traffic"].startswith("**not met**")
    assert outcomes["two_writes, less the arm sft"].startswith("met")
    assert outcomes["question, less the arm sft"].startswith("**not met**")
    assert outcomes["cancel, less the base"].startswith("**not met**")
    assert outcomes["return, less the base"] == "met and shown"
    assert outcomes["all traffic, less the arm general"] == "not measured"
    text = report.text(results, SMALL)
    assert "| two_writes, less the arm sft | 21, 22 | +0.125 " in text
    assert "0.719, 0.719" in text, "the figure of each seed"


def test_results_of_other_settings_damaged_files_and_empty_folders_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--out", str(tmp_path)], SMALL) == 1
    assert "no result of the base; run the arms first" in capsys.readouterr().err
    write(tmp_path, result("base", 21))
    assert main(["report", "--out", str(tmp_path)], SMALL) == 0
    for command in (["report"], ["run", "--seeds", "21"]):
        assert main([*command, "--out", str(tmp_path)], SETTINGS) == 1
        assert "base of seed 21 was made with the settings" in capsys.readouterr().err
    path_of(tmp_path, "base", 21).write_text("{}")
    assert main(["report", "--out", str(tmp_path)], SMALL) == 1
    assert "base-seed21.json is no result of an arm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--seeds", "64"], "'64' names no seeds"), (["--seeds", "a"], "'a' names no seeds"),
        (["--seeds", "3-1"], "'3-1' names no seeds"),
        (["--seeds", "1", "--arms", "loop,magic"], "'magic' is no arm"),
    ],
)  # fmt: skip
def test_wrong_usage_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "--out", str(tmp_path), *flags])
    assert end.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.learning
@pytest.mark.timeout(2400)
def test_every_arm_leaves_one_result_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Everything is killed once, in the middle of an arm."""
    code = (
        "import sys; from ops.learning.cycles.__main__ import main; "
        "from tests.ops.learning.test_cycles import SMALL; sys.exit(main(sys.argv[1:], SMALL))"
    )
    command = [sys.executable, "-c", code, "run", "--out", str(tmp_path), "--seeds", "7"]
    begun: subprocess.Popen[bytes] = subprocess.Popen(command, cwd=ROOT)
    with pytest.raises(subprocess.TimeoutExpired):
        begun.wait(40)
    for pid in (*below(begun.pid), begun.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    begun.wait()
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    results = {run.arm: run for run in report.read(tmp_path)}
    assert list(results) == ["base", "general", "loop", "sft"]
    assert all(run.source.settings == SMALL.digest for run in results.values())
    assert results["general"].rollouts == 256
    assert results["sft"].references == 512
    loop: Any = results["loop"]
    assert [entry["number"] for entry in loop.cycles] == [0, 1, 2]
    assert loop.cycles[0]["kinds"] == {
        kind: sum(map(sum, tasks.values())) / (3 * len(tasks))
        for kind, tasks in results["base"].outcomes.items()
    }, "the demo and the driver play the same held-out tasks"
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert main(["run", "--out", str(tmp_path), "--seeds", "7"], SMALL) == 0
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json")} == before
    assert len(goals(list(results.values()))) == 1 + 2 + 4 + 1
