"""Row 10: the broker's data is gone and a position beyond its new end is asked for.

Passes when every read raises AheadOfLog and nothing was written meanwhile. This is checked with
missing topics and with new empty ones, by a connected reader and by a new one.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

from events.errors import AheadOfLog
from events.kafka.log import KafkaLog
from events.streams import STREAMS
from ops.command_line import run_command
from ops.faults.scene import Scene, describe_read, entries, scene


def run(count: int, folder: Path) -> dict[str, Any]:
    """Wipe the broker `count` times."""
    outcomes: list[str] = []
    with scene(folder) as stage:
        for _ in range(count):
            stage.kafka.append(entries(0, 100, 200))
            at = len(stage.kafka.read("rollouts", 1, 0))
            stage.broker.wipe()
            stage.broker.start()
            outcomes += _read_both(stage, at)
            stage.kafka.ensure_topics()
            outcomes += _read_both(stage, at)
            if any(sum(stage.kafka.end(stream)) for stream in STREAMS):
                outcomes.append("something was written")
    wrong = [outcome for outcome in outcomes if outcome != AheadOfLog.__name__]
    return {"passed": not wrong and len(outcomes) == 4 * count, "wrong": wrong[:3]}


def _read_both(stage: Scene, at: int) -> list[str]:
    with closing(KafkaLog(stage.broker.bootstrap, replication=1)) as fresh:
        return [describe_read(log, at) for log in (stage.kafka, fresh)]


if __name__ == "__main__":
    run_command(__doc__, run, count=10)
