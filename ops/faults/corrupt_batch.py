"""Row 20: a stored batch does not match its checksum.

One bit of a batch in the broker's segment is flipped while the broker is stopped. Passes when a
reader process ends with a LogCorrupt that names the offset, long before its watchdog and without
busy waiting. It must have read the records before the batch and the other partitions, and nothing
behind it. Once the bit is restored, the same program must read to the end.

    python -m ops.faults.corrupt_batch --read H:P      is that reader
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from events.errors import LogCorrupt
from events.kafka.log import KafkaLog
from events.streams import ROLLOUTS
from ops.command_line import run_command
from ops.faults.scene import Scene, entries, scene
from ops.processes import ROOT

PLACE: Final = 1
APPENDS: Final = 6
PER_APPEND: Final = 40
LIMIT_SECONDS: Final = 60


def run(count: int, folder: Path) -> dict[str, Any]:
    """Damage `count` batches, each at another place."""
    chance = random.Random(20)
    wrong: list[dict[str, Any]] = []
    slowest, busiest = 0.0, 0.0
    with scene(folder) as stage:
        for number in range(APPENDS):
            stage.kafka.append(entries(number * PER_APPEND, PER_APPEND, 300))
        whole = _read(stage)
        for _ in range(count):
            with _damage_batch(stage, chance) as offset:
                result = _read(stage)
            again = _read(stage)
            slowest = max(slowest, result["seconds"])
            busiest = max(busiest, result["processor_seconds"])
            if not _right(result, whole, offset) or _facts(again) != _facts(whole):
                wrong.append({"offset": offset, **result})
    return {
        "passed": not wrong and slowest < LIMIT_SECONDS,
        "wrong": wrong[:2],
        "slowest_seconds": round(slowest, 1),
        "processor_seconds": round(busiest, 1),
    }


def _right(result: dict[str, Any], whole: dict[str, Any], offset: int) -> bool:
    others = [read for place, read in enumerate(result["read"]) if place != PLACE]
    return (
        result["status"] == 3
        and f"rollouts/{PLACE} cannot be decoded at offset {offset}," in result["error"]
        and result["read"][PLACE] == offset
        and others == [read for place, read in enumerate(whole["read"]) if place != PLACE]
    )


def _facts(result: dict[str, Any]) -> tuple[object, ...]:
    return result["status"], result["read"]


@contextmanager
def _damage_batch(stage: Scene, chance: random.Random) -> Iterator[int]:
    """Flip one bit of a batch until the block ends; yield the batch's first offset."""
    # Stop cleanly: after a crash the broker checks the segment and truncates the batch.
    stage.broker.stop()
    (segment,) = (stage.broker.data / f"{ROLLOUTS.topic}-{PLACE}").glob("*.log")
    offset, last_byte = chance.choice(_batches(segment)[1:])
    _turn(segment, last_byte)
    stage.broker.start()
    try:
        yield offset
    finally:
        stage.broker.stop()
        _turn(segment, last_byte)
        stage.broker.start()


def _batches(segment: Path) -> list[tuple[int, int]]:
    """Return (first offset, position of the last byte) of each batch. A batch begins with its
    offset (8 bytes) and length (4)."""
    stored = segment.read_bytes()
    batches: list[tuple[int, int]] = []
    at = 0
    while length := int.from_bytes(stored[at + 8 : at + 12], "big"):
        batches.append((int.from_bytes(stored[at : at + 8], "big"), at + 12 + length - 1))
        at += 12 + length
    return batches


def _turn(segment: Path, at: int) -> None:
    with segment.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


def _read(stage: Scene) -> dict[str, Any]:
    command = [sys.executable, "-m", "ops.faults.corrupt_batch", "--read", stage.broker.bootstrap]
    begun = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_SECONDS,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if not done.stdout:
        raise RuntimeError(f"the reader said nothing (exit {done.returncode}): {done.stderr}")
    seconds = time.monotonic() - begun
    return {"status": done.returncode, "seconds": seconds, **json.loads(done.stdout)}


def _reader(bootstrap: str) -> int:
    """Read every partition to its end; return 3 if one is corrupt."""
    read: list[int] = []
    error = ""
    with closing(KafkaLog(bootstrap, replication=1)) as log:
        for place, end in enumerate(log.end("rollouts")):
            at = 0
            try:
                while at < end:
                    at = log.read("rollouts", place, at)[-1].offset + 1
            except LogCorrupt as corruption:
                error = str(corruption)
            read.append(at)
    print(json.dumps({"read": read, "error": error, "processor_seconds": time.process_time()}))
    return 3 if error else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        sys.exit(_reader(sys.argv[2]))
    run_command(__doc__, run, count=10)
