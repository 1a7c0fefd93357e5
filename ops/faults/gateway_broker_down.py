"""Row 8 through the gateway: the broker is away for minutes while agents go on talking.

    python -m ops.faults.gateway_broker_down --count 600

`kintsugi gateway` and `kintsugi ship` on one home, calls at a rate that makes 100 events a second.
Passes when every call was answered and acknowledged all the time, at half the rate of before or
more, the gateway's memory stayed within 128 MB of what it was, the backlog is on the broker within
2 minutes of its return, and what a fold accepts from it is the spool, in order.
"""

import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from events.kafka.log import KafkaLog
from events.sqlite.log import SqliteLog
from ops.faults.gateway_scene import Program, scene
from ops.faults.scene import compare_logs, count_spool_backlog, report, wait_for_drain
from ops.kafka.broker import Broker
from producers.shipper import Shipper

EVENTS_PER_SECOND: Final = 100
CLIENTS: Final = 10
DRAIN_SECONDS: Final = 120
GROWTH_BYTES: Final = 128 << 20
"""Half of it is what the gateway may remember of sessions."""
BEFORE_SECONDS: Final = 10
"""Seconds for which the recorded rate is measured while the broker is up."""


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Away for `count` seconds."""
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
        # Two events a call; half of what is praised ends a tenth more.
        options = {"per_second": EVENTS_PER_SECOND / 2 / CLIENTS, "pace_ms": 0}
        with stage.run_talkers(CLIENTS, seed, **options), _Memory(stage.gateway) as memory:
            _wait_for_shipper(spool, 1, DRAIN_SECONDS)
            stage.wait_for(EVENTS_PER_SECOND)
            usual = _count_new_events(spool, BEFORE_SECONDS) / BEFORE_SECONDS
            before = memory.now()
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
        "resident_most_bytes": memory.most,
        "first_difference": same.first_difference,
    }
    kept_up = recorded >= 0.5 * usual * count
    calm = memory.most - before < GROWTH_BYTES and drain_seconds < DRAIN_SECONDS
    passed = result.sound and same.equal and not refused and kept_up and calm
    return {**result.report(), **figures, "passed": passed}


class _Memory:
    """Watches how much memory a process takes."""

    def __init__(self, program: Program) -> None:
        self.most = 0
        self._program = program
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def now(self) -> int:
        """Bytes."""
        size = self._program.resident_bytes()
        self.most = max(self.most, size)
        return size

    def _watch(self) -> None:
        while not self._stop.wait(1):
            self.now()


def _count_new_events(spool: SqliteLog, seconds: float) -> int:
    """Events that the next so many seconds add."""
    first = sum(spool.end("rollouts"))
    time.sleep(seconds)
    return sum(spool.end("rollouts")) - first


def _wait_for_shipper(spool: SqliteLog, least: int, patience: float) -> None:
    deadline = time.monotonic() + patience
    while sum(spool.read_ship_offsets("rollouts")) < least:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was shipped in {patience:g} seconds; see ship.log")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(report("gateway_broker_down", run, 600))
