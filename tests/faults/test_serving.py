"""Faults of adapters and routes, at a small part of the full counts (ops/faults/run runs those)."""

import os
from pathlib import Path

import pytest

from ops.faults import (
    serving_database_down,
    serving_engine_kill,
    serving_files,
    serving_full_disk,
    serving_kill,
    serving_restored,
    serving_twins,
)
from ops.isolated import InstallError
from tests.conftest import missing
from tests.faults.reports import expect_pass

pytestmark = pytest.mark.faults


@pytest.mark.long
def test_an_engine_that_comes_back_is_proven_before_it_is_used(tmp_path: Path) -> None:
    found = expect_pass(serving_engine_kill.run(2, tmp_path))
    assert found["refused"] == 1, "it was shown other weights once"


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_vllm_that_comes_back_is_proven_before_it_is_used(tmp_path: Path) -> None:
    try:
        found = serving_engine_kill.run(1, tmp_path, engines=serving_engine_kill.vllm(tmp_path))
    except InstallError as error:
        missing(str(error))
    expect_pass(found)


@pytest.mark.long
def test_damaged_files_are_loaded_by_no_engine_and_stop_none(tmp_path: Path) -> None:
    expect_pass(serving_files.run(6, tmp_path))


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="mounting a disk needs root"
)
def test_on_a_full_disk_nothing_is_done_by_half(tmp_path: Path) -> None:
    expect_pass(serving_full_disk.run(1, tmp_path))


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.usefixtures("postgres")
def test_without_the_database_the_last_route_stays(tmp_path: Path) -> None:
    expect_pass(serving_database_down.run(2, tmp_path))


@pytest.mark.long
def test_what_was_killed_ends_the_second_time_where_it_would_have(tmp_path: Path) -> None:
    expect_pass(serving_kill.run(2, tmp_path))


@pytest.mark.long
def test_what_one_of_two_replicas_refuses_answers_nobody(tmp_path: Path) -> None:
    expect_pass(serving_twins.run(3, tmp_path))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_home_restored_elsewhere_serves_its_own_files(tmp_path: Path) -> None:
    expect_pass(serving_restored.run(2, tmp_path))
