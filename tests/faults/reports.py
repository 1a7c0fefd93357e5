"""Reports of fault drivers."""

import json
from typing import Any


def expect_pass(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a driver, which must have passed."""
    assert report["passed"], json.dumps(report, indent=1)
    return report
