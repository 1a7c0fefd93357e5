"""Row 8 through the gateway: the broker is away for minutes while agents go on talking.

    python -m ops.faults.gateway_broker_down --count 600

`kintsugi gateway` and `kintsugi ship` on one home, calls at a rate that makes 100 events a second.
Passes when every call was answered and acknowledged, at half of the earlier rate or more, and the
gateway's memory grew by 128 MB at most. The backlog must be on the broker within 2 minutes of its
return, and a fold must accept from it what the spool holds, in order.
"""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from events.kafka.log import KafkaLog
from events.sqlite.log import SqliteLog
from ops.command_line import run_command
from ops.faults.gateway_scene import scene
from ops.faults.scene import compare_logs, count_spool_backlog, wait_for_drain
from ops.kafka.broker import Broker
from ops.processes import Program
from ops.waits import repeat, until
from producers.shipper import Shipper

EVENTS_PER_SECOND: Final = 100
CLIENTS: Final = 10
DRAIN_SECONDS: Final = 120
GROWTH_BYTES: Final = 128 << 20
"""Limit on the growth of the gateway's memory; its memory of sessions may take half of it."""
BEFORE_SECONDS: Final = 10


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Stop the broker for `count` seconds and return the driver's result."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(folder / "broker"))
        stage = stack.enter_context(scene(folder))
        home, bootstrap = stage.gateway.home, broker.bootstrap
        shipper = Program(
            folder / "ship.log", "daemon", "ship",
            KINTSUGI_HOME=str(home), KINTSUGI_KAFKA_BOOTSTRAP_SERVERS=bootstrap,
        )  # fmt: skip
        stack.callback(shipper.kill)
        shipper.launch()
        spool = SqliteLog(home / "log.db")
        stack.callback(spool.close)
        # Two events per call, and about a tenth more for feedback.
        options = {"per_second": EVENTS_PER_SECOND / 2 / CLIENTS, "pace_ms": 0}
        sizes: list[int] = []

        def look() -> None:
            sizes.append(stage.gateway.resident_bytes())

        with stage.run_talkers(CLIENTS, seed, **options), repeat(look, every=1):
            shipped = partial(spool.read_ship_offsets, "rollouts")
            until(lambda: any(shipped()), "something is shipped; see ship.log", DRAIN_SECONDS)
            stage.wait_for(EVENTS_PER_SECOND)
            usual = _count_new_events(spool, BEFORE_SECONDS) / BEFORE_SECONDS
            before = stage.gateway.resident_bytes()
            broker.stop()
            recorded = _count_new_events(spool, count)
            backlog = count_spool_backlog(spool)
            broker.start()
            drain_seconds = wait_for_drain(spool, EVENTS_PER_SECOND, DRAIN_SECONDS)
        shipper.stop()
        refused = sum(not seen.has_ack for seen in stage.ledger.seen)
        result = stage.stop_and_audit()
        kafka = KafkaLog(bootstrap, replication=1)
        stack.callback(kafka.close)
        Shipper(spool, kafka.sender).ship_once(timeout_seconds=DRAIN_SECONDS)
        same = compare_logs(spool, kafka)
    figures = {
        "recorded": recorded,
        "share_of_the_usual_rate": round(recorded / (usual * count), 2),
        "backlog": backlog,
        "refused": refused,
        "drain_seconds": round(drain_seconds, 1),
        "resident_before_bytes": before,
        "resident_most_bytes": max(sizes),
        "first_difference": same.first_difference,
    }
    kept_up = recorded >= 0.5 * usual * count
    calm = max(sizes) - before < GROWTH_BYTES and drain_seconds < DRAIN_SECONDS
    passed = result.sound and same.equal and not refused and kept_up and calm
    return {**result.report(), **figures, "passed": passed}


def _count_new_events(spool: SqliteLog, seconds: float) -> int:
    first = sum(spool.end("rollouts"))
    time.sleep(seconds)
    return sum(spool.end("rollouts")) - first


if __name__ == "__main__":
    run_command(__doc__, run, count=600)
