"""Row 1: kill -9 processes that append to one log, at random, again and again.

    python -m ops.faults.kill_appender --count 100

Passes when every acknowledged event is in the log, no event is there twice, no batch in part, and
offsets have no gaps. Several processes append at once; each is killed alone while the others
continue.
"""

import random
import subprocess
from pathlib import Path
from typing import Any, Final

from events.sqlite.log import SqliteLog
from ops.command_line import run_command
from ops.faults.appender import audit, read_ack_ids, start
from ops.waits import until

START_SECONDS: Final = 60.0

LIFE_SECONDS: Final = 0.3
"""Most seconds that a process lives after its first acknowledgement; the time is random."""


def run(count: int, folder: Path, processes: int = 4, seed: int = 0) -> dict[str, Any]:
    """Kill `count` processes, `processes` at a time, and audit the log."""
    source = random.Random(seed)
    log = folder / "log.db"
    ack_files: list[Path] = []
    for first in range(0, count, processes):
        round_files = [
            folder / f"acknowledged-{n}" for n in range(first, min(first + processes, count))
        ]
        ack_files += round_files
        running = [start(log, file, f"--seed={source.randrange(1 << 30)}") for file in round_files]
        try:
            for process, file in zip(running, round_files, strict=True):
                _wait_for_first(process, file)
            for process in source.sample(running, len(running)):
                _kill_later(process, source.uniform(0, LIFE_SECONDS))
        finally:
            for process in running:
                process.kill()
                process.wait()
    opened = SqliteLog(log)
    result = audit(opened, read_ack_ids(ack_files))
    opened.close()
    return {"fault": "kill -9 appender", "kills": count, **result.report(), "passed": result.sound}


def _wait_for_first(process: "subprocess.Popen[bytes]", ack_file: Path) -> None:
    until(
        lambda: (ack_file.exists() and ack_file.stat().st_size) or process.poll() is not None,
        f"appender {process.pid} acknowledges something; see its output above", START_SECONDS,
    )  # fmt: skip


def _kill_later(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return
    raise RuntimeError(f"appender {process.pid} ended by itself with {code}")


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
