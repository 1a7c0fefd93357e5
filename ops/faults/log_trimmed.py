"""Row 11: the log's start was moved past the position that a reader stored.

Passes when every read from there raises LogTruncated and does not continue at the new start. This
must hold for a connected reader and for a new one. Reading from the new start must work.
"""

from pathlib import Path
from typing import Any

from events.errors import LogTruncated
from events.kafka.log import KafkaLog
from ops.command_line import run_command
from ops.faults.scene import describe_read, entries, scene


def run(count: int, folder: Path) -> dict[str, Any]:
    """Trim the log `count` times."""
    outcomes: list[str] = []
    with scene(folder) as stage:
        operator = KafkaLog(stage.broker.bootstrap, replication=1)
        at = 0
        for _ in range(count):
            stage.kafka.append(entries(0, 80, 200))
            (end,) = {stage.kafka.end("rollouts")[1]}
            stage.kafka.read("rollouts", 1, at, limit=2)
            operator.trim("rollouts", 1, end - 3)
            fresh = KafkaLog(stage.broker.bootstrap, replication=1)
            outcomes += [describe_read(log, at) for log in (stage.kafka, fresh)]
            outcomes.append(describe_read(fresh, end - 3))
            fresh.close()
            at = end - 3
        operator.close()
    wanted = [LogTruncated.__name__, LogTruncated.__name__, "3 records"] * count
    wrong = [outcome for outcome, right in zip(outcomes, wanted, strict=True) if outcome != right]
    return {"passed": not wrong, "wrong": wrong[:3]}


if __name__ == "__main__":
    run_command(__doc__, run, count=20)
