"""Faults of the gateway, at a small part of the full counts (ops/faults/run runs those)."""

import os
from pathlib import Path

import pytest

from ops.faults import (
    engine_liar,
    gateway_alike,
    gateway_broker_down,
    gateway_clients,
    gateway_full_disk,
    gateway_kill,
    gateway_pause,
    gateway_restart,
    gateway_retry,
    gateway_upstream_kill,
)
from tests.faults.reports import expect_pass

pytestmark = pytest.mark.faults


@pytest.mark.long
def test_killed_among_all_kinds_of_calls_it_has_what_it_acknowledged_once(tmp_path: Path) -> None:
    found = expect_pass(gateway_kill.run(10, tmp_path))
    assert found["evidence"] > 0, "no call was under way when it was killed"


def test_a_lost_answer_is_given_again_and_the_engine_is_not_asked(tmp_path: Path) -> None:
    found = expect_pass(gateway_retry.run(3, tmp_path))
    assert found["replayed"] == 3


def test_customers_who_say_the_same_are_never_in_one_session(tmp_path: Path) -> None:
    found = expect_pass(gateway_alike.run(10, tmp_path))
    assert found["kills"] > 0


def test_paused_for_seconds_it_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    expect_pass(gateway_pause.run(2, tmp_path))


def test_started_again_under_load_it_makes_nobody_an_agent(tmp_path: Path) -> None:
    expect_pass(gateway_restart.run(1, tmp_path))


@pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="mounting a disk needs root"
)
def test_on_a_full_disk_nobody_is_told_what_is_not_so(tmp_path: Path) -> None:
    expect_pass(gateway_full_disk.run(2, tmp_path))


def test_clients_that_misbehave_cost_no_memory_and_stop_their_engine(tmp_path: Path) -> None:
    found = expect_pass(gateway_clients.run(5, tmp_path))
    assert found["aborted"] > 0
    assert found["cancelled"] > 0


@pytest.mark.long
def test_an_engine_that_dies_is_said_recorded_and_replaced(tmp_path: Path) -> None:
    expect_pass(gateway_upstream_kill.run(1, tmp_path))


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.usefixtures("broker")
def test_agents_notice_nothing_while_the_broker_is_away(tmp_path: Path) -> None:
    expect_pass(gateway_broker_down.run(15, tmp_path))


@pytest.mark.long
def test_an_engine_that_lies_or_never_ends_teaches_nothing_untrue(tmp_path: Path) -> None:
    found = expect_pass(engine_liar.run(len(engine_liar.LIES), tmp_path))
    assert found["honest"] > 0
