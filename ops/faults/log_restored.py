"""A log is restored from an earlier copy and grows again, beyond the folded offset or less far.
Passes if the fold halts with a reason and changes no row whenever it had folded an event that the
copy lacks, and continues normally if it had not. `kintsugi dlq list`, asked at the first outcome of
each kind, must name the halt and must not say that everything was folded. After a confirmed
rebuild, the tables must equal a fold from the start.
"""

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Container
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

from consumers import database
from consumers.digest import digest
from consumers.position import offsets
from consumers.rebuild import rebuild
from consumers.runner import Runner
from events.errors import AheadOfLog, LogDiverged
from events.log import Cursor, EventLog
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from migrations.upgrade import upgrade
from ops.command_line import run_command
from ops.mix import mix
from ops.processes import run_kintsugi

_MOST: Final = 60
"""Most events per append. The number is small, so that some partitions get no event."""


class _Home:
    def __init__(self, folder: Path, tables: Path, chance: Random) -> None:
        """Begin with a copy of `tables`, a database with empty tables."""
        self.folder = folder
        self.path = folder / "log.db"
        self._copy = folder / "copy.db"
        self._chance = chance
        self._appended = 0
        shutil.copy(tables, folder / "projection.db")
        self.engine = database.open_database(f"sqlite:///{folder / 'projection.db'}")
        self.log = SqliteLog(self.path, durability="process")

    def grow(self, least: int = 0) -> None:
        """Append new events, which no copy of the log has."""
        count = self._chance.randrange(least, _MOST)
        self.log.append(list(mix(count, start=self._appended)))
        self._appended += count

    def copy(self) -> None:
        with (
            closing(sqlite3.connect(self.path)) as source,
            closing(sqlite3.connect(self._copy)) as target,
        ):
            source.backup(target)

    def set_back(self) -> None:
        """Replace the log by its earlier copy while no process has it open."""
        self.log.close()
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self._copy.replace(self.path)
        self.log = SqliteLog(self.path, durability="process")

    def fold(self, until: Cursor | None = None) -> None:
        """Fold the log into the tables. Raise AheadOfLog or LogDiverged."""
        Runner(self.log, self.engine).catch_up(until)

    def read_offsets(self) -> dict[tuple[str, int], int]:
        with database.read_transaction(self.engine) as connection:
            return offsets(connection)

    def hash(self) -> str:
        with database.read_transaction(self.engine) as connection:
            return digest(connection)

    def list_dead_letters(self) -> str:
        tables = {"KINTSUGI_DATABASE_URL": f"sqlite:///{self.folder / 'projection.db'}"}
        command = ["--home", str(self.folder), "dlq", "list"]
        return run_kintsugi(command, os.environ | tables).stderr

    def close(self) -> None:
        self.log.close()
        self.engine.dispose()


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Restore a log `count` times and count the outcomes."""
    outcomes: Counter[str] = Counter()
    tables = _empty(folder)
    for number in range(count):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            chance = Random(f"log restored {seed} {number}")
            with closing(_Home(Path(place), tables, chance)) as home:
                outcomes[_outcome(home, Random(f"outcome {seed} {number}"), outcomes)] += 1
    wrong = {name: times for name, times in outcomes.items() if name not in _RIGHT}
    return {"passed": not wrong, "restored": count, **{n: outcomes[n] for n in _RIGHT}, **wrong}


def _empty(folder: Path) -> Path:
    path = folder / "empty.db"
    engine = database.open_database(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()
    return path


_RIGHT: Final = ("diverged", "ahead_of_log", "nothing_lost")


def _outcome(home: _Home, chance: Random, known: Container[str]) -> str:
    """Restore a log once. Return the outcome or an error. Only new outcomes check `dlq list`."""
    home.grow(least=20)
    home.copy()
    ends = _ends(home.log)
    home.grow()
    # The fold may have been behind when the disk was lost.
    home.fold({at: chance.randrange(end + 1) for at, end in _ends(home.log).items()})
    before, folded = home.hash(), home.read_offsets()
    lost = any(offset > ends[at] for at, offset in folded.items())
    home.set_back()
    if chance.random() < 0.9:
        home.grow()
    try:
        home.fold()
    except LogDiverged:
        outcome = "diverged"
    except AheadOfLog:
        outcome = "ahead_of_log"
    else:
        outcome = "nothing_lost"
    if lost != (outcome != "nothing_lost"):
        return "it went on in silence" if lost else f"it halted for nothing: {outcome}"
    if lost and home.hash() != before:
        return "it changed a row and halted"
    if outcome not in known:
        said = home.list_dead_letters()
        if lost != ("the fold is halted" in said) or lost == ("every event was folded" in said):
            return f"{outcome}: dlq list says {said!r}"
    return (
        outcome if _matches_rebuild(home, lost) else "the tables differ from a fold from the start"
    )


def _ends(log: EventLog) -> dict[tuple[str, int], int]:
    return {(stream, p): end for stream in STREAMS for p, end in enumerate(log.end(stream))}


def _matches_rebuild(home: _Home, lost: bool) -> bool:
    """Rebuild if events were `lost`, append and fold more; return whether a rebuild is equal."""
    if lost and not rebuild(home.log, home.engine, confirmed=True).swapped:
        return False
    home.grow()
    home.fold()
    return bool(rebuild(home.log, home.engine).equal)


if __name__ == "__main__":
    run_command(__doc__, run, count=200)
