"""The folding process that drivers kill and pause, and the comparison afterwards.

    python -m ops.faults.folding --log FILE --database URL [--batch N]

folds until SIGTERM, then prints its counters as one line of JSON. `Scene` holds a log, a database
of either kind and an uninterrupted fold of the same log to compare with.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, make_url

from consumers import database
from consumers.digest import digest, row_counts
from consumers.position import position
from consumers.rebuild import rebuild
from consumers.runner import Runner
from events.log import Entry
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from migrations.upgrade import upgrade
from ops.mix import make_round, mix
from ops.postgres.server import Postgres
from ops.processes import ROOT
from ops.waits import until

READY: Final = "ready\n"
DATABASES: Final = ("sqlite", "postgres")


@dataclass
class Scene:
    """A growing log, and a database that is folded from it under faults."""

    log: SqliteLog
    file: Path
    url: str
    engine: Engine
    appended: int = 0
    rounds: int = 0

    def grow(self, events: int) -> None:
        """Append `events` events of ops/mix.py, and a round over the events before them."""
        before = {
            str(partition): {self.log.source: end - 1}
            for partition, end in enumerate(self.log.end(ROLLOUTS.name))
            if end
        }
        entries: list[Entry] = list(mix(events, start=self.appended))
        if before:
            entries.append(make_round({ROLLOUTS.name: before}, self.rounds))
            self.rounds += 1
        self.appended += events
        self.log.append(entries)

    def start(self, batch: int = 50) -> "subprocess.Popen[str]":
        """Start a folding process. Return it when it has opened log and database."""
        command = [sys.executable, "-m", "ops.faults.folding", "--log", str(self.file)]
        command += ["--database", self.url, "--batch", str(batch)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None, "asked for above"
        if process.stdout.readline() != READY:
            raise RuntimeError(f"the folding process ended with {process.wait()}; see above")
        return process

    def count_fold_events(self) -> int:
        """Return the number of rollout events that the database has folded."""
        with database.read_transaction(self.engine) as connection:
            held = position(connection).get(ROLLOUTS.name, {})
        return sum(last + 1 for sources in held.values() for last in sources.values())

    def wait_for_fold(self) -> None:
        """Wait until everything appended is folded. Raise TimeoutError."""
        until(
            lambda: (
                self.count_fold_events() >= sum(self.log.end(ROLLOUTS.name))
                and self._rounds() >= self.rounds
            ),
            f"{self.appended} events are folded",
        )

    def _rounds(self) -> int:
        with database.read_transaction(self.engine) as connection:
            return row_counts(connection)["cycles"]

    def verdict(self) -> dict[str, Any]:
        """Compare the live tables with a rebuild and return the result."""
        rebuilt = rebuild(self.log, self.engine)
        with database.read_transaction(self.engine) as connection:
            live, rows = digest(connection), row_counts(connection)
        return {
            "events": self.appended,
            "rounds": self.rounds,
            "dead_letters": rows["dead_letters"],
            "hash": live[:16],
            "equal": bool(rebuilt.equal) and live == rebuilt.hash,
            "difference": str(rebuilt.difference) if rebuilt.difference else None,
        }


def stop(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Stop a folding process with SIGTERM and return its counters."""
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    if process.returncode != 0:
        raise RuntimeError(f"the folding process ended with {process.returncode}; see above")
    counters: dict[str, Any] = json.loads(out)
    return counters


@contextmanager
def scene(kind: str, folder: Path) -> Iterator[Scene]:
    """Open a scene on SQLite or on a new PostgreSQL."""
    if kind == "sqlite":
        with open_scene(f"sqlite:///{folder / 'projection.db'}", folder) as stage:
            yield stage
        return
    with postgres() as server, open_scene(server.create_database(), folder) as stage:
        yield stage


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL server with fsync, in a folder that its own user may enter."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-postgres-") as place:
        server = Postgres(Path(place))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def create_tables(server: Postgres) -> str:
    """Return the URL of a new database with the current tables."""
    url = server.create_database()
    engine = database.open_database(url)
    upgrade(engine)
    engine.dispose()
    return url


@contextmanager
def open_scene(url: str, folder: Path) -> Iterator[Scene]:
    """Open a scene on the database at `url`."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = database.open_database(url)
    upgrade(engine)
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        log = stack.enter_context(closing(SqliteLog(folder / "log.db")))
        yield Scene(log, folder / "log.db", url, engine)


def main() -> None:
    """Fold until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--database", type=make_url, required=True)
    parser.add_argument("--batch", type=int, default=50)
    options = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stopping.set())
    log = SqliteLog(options.log)
    engine = database.open_database(options.database.render_as_string(hide_password=False))
    runner = Runner(log, engine, batch_events=options.batch)
    print(READY, end="", flush=True)
    runner.run(stopping)
    log.close()
    engine.dispose()
    print(json.dumps(asdict(runner.counters)))


if __name__ == "__main__":
    main()
