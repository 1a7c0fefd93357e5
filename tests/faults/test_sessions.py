"""Faults of closing sessions, at a twentieth of the full counts (ops/faults/run runs those)."""

from pathlib import Path

import pytest

from ops.faults import session_poison
from tests.faults.reports import expect_pass

pytestmark = pytest.mark.faults


def test_sessions_that_cannot_be_closed_cost_one_dead_letter_each(tmp_path: Path) -> None:
    expect_pass(session_poison.run(6, tmp_path))
