"""A broker, a spool, appending and shipping processes, and a comparison, for the Kafka faults.

    python -m ops.faults.scene ship   --spool F --bootstrap H:P [--unordered]
    python -m ops.faults.scene append --spool F --per-second R

These processes run until SIGTERM and print a line for each thing that a driver waits for.
"""

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from events.envelope import derive_id
from events.errors import KintsugiError
from events.kafka.log import KafkaLog
from events.log import Entry, EventLog, now_ms
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS, STREAMS
from ops.kafka.broker import Broker
from ops.processes import ROOT, Program
from ops.waits import Worker
from producers.shipper import Shipper, count_backlog


@dataclass
class Comparison:
    """The result of comparing a spool with the records that a fold accepts from the broker."""

    equal: bool = True
    first_difference: str | None = None
    accepted: int = 0
    duplicates: int = 0
    beyond_gap: int = 0
    """Number of records that arrived before their predecessor."""


def entries(begin: int, count: int, value_bytes: int, ahead_every: int = 0) -> list[Entry]:
    """Return numbered events; every 50th is of `learning`, every `ahead_every`-th a day ahead."""
    batch = []
    for number in range(begin, begin + count):
        stream = "learning" if number % 50 == 0 else "rollouts"
        place = 0 if stream == "learning" else number % ROLLOUTS.partitions
        filler = random.Random(number).randbytes(value_bytes)
        headers = (("ce_id", derive_id("fault", str(number)).encode()),)
        ahead_ms = 86_400_000 if ahead_every and number % ahead_every == 0 else 0
        batch.append(Entry(stream, place, f"key-{number}", headers, filler, now_ms() + ahead_ms))
    return batch


def compare_logs(spool: EventLog, kafka: EventLog) -> Comparison:
    """Accept only next sequences from the broker, as a fold does; compare with the spool."""
    result = Comparison()
    for stream in STREAMS.values():
        for place in range(stream.partitions):
            _compare(spool, kafka, stream.name, place, result)
    return result


def _compare(spool: EventLog, kafka: EventLog, stream: str, place: int, result: Comparison) -> None:
    following = 0
    at = kafka.start(stream)[place]
    while records := kafka.read(stream, place, at):
        at = records[-1].offset + 1
        wanted = {
            record.sequence: record for record in spool.read(stream, place, following, len(records))
        }
        for record in records:
            if record.sequence < following:
                result.duplicates += 1
            elif record.sequence > following:
                result.beyond_gap += 1
            else:
                mine = wanted[record.sequence]
                if _facts(record) != _facts(mine):
                    result.equal = False
                    result.first_difference = f"{stream}/{place} sequence {record.sequence}"
                    return
                following += 1
                result.accepted += 1
    end = spool.end(stream)[place]
    if following != end:
        result.equal = False
        result.first_difference = f"{stream}/{place} has {following} of {end}"


def _facts(record: Any) -> tuple[object, ...]:
    return (
        record.source,
        record.sequence,
        record.key,
        record.headers,
        record.value,
        record.recorded_ms,
    )


class Writer(Worker):
    """A thread that appends at a rate; `acknowledged` counts the confirmed records."""

    def __init__(
        self, spool: EventLog, per_second: int, value_bytes: int = 500, ahead_every: int = 0
    ) -> None:
        super().__init__("writer")
        self.acknowledged = 0
        self.longest_seconds = 0.0
        self._spool = spool
        self._per_second = per_second
        self._make = partial(entries, value_bytes=value_bytes, ahead_every=ahead_every)

    def work(self) -> None:
        """Append until the stop."""
        started = time.monotonic()
        while not self.stop_asked.wait(0.02):
            due = int((time.monotonic() - started) * self._per_second) - self.acknowledged
            if due > 0:
                begun = time.monotonic()
                self._spool.append(self._make(self.acknowledged, due))
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - begun)
                self.acknowledged += due


