"""How the bench talks to a side, and what both sides train with. The standard library alone: one of
them runs in an environment without our requirements."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

MODEL: Final = "model"
ADAPTER: Final = "adapter"
ROWS: Final = "rows.json"
ROLLOUTS: Final = "rollouts.json"

AGREEING: Final = 3
"""Optimizer steps on the batch whose ratios are to the policy before the first of them."""
LR: Final = 2e-3
BETAS: Final = (0.9, 0.98)
EPS: Final = 1e-8
NORM: Final = 1.0
"""Largest norm of a gradient."""
CLIP: Final = (0.2, 0.28)
"""Below and above a ratio of 1."""

Answers = Mapping[str, Callable[..., dict[str, Any]]]


def serve(answers: Answers) -> None:
    """One JSON document out for each line in, the first one unasked; until standard input ends."""
    before = status("VmRSS")
    _say({"ready": True})
    for line in sys.stdin:
        name, *arguments = line.split()
        _say(answers[name](*arguments) | {"before": before, "peak": status("VmHWM")})


def status(field: str) -> int:
    """Bytes, as Linux counts them for this process: `VmRSS` now resident, `VmHWM` the most so far.

    Not getrusage's maximum, which begins with that of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/self/status has no {field}; the bench needs Linux")


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)
