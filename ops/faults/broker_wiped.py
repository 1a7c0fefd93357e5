"""Row 10: the broker's data is gone and a position beyond its new end is asked for.

Passes when every read says AheadOfLog, with the topics missing and with empty ones made anew, in
the reader that was connected all along and in a fresh one, and when nothing was written meanwhile.
"""

import sys
from pathlib import Path
from typing import Any

from events.errors import AheadOfLog, KintsugiError
from events.kafka.log import KafkaLog
from events.streams import STREAMS
from ops.faults.scene import Scene, entries, report, scene


def run(count: int, folder: Path) -> dict[str, Any]:
    """`count` times wiped."""
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
    fresh = KafkaLog(stage.broker.bootstrap, replication=1)
    try:
        return [_outcome(log, at) for log in (stage.kafka, fresh)]
    finally:
        fresh.close()


def _outcome(log: KafkaLog, at: int) -> str:
    try:
        return f"{len(log.read('rollouts', 1, at))} records"
    except KintsugiError as error:
        return type(error).__name__


if __name__ == "__main__":
    sys.exit(report("broker_wiped", run, 10))
