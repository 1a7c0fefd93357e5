"""Row 18: batches arrive out of order inside the window, because idempotence is off.

Some events were recorded by a clock that is a day ahead. For short turns the topics refuse such
timestamps: the batch that holds one fails while those sent behind it arrive. Passes when a fold
accepts exactly the spool's events, and when some records did arrive too early (else nothing was
tested).
"""

import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from events.streams import STREAMS
from ops.command_line import run_command
from ops.faults.scene import Writer, build_figures, compare_logs, scene

HOUR_MS: Final = 3_600_000
ANY_MS: Final = 2**63 - 1
REFUSED_SECONDS: Final = 0.3
TAKEN_SECONDS: Final = 0.7


def run(count: int, folder: Path) -> dict[str, Any]:
    """Refuse such timestamps `count` times while events are shipped."""
    with scene(folder) as stage:
        child = stage.shipping("--unordered")
        child.line()
        writer = Writer(stage.spool, per_second=500, ahead_every=77)
        writer.start()
        with closing(KafkaAdminClient(bootstrap_servers=stage.broker.bootstrap)) as admin:
            for _ in range(count):
                _take_timestamps_up_to(admin, HOUR_MS)
                time.sleep(REFUSED_SECONDS)
                _take_timestamps_up_to(admin, ANY_MS)
                time.sleep(TAKEN_SECONDS)
        writer.finish()
        child.stop()
        stage.ship_the_rest()
        result = compare_logs(stage.spool, stage.kafka)
    figures = build_figures(result, appended=writer.acknowledged)
    figures["passed"] = figures["passed"] and result.beyond_gap > 0
    return figures


def _take_timestamps_up_to(admin: Any, ahead_ms: int) -> None:
    settings = {"message.timestamp.after.max.ms": str(ahead_ms)}
    topics = [stream.topic for stream in STREAMS.values()]
    admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, topic, settings) for topic in topics]
    )


if __name__ == "__main__":
    run_command(__doc__, run, count=200)
