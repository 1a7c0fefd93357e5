"""The screen: jobs as a first cycle makes them, and a table of what each configuration gained."""

from pathlib import Path

import pytest

from daemon.config.presets import build_loop_algorithm, preset
from envs.shop.environment import Shop
from events.algorithm import FilterConfig
from events.jobs import JobSpec
from ops.learning.results import Source
from ops.learning.screen import report
from ops.learning.screen.plan import Recorder
from ops.learning.screen.run import Screened, Training, Update, screen, write
from ops.learning.screen.settings import BASE, CONFIGURATIONS, MIXTURES, SETTINGS, Settings
from ops.learning.seeds import Seeds

SMALL = Settings(
    recorded=96,
    written=12,
    training={"rollouts": 96, "groups": 4, "size": 4, "lr": 1e-3, "max_tokens": 64},
    tasks=2,
    trials=1,
)
SOURCE = Source(commit="c", clean=True, settings=SETTINGS.digest, base="b")


def test_the_loops_own_algorithm_and_the_preset_are_among_the_configurations() -> None:
    assert CONFIGURATIONS["sentinel_k2_zero"].algorithm == build_loop_algorithm(0.1)
    assert CONFIGURATIONS["sentinel"].algorithm == preset("sentinel")


def test_a_configuration_is_one_change_from_today() -> None:
    today = CONFIGURATIONS["today"].algorithm
    zero = CONFIGURATIONS["zero"].algorithm
    assert zero.loss == today.loss
    assert zero.filter == FilterConfig(informative=False, uniform="zero")
    for name in ("tis", "clip_equal"):
        changed = CONFIGURATIONS[name].algorithm
        assert changed.filter == today.filter
        assert changed.loss != today.loss
        assert changed.loss.kl == today.loss.kl


def screened(name: str, seed: int, passed: int) -> Screened:
    """A policy that passes `passed` of ten target tasks, and every other task."""
    weak = SETTINGS.target
    outcomes = {
        kind: {f"{kind}/{place}": (kind != weak or place < passed,) for place in range(10)}
        for kind in SETTINGS.traffic
    }
    update = Update(
        rollouts=64, updated=True, informative=0.5, success=0.5, zero_advantage=0.0, kl=0.0,
        tis_clipped=0.0, clipped_high=0.0,
    )  # fmt: skip
    training = Training() if name == BASE else Training(updates=(update,), seconds=90)
    return Screened(
        configuration=name, seed=seed, development=True, source=SOURCE, training=training,
        seconds=100, outcomes=outcomes,
    )  # fmt: skip


def test_a_row_compares_a_configuration_with_the_base_of_its_own_seed(tmp_path: Path) -> None:
    for seed, before, after in ((0, 2, 8), (1, 4, 8)):
        write(tmp_path, screened(BASE, seed, before))
        write(tmp_path, screened("zero", seed, after))
    write(tmp_path, screened("today", 2, 9))
    text = report.text(report.read(tmp_path), SETTINGS)
    (row,) = text.splitlines()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["zero", "0, 1", "0.300 -> 0.800"]
    assert cells[3].startswith("+0.500 (")
    assert cells[4] == "0.916 -> 0.976"
    assert cells[-3:] == ["1", "50%", "1.5"]


def test_configurations_are_compared_with_one_another_and_by_kind(tmp_path: Path) -> None:
    for seed in (0, 1):
        write(tmp_path, screened("rounds_1", seed, 4))
        write(tmp_path, screened("rounds_4", seed, 7))
    results = report.read(tmp_path)
    (row,) = report.text(results, SETTINGS, "rounds_1").splitlines()[2:]
    assert row.startswith("| rounds_4 | 0, 1 | 0.400 -> 0.700 | +0.300 (")
    rows = report.kinds_text(results, SETTINGS, "rounds_1").splitlines()
    assert rows[0] == "| kind | rounds_4 |"
    assert len(rows) == 2 + len(SETTINGS.traffic)
    assert any(line.startswith(f"| `{SETTINGS.target}` | +0.300 (") for line in rows)
    assert "| `cancel` | +0.000 (+0.000 to +0.000) |" in rows


def test_rounds_are_the_only_change_of_their_configurations() -> None:
    rounds = {n: c for n, c in CONFIGURATIONS.items() if n.startswith("rounds_")}
    assert {c.training["rounds"] for c in rounds.values()} == {1, 2, 4}
    assert {c.algorithm for c in rounds.values()} == {build_loop_algorithm(0.1)}
    weak = MIXTURES["weak"]
    assert sum(weak.traffic.values()) == pytest.approx(1)
    assert weak.model_copy(update={"traffic": SETTINGS.traffic}) == SETTINGS


def test_a_configuration_without_its_base_is_no_report(tmp_path: Path) -> None:
    write(tmp_path, screened("today", 2, 9))
    with pytest.raises(report.NothingToReport, match="run them first"):
        report.text(report.read(tmp_path), SETTINGS)


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_configurations_of_a_seed_share_tasks_and_differ_in_what_they_show(tmp_path: Path) -> None:
    recorder = Recorder(SMALL, 3, Seeds.of(3, development=True))
    specs: dict[str, JobSpec] = {
        name: recorder.build_spec(CONFIGURATIONS[name], tmp_path / name)
        for name in ("today", "zero", "warm_always", "warm_own")
    }
    assert specs["zero"].pools == specs["today"].pools
    assert specs["zero"].algorithm != specs["today"].algorithm
    tasks = {name: [sorted(pool.all_tasks) for pool in spec.pools] for name, spec in specs.items()}
    assert all(tasks[name] == tasks["today"] for name in tasks)
    oracle, own = specs["warm_always"], specs["warm_own"]
    assert oracle.reference_count > 0 == own.reference_count
    assert not any(pool.successes for pool in oracle.pools)
    assert any(pool.successes for pool in own.pools)
    assert own.warm_start is not None
    assert own.warm_start.successes is not None


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_a_screened_job_trains_on_recorded_successes_and_is_evaluated(tmp_path: Path) -> None:
    result = screen("warm_own", 3, SMALL, tmp_path, development=True)
    assert result.training.successes > 0
    assert result.training.references == 0
    assert result.training.updates
    assert {len(tasks) for tasks in result.outcomes.values()} == {2}
    assert result.outcomes.keys() == SMALL.traffic.keys()
    assert set(result.outcomes) <= set(Shop().capabilities)
