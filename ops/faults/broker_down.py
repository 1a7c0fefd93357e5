"""Row 8: the broker is away for minutes while a process appends 100 events a second.

Passes when all its appends were acknowledged, the backlog is on the broker within 2 minutes after
its return, and a fold of the broker's records accepts exactly the spool's events.
"""

import json
import time
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.scene import (
    Child,
    build_figures,
    compare_logs,
    count_spool_backlog,
    scene,
    wait_for_drain,
)

PER_SECOND: Final = 100
DRAIN_SECONDS: Final = 120


def run(count: int, folder: Path) -> dict[str, Any]:
    """Stop the broker for `count` seconds and return the driver's result."""
    with scene(folder) as stage:
        shipper = stage.shipping()
        shipper.line()
        spool = str(stage.spool.path)
        appender = Child("append", "--spool", spool, "--per-second", str(PER_SECOND))
        appender.line()
        time.sleep(2)
        stage.broker.stop()
        time.sleep(count)
        backlog = count_spool_backlog(stage.spool)
        stage.broker.start()
        drain_seconds = wait_for_drain(stage.spool, PER_SECOND, DRAIN_SECONDS)
        appender.request_stop()
        acknowledged = json.loads(appender.line())
        appender.stop()
        shipper.stop()
        stage.ship_the_rest()
        figures = build_figures(
            compare_logs(stage.spool, stage.kafka), backlog=backlog, **acknowledged
        )
    figures["drain_seconds"] = round(drain_seconds, 1)
    kept_up = acknowledged["acknowledged"] >= PER_SECOND * count
    figures["passed"] = figures["passed"] and kept_up and drain_seconds < DRAIN_SECONDS
    return figures


if __name__ == "__main__":
    run_command(__doc__, run, count=600)
