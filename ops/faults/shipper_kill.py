"""Row 3: `kill -9` of the shipper at random moments while events keep coming.

Passes when, in each partition, a fold accepts from the broker exactly the spool's records.
"""

import random
import time
from pathlib import Path
from typing import Any

from ops.command_line import run_command
from ops.faults.scene import Writer, build_figures, compare_logs, scene


def run(count: int, folder: Path) -> dict[str, Any]:
    """Kill the shipper `count` times."""
    chance = random.Random(3)
    with scene(folder) as stage:
        writer = Writer(stage.spool, per_second=500)
        writer.start()
        for _ in range(count):
            child = stage.shipping()
            child.line()
            # A shipper connects in about 0.2 s and then ships the backlog.
            time.sleep(chance.uniform(0.05, 1.0))
            child.kill()
        writer.finish()
        stage.ship_the_rest()
        return build_figures(compare_logs(stage.spool, stage.kafka), appended=writer.acknowledged)


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
