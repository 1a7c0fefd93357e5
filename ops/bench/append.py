"""Measure how fast events are appended, compared with bare SQLite.

    python -m ops.bench.append --rounds 5 --seconds 3

Method. Values are random bytes, so nothing compresses; everything runs in one process, in turn in
every round, and the medians of the rounds' own ratios are reported (above 1: we are faster).

    log        32 threads, each appending one event at a time to SqliteLog and waiting for it
    bare       one thread, an empty SQLite file with the same durability (WAL, synchronous=FULL,
               SQLite's own checkpoints), one table, `executemany` of finished rows in transactions
               of as many rows as the log reached per commit in the same round; no append
               waits for another: this is what the storage allows and not what 32 callers could have

With durability "power", every group ends with an fsync, so the figures depend on the disk too.
"""

import os
import sqlite3
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from events.log import Entry, Headers, now_ms
from events.sqlite.file import pack_headers
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from ops.command_line import run_command

WRITERS: Final = 32
VALUE_BYTES: Final = 20_000

_VALUES: Final = [os.urandom(VALUE_BYTES) for _ in range(64)]
_HEADERS: Final[Headers] = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"01936f00-0000-7000-8000-000000000000"),
    ("ce_type", b"CallEnded"),
    ("ce_dataversion", b"1"),
    ("ce_subject", b"session-1"),
    ("ce_time", b"2026-01-02T03:04:05.678901Z"),
    ("content-type", b"application/vnd.kintsugi.framed"),
)


def _entry(number: int) -> Entry:
    partition = number % ROLLOUTS.partitions
    value = _VALUES[number % len(_VALUES)]
    return Entry(ROLLOUTS.name, partition, f"session-{partition}", _HEADERS, value, now_ms())


def log_rate(folder: Path, seconds: float) -> tuple[float, float]:
    """Return the events per second of 32 waiting writers, and the mean number per commit."""
    with closing(SqliteLog(folder / "log.db")) as log:
        deadline = time.perf_counter() + seconds
        appended = [0] * WRITERS

        def write(writer: int) -> None:
            while time.perf_counter() < deadline:
                log.append([_entry(writer)])
                appended[writer] += 1

        began = time.perf_counter()
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
        rate = sum(appended) / (time.perf_counter() - began)
        return rate, sum(appended) / log.commits


def bare_rate(folder: Path, seconds: float, group: int) -> float:
    """Return the events per second that SQLite alone writes with `group` events per transaction."""
    with closing(sqlite3.connect(folder / "bare.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(
            "CREATE TABLE record (id INTEGER PRIMARY KEY, stream TEXT, partition INTEGER, "
            '"offset" INTEGER, key TEXT, headers BLOB, value BLOB)'
        )
        headers = pack_headers(_HEADERS)
        rows = [
            ("rollouts", number % 8, number, "session-1", headers, _VALUES[number % len(_VALUES)])
            for number in range(group)
        ]
        began = time.perf_counter()
        done = 0
        while time.perf_counter() < began + seconds:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                'INSERT INTO record (stream, partition, "offset", key, headers, value) '
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
            connection.execute("COMMIT")
            done += group
        return done / (time.perf_counter() - began)


def measure(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the figures of the whole benchmark."""
    figures: list[dict[str, float]] = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            log, group = log_rate(Path(name), seconds)
            rates = {"log": log, "events_per_commit": group}
            rates["bare"] = bare_rate(Path(name), seconds, max(1, round(group)))
        figures.append(rates)
        print(f"round {number + 1}: {rates}", file=sys.stderr)
    document: dict[str, Any] = {
        "benchmark": "append", "writers": WRITERS, "value_bytes": VALUE_BYTES, "rounds": rounds,
        "seconds": seconds,
        "log_over_bare": round(statistics.median(row["log"] / row["bare"] for row in figures), 3),
    }  # fmt: skip
    for name in figures[0]:
        document[f"median_{name}"] = round(statistics.median(row[name] for row in figures), 1)
    return document


if __name__ == "__main__":
    run_command(__doc__, measure, indent=2, rounds=5, seconds=3.0)
