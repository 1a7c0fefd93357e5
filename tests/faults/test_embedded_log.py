"""Faults of the embedded log, at a twentieth of the full counts (ops/faults/run runs those)."""

import os
import shutil
from pathlib import Path

import pytest

from ops.faults import full_disk, kill_appender, power_cut
from tests.faults.reports import expect_pass

pytestmark = pytest.mark.faults

compiler = pytest.mark.skipif(
    shutil.which("cc") is None and os.environ.get("CI") != "true",
    reason="recording what a process asks of its disk needs a C compiler (Debian: gcc libc6-dev)",
)


def test_killed_appenders_lose_and_double_nothing(tmp_path: Path) -> None:
    expect_pass(kill_appender.run(5, tmp_path, processes=1))


@pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="mounting a disk needs root"
)
def test_a_full_disk_acknowledges_nothing_falsely_and_is_survived(tmp_path: Path) -> None:
    expect_pass(full_disk.run(5, tmp_path))


@compiler
def test_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    result = expect_pass(power_cut.run(20, tmp_path))
    assert result["acknowledged"] > 0


@compiler
def test_the_model_of_a_power_cut_takes_what_was_never_synced(tmp_path: Path) -> None:
    """The control: with durability "process" events are lost, and the log is whole all the same."""
    result = power_cut.run(20, tmp_path, durability="process")
    assert result["lost"] > 0
    assert (result["duplicates"], result["torn_batches"], result["problems"]) == (0, 0, 0)
