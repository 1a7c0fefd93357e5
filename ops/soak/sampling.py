"""Sample the resources of a stack every few seconds (stage -> samples).

Per role from /proc: its own memory (anonymous pages, resident or swapped; file pages are the
system's cache), file handles, threads and age. For the whole: disk use by folder, lag and calls
from /metrics, and connections to the database. A figure that cannot be read is absent. Each sample
is written to the file at once, so an interrupted run keeps them.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from consumers.database import DatabaseError
from daemon.metrics.exposition import port_of
from ops.waits import Worker

if TYPE_CHECKING:
    from ops.faults.loop_scene import Scene

MIB: Final = 1 << 20
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PATIENCE_SECONDS: Final = 4.0
"""Timeout of a request for metrics; the roles' collectors give up after two seconds."""
_FOLDERS: Final = ("jobs", "trials", "adapters", "blobs")


@dataclass(frozen=True, slots=True)
class Process:
    """The resources of one process at one moment."""

    pid: int
    age: float
    memory: float
    """MiB of the process's own memory."""
    resident: float
    """Resident MiB, with file pages."""
    handles: int
    threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All figures of the stack at one moment."""

    at: float
    """Seconds since the beginning of the run."""
    roles: Mapping[str, Process]
    figures: Mapping[str, float]


def process(pid: int) -> Process | None:
    """Return the resources of a process; None if it has ended."""
    place = Path("/proc") / str(pid)
    try:
        rows = (place / "status").read_text().splitlines()
        after_name = (place / "stat").read_text().rpartition(")")[2].split()
        handles = len(os.listdir(place / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    status = dict(row.split(":", 1) for row in rows)
    if "VmRSS" not in status:
        return None  # It has ended and was not waited for yet.

    def mib(*names: str) -> float:
        return sum(int(status[name].split()[0]) for name in names) / 1024

    up = float(Path("/proc/uptime").read_text().split()[0])
    return Process(
        pid,
        age=up - int(after_name[19]) / _TICKS,
        memory=mib("RssAnon", "RssShmem", "VmSwap"),
        resident=mib("VmRSS"),
        handles=handles,
        threads=int(status["Threads"]),
    )


def read_metrics(url: str) -> dict[str, float]:
    """Return a role's metrics, each summed over its labels; {} if it does not answer."""
    try:
        answer = httpx2.get(url, timeout=_PATIENCE_SECONDS, trust_env=False)
    except httpx2.HTTPError:
        return {}
    if not answer.is_success:
        return {}
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


class Sampler(Worker):
    """A thread that samples the stack at intervals until it is stopped."""

    def __init__(self, stage: "Scene", seconds: float, file: Path, broker: Path | None) -> None:
        """`broker` is the folder of Kafka's log."""
        super().__init__("sampler")
        self.samples: list[Sample] = []
        self._stage = stage
        self._seconds = seconds
        self._file = file
        self._broker = broker
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def work(self) -> None:
        """Take samples until the stop."""
        with self._file.open("a") as file:
            while not self.stop_asked.wait(self._until_next()):
                sample = self._sample()
                self.samples.append(sample)
                file.write(json.dumps(asdict(sample)) + "\n")
                file.flush()

    def _until_next(self) -> float:
        """Return the seconds until the next multiple of the sampling interval."""
        spent = time.monotonic() - self._began
        return self._seconds - spent % self._seconds

    def _sample(self) -> Sample:
        at = time.monotonic() - self._began
        seen = {name: process(pid) for name, pid in self._stage.processes.find_pids().items()}
        roles = {name: reading for name, reading in seen.items() if reading is not None}
        return Sample(round(at, 2), roles, dict(self._figures()))

    def _figures(self) -> Iterator[tuple[str, float]]:
        yield from self._of_gateway()
        yield from self._of_schedule()
        yield from self._of_disk()
        yield from self._of_database()
        heard = self._stage.customers.heard
        yield "acknowledged", float(len(heard.acknowledged))
        held = self._stage.read_engine_adapters()
        if held is not None:
            yield "engine adapters", float(len(held))

    def _of_gateway(self) -> Iterator[tuple[str, float]]:
        port = self._stage.settings.gateway.port
        metrics = read_metrics(f"http://127.0.0.1:{port}/metrics")
        names = {
            "in flight": "kintsugi_gateway_calls_in_flight",
            "spool lag": "kintsugi_spool_unshipped_events",
            "dropped": "kintsugi_capture_dropped_total",
            "spool events": "kintsugi_spool_events",
        }
        if metrics.get("kintsugi_spool_readable") == 1:
            yield from (
                (name, metrics[metric]) for name, metric in names.items() if metric in metrics
            )

    def _of_schedule(self) -> Iterator[tuple[str, float]]:
        port = port_of(self._stage.settings, "schedule")
        metrics = read_metrics(f"http://127.0.0.1:{port}/metrics")
        if metrics.get("kintsugi_log_readable") == 1:
            yield "fold lag", metrics["kintsugi_projection_lag_events"]
            yield "log events", metrics["kintsugi_log_end_offset"]
            yield "dead letters", metrics["kintsugi_dead_letters"]

    def _of_disk(self) -> Iterator[tuple[str, float]]:
        home = self._stage.settings.home
        yield "log disk", _size(home / "log.db") + _size(home / "log.db-wal")
        yield "log WAL", _size(home / "log.db-wal")
        for name in _FOLDERS:
            yield f"{name} disk", _measure_folder(home / name)
        if self._broker is not None:
            yield "Kafka disk", _measure_folder(self._broker)

    def _of_database(self) -> Iterator[tuple[str, float]]:
        app = self._stage.app
        if app.database.dialect.name == "sqlite":
            file = self._stage.settings.home / "kintsugi.db"
            yield "database disk", _size(file) + _size(file.with_name("kintsugi.db-wal"))
            yield "database WAL", _size(file.with_name("kintsugi.db-wal"))
            return
        with suppress(DatabaseError), app.reading() as connection:
            size = text("SELECT pg_database_size(current_database())")
            yield "database disk", float(connection.execute(size).scalar_one()) / MIB
            count = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            yield "database connections", float(connection.execute(count).scalar_one())


def _size(file: Path) -> float:
    try:
        return file.stat().st_size / MIB
    except FileNotFoundError:
        return 0.0


def _measure_folder(folder: Path) -> float:
    return sum(_size(Path(root) / name) for root, _, names in os.walk(folder) for name in names)
