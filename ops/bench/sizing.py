"""Measure the bytes of a call and a rollout in log, archive and tables, and the fsyncs.

    python -m ops.bench.sizing --calls 2000

Method. The engine and the clients of the gateway's bench ask our gateway, a process of its own with
everything it does by default (tokens captured, two events per call, fsync): conversations of eight
calls with a system prompt of 2 KB and three tools, half of them streamed, `calls` of them at rates
of 1, 10 and 100 a second. Then the sessions are ended and made into rollouts, as `work` does it.

    bytes     of the files, after the calls and again after the rollouts, less those of empty ones;
              what a table or an index takes is in it, a write-ahead log is not
    archive   of an export's files
    syncs     calls of fsync and fdatasync by a library preloaded into the gateway, per call, at
              each rate: appends that wait at the same moment share one
    a_day     what follows for 1, 10 and 100 calls a second, all day

Linux only; needs a C compiler.
"""

import asyncio
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from daemon.config.settings import load
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from events.archive.export import export
from events.envelope import utc_now
from ops.bench.gateway.load import Load, Target
from ops.bench.gateway.sides import Home, Syncs, engine, ours
from ops.command_line import run_command

RATES: Final = (1.0, 10.0, 100.0)
_DAY_SECONDS: Final = 86_400
_GIGABYTE: Final = 1e9


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a home's log, archive and tables."""

    log: int
    archive: int
    sql: int

    def __sub__(self, other: "Size") -> "Size":
        return Size(self.log - other.log, self.archive - other.archive, self.sql - other.sql)

    def per(self, count: int) -> dict[str, int]:
        """Return the sizes divided by `count`."""
        return {
            "log_bytes": round(self.log / count), "archive_bytes": round(self.archive / count),
            "sql_bytes": round(self.sql / count),
        }  # fmt: skip


def measure(folder: Path, calls: int) -> dict[str, Any]:
    """Return all figures of one run."""
    empty = _size(folder, _new_home(folder / "empty"), "empty")
    home = Home(folder)
    syncs = _run_calls(folder, home, calls)
    total = sum(count for count, _ in syncs.values())
    with App(load(home=home.folder)) as app:
        app.settle()
    after_calls = _size(folder, home.folder, "calls")
    with App(load(home=home.folder)) as app:
        later = utc_now() + timedelta(seconds=2 * app.settings.sessions.idle_seconds)
        rollouts = close_sessions(app, later).rollouts
    after_rollouts = _size(folder, home.folder, "rollouts")
    of_calls, of_rollouts = after_calls - empty, after_rollouts - after_calls
    return {
        "calls": total, "rollouts": rollouts,
        "per_call": of_calls.per(total), "per_rollout": of_rollouts.per(rollouts),
        "syncs": {rate: {"calls": count, "per_call": per} for rate, (count, per) in syncs.items()},
        "a_day": {f"{rate:g}": _a_day(rate, after_rollouts - empty, total) for rate in RATES},
    }  # fmt: skip


def _run_calls(folder: Path, home: Home, calls: int) -> dict[str, tuple[int, float]]:
    """Return rate -> (calls, fsyncs per call)."""
    syncs = Syncs(folder)
    results: dict[str, tuple[int, float]] = {}
    with ExitStack() as stack:
        direct = stack.enter_context(engine(folder))
        gateway = stack.enter_context(ours(folder, home, syncs, direct))
        for rate, share in zip(RATES, (0.01, 0.09, 0.9), strict=True):
            before = syncs.count
            count = asyncio.run(_send_calls(gateway.target, rate, max(1.0, calls * share / rate)))
            results[f"{rate:g}"] = (count, round((syncs.count - before) / max(1, count), 2))
    return results


async def _send_calls(target: Target, rate: float, seconds: float) -> int:
    return len(await Load(target, None).run_at_rate(rate, seconds, 0))


def _new_home(folder: Path) -> Path:
    with App(load(home=folder)) as app:
        app.settle()
    return folder


def _size(folder: Path, home: Path, name: str) -> Size:
    with App(load(home=home)) as app:
        archive = folder / f"archive-{name}"
        export(app.readable_log, app.blobs, archive)
    kept = sum(path.stat().st_size for path in archive.rglob("*") if path.is_file())
    return Size(_pages(home / "log.db"), kept, _pages(home / "kintsugi.db"))


def _pages(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(count) * int(size)


def _a_day(rate: float, size: Size, calls: int) -> dict[str, float]:
    factor = rate * _DAY_SECONDS / calls / _GIGABYTE
    return {
        "log_gb": round(size.log * factor, 2), "archive_gb": round(size.archive * factor, 2),
        "sql_gb": round(size.sql * factor, 2),
    }  # fmt: skip


if __name__ == "__main__":
    run_command(__doc__, measure, indent=2, calls=2000)
