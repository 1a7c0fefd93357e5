"""Rows 7 and 9: the broker is stopped, killed and started again under a running shipper.

Passes when a fold accepts exactly the spool's events and the shipper's memory never grew by more
than 256 MB after the first fault. Values of 20 KB come faster than the window drains, so a producer
that buffered without limit would show. Not covered: the single error codes that the row names, and
a leader that moves, which needs a second node.
"""

import random
import time
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.scene import Scene, Writer, build_figures, compare_logs, scene
from ops.waits import repeat

LIMIT_BYTES: Final = 256 << 20


def flap(stage: Scene, count: int, kill_only: bool) -> None:
    """Stop or kill the broker `count` times, for up to 3 s each."""
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
    """Stop or kill the broker `count` times while events are shipped."""
    with scene(folder) as stage:
        child = stage.shipping()
        child.line()
        time.sleep(1)
        baseline = child.resident_bytes()
        sizes: list[int] = []
        writer = Writer(stage.spool, per_second=300, value_bytes=20_000)
        with repeat(lambda: sizes.append(child.resident_bytes()), every=0.1):
            writer.start()
            flap(stage, count, kill_only)
            writer.finish()
            alive = child.runs()
        over = max(sizes) - baseline
        child.stop()
        stage.ship_the_rest()
        figures = build_figures(
            compare_logs(stage.spool, stage.kafka), appended=writer.acknowledged
        )
    figures["over_baseline_mb"] = round(over / 1e6, 1)
    figures["passed"] = figures["passed"] and alive and over < LIMIT_BYTES
    return figures


if __name__ == "__main__":
    run_command(__doc__, run, count=20)
