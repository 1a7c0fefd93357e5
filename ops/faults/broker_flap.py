"""Rows 7 and 9: the broker is stopped, killed and started again under a running shipper.

Passes when what a fold accepts equals the spool and the shipper never took more than 256 MB above
its memory before the first fault. Values of 20 KB come faster than the window drains, so a producer
that buffered without limit would show. Not covered: the single error codes that the row names, and
a leader that moves, which needs a second node.
"""

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from ops.faults.scene import Child, Scene, Writer, build_figures, compare_logs, report, scene

LIMIT_BYTES: Final = 256 << 20


class _Peak(threading.Thread):
    """The most memory a process took, looked at ten times a second."""

    def __init__(self, child: Child) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._child = child
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.1):
            self.bytes = max(self.bytes, self._child.resident_bytes())

    def finish(self) -> int:
        self._done.set()
        self.join()
        return self.bytes


def flap(stage: Scene, count: int, kill_only: bool) -> None:
    """Take the broker away `count` times, for up to 3 s each."""
    chance = random.Random(7)
    for number in range(count):
        time.sleep(chance.uniform(0.5, 2.0))
        if kill_only or number % 2:
            stage.broker.kill()
        else:
            stage.broker.stop()
        time.sleep(chance.uniform(0.0, 3.0))
        stage.broker.start()


def run(count: int, folder: Path, kill_only: bool = False) -> dict[str, Any]:
    """`count` times away and back."""
    with scene(folder) as stage:
        child = stage.shipping()
        child.line()
        time.sleep(1)
        baseline = child.resident_bytes()
        peak = _Peak(child)
        peak.start()
        writer = Writer(stage.spool, per_second=300, value_bytes=20_000)
        writer.start()
        flap(stage, count, kill_only)
        appended = writer.finish()
        alive = child.runs()
        over = peak.finish() - baseline
        child.stop()
        stage.ship_the_rest()
        figures = build_figures(compare_logs(stage.spool, stage.kafka), appended=appended)
    figures["over_baseline_mb"] = round(over / 1e6, 1)
    figures["passed"] = figures["passed"] and alive and over < LIMIT_BYTES
    return figures


if __name__ == "__main__":
    sys.exit(report("broker_flap", run, 20))
