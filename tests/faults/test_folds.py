"""Faults of the fold, at a twentieth of the full counts (ops/faults/run runs those)."""

from pathlib import Path

import pytest

from ops.faults import database_down, fold_kill, fold_poison, fold_twins, log_restored
from tests.faults.reports import expect_pass

pytestmark = pytest.mark.faults


def test_a_log_restored_from_before_never_heals_in_silence(tmp_path: Path) -> None:
    result = expect_pass(log_restored.run(4, tmp_path))
    assert result["diverged"] > 0


@pytest.mark.postgres
@pytest.mark.usefixtures("postgres")
def test_a_fold_killed_at_any_moment_leaves_the_tables_of_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    result = expect_pass(fold_kill.run(2, tmp_path))
    assert result["sqlite"]["killed_at_work"] > 0
    assert result["postgres"]["killed_at_work"] > 0


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.usefixtures("postgres")
def test_two_folds_at_once_one_of_them_paused_count_nothing_twice(tmp_path: Path) -> None:
    expect_pass(fold_twins.run(3, tmp_path))


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.usefixtures("postgres")
def test_a_database_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    expect_pass(database_down.run(5, tmp_path))


@pytest.mark.usefixtures("postgres")
def test_hostile_records_cost_one_event_each_and_the_same_on_both_databases(
    tmp_path: Path,
) -> None:
    result = expect_pass(fold_poison.run(len(fold_poison.KINDS), tmp_path, seed=7))
    assert result["dead_letters"] >= 8
