"""docs/status.md names the checks of the doctor, all of them and no others."""

import re
from pathlib import Path

from daemon.status.doctor.report import CHECKS, ON_KAFKA

PAGE = Path(__file__).parents[2] / "docs/status.md"


def test_every_check_is_told() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in re.findall(r"`([^`]+)`", row)] == [*CHECKS, *ON_KAFKA]
