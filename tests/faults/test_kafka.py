"""Each fault of the broker and of the shipper, at a twentieth of the count of its full run.

The full runs are `python -m ops.faults.NAME`; their figures are in docs/LOG.md.
"""

from pathlib import Path

import pytest

from ops.faults import (
    broker_down,
    broker_flap,
    broker_kill,
    broker_wiped,
    corrupt_batch,
    log_trimmed,
    reordered,
    shipper_kill,
)
from tests.faults.reports import expect_pass

pytestmark = [pytest.mark.kafka, pytest.mark.faults, pytest.mark.long]


@pytest.fixture(autouse=True)
def _broker_can_start(broker: object) -> None:
    """Skip, or fail in CI, where no broker can be started: the drivers start their own."""


def test_kill_of_the_shipper_loses_and_reorders_nothing(tmp_path: Path) -> None:
    expect_pass(shipper_kill.run(5, tmp_path))


def test_a_broker_that_comes_and_goes_costs_no_record_and_no_memory(tmp_path: Path) -> None:
    expect_pass(broker_flap.run(2, tmp_path))


def test_kill_of_the_broker_loses_and_reorders_nothing(tmp_path: Path) -> None:
    expect_pass(broker_kill.run(1, tmp_path))


def test_appends_are_acknowledged_while_the_broker_is_away(tmp_path: Path) -> None:
    expect_pass(broker_down.run(30, tmp_path))


def test_a_wiped_broker_halts_the_reader(tmp_path: Path) -> None:
    expect_pass(broker_wiped.run(1, tmp_path))


def test_a_trimmed_start_halts_the_reader(tmp_path: Path) -> None:
    expect_pass(log_trimmed.run(1, tmp_path))


def test_reordering_inside_the_window_changes_nothing(tmp_path: Path) -> None:
    expect_pass(reordered.run(10, tmp_path))


def test_a_corrupt_batch_halts_the_reader_at_its_offset(tmp_path: Path) -> None:
    expect_pass(corrupt_batch.run(1, tmp_path))