@dataclass
class Scene:
    """A broker with topics and a spool, in one folder."""

    broker: Broker
    spool: SqliteLog
    kafka: KafkaLog

    def ship_the_rest(self) -> None:
        """Ship the spool's remaining records in this process."""
        Shipper(self.spool, self.kafka.sender).ship_once(timeout_seconds=300)

    def shipping(self, *options: str) -> "Child":
        """Start a shipper process."""
        bootstrap = self.broker.bootstrap
        return Child("ship", "--spool", str(self.spool.path), "--bootstrap", bootstrap, *options)


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Yield a scene with a started broker, and stop it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        Broker(folder / "broker") as broker,
        closing(KafkaLog(broker.bootstrap, replication=1)) as kafka,
        closing(SqliteLog(folder / "spool.db", durability="process")) as spool,
    ):
        kafka.ensure_topics()
        yield Scene(broker, spool, kafka)


class Child(Program):
    """A process of this module: `ship` or `append`."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(Path(os.devnull), "ops.faults.scene", *arguments)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._arguments], env=self._environment, cwd=ROOT,
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def line(self) -> str:
        """Wait for the next line that it prints."""
        return self._pipe.readline().decode().strip()

    def request_stop(self) -> None:
        """Send SIGTERM and do not wait, because the process may still print lines."""
        self._active_process.terminate()

    def kill(self) -> None:
        """Send SIGKILL and close the pipe."""
        super().kill()
        self._pipe.close()

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        status = super().stop()
        self._pipe.close()
        return status

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._active_process.stdout is not None, "it was opened"
        return self._active_process.stdout


def describe_read(log: EventLog, offset: int) -> str:
    """Read a partition at `offset`; return the number of records or the error's class."""
    try:
        return f"{len(log.read('rollouts', 1, offset))} records"
    except KintsugiError as error:
        return type(error).__name__


def count_spool_backlog(spool: SqliteLog) -> int:
    """Return the number of the spool's records that the broker has not acknowledged."""
    return count_backlog(spool, {stream: spool.end(stream) for stream in STREAMS})


def wait_for_drain(spool: SqliteLog, per_second: int, most_seconds: float) -> float:
    """Wait, at most twice `most_seconds`, until the shipper is less than a second behind. Return
    the waited seconds."""
    began = time.monotonic()
    while count_spool_backlog(spool) > per_second and time.monotonic() - began < 2 * most_seconds:
        time.sleep(0.1)
    return time.monotonic() - began


def build_figures(result: Comparison, **more: Any) -> dict[str, Any]:
    """Return the driver's figures."""
    return {"passed": result.equal, **asdict(result), **more}


def _ship(spool: Path, bootstrap: str, idempotent: bool, stop: threading.Event) -> None:
    kafka = KafkaLog(bootstrap, replication=1, delivery_seconds=20, timeout_seconds=5)
    log = SqliteLog(spool, durability="process")
    print("ready", flush=True)
    # Small batches without delay, so that several of one partition are in flight.
    unordered = partial(kafka.sender, idempotent=False, linger_ms=0, batch_bytes=1_000)
    shipper = Shipper(log, kafka.sender if idempotent else unordered)
    try:
        shipper.run(stop)
    finally:
        log.close()
        kafka.close()


def _append(spool: Path, per_second: int, stop: threading.Event) -> None:
    log = SqliteLog(spool)
    writer = Writer(log, per_second)
    writer.start()
    print("ready", flush=True)
    stop.wait()
    writer.finish()
    print(
        json.dumps({"acknowledged": writer.acknowledged, "longest": writer.longest_seconds}),
        flush=True,
    )
    log.close()


def main() -> int:
    """Run one of the processes."""
    parser = argparse.ArgumentParser(prog="python -m ops.faults.scene")
    parser.add_argument("action", choices=("ship", "append"))
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--per-second", type=int, default=100)
    parser.add_argument("--unordered", action="store_true", help="ship without idempotence")
    chosen = parser.parse_args()
    # kafka-python logs every failed connection, but a missing broker is expected here.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if chosen.action == "ship":
        _ship(chosen.spool, chosen.bootstrap, not chosen.unordered, stop)
    else:
        _append(chosen.spool, chosen.per_second, stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
