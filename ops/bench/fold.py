"""Measure how fast the fold is, compared with a bare multi-row insert of the same rows.

    python -m ops.bench.fold --events 20000 --rounds 5

Method. The mix of ops/mix.py is appended once to an embedded log. Each round then does, in turn and
on fresh tables, on SQLite and on a real PostgreSQL:

    fold       the runner from the log's start to its end, 500 events a transaction
    insert     the rows of that fold, already made, as SQLAlchemy's multi-row INSERT, in as many
               transactions of as many rows
    driver     the same rows through the statement of the fold itself (executemany on SQLite, one
               JSON document per table on PostgreSQL)

The ratios of the medians are reported: insert/fold and driver/fold, the fold's speed as a share of
the other's. The fold decodes, validates and runs the detectors. The others get finished rows, in
which a call's two events are merged. `replay` is the time of a fold of all events over that of a
tenth, 10 where replay is linear; `events_per_second` is what a fold of all events reached here.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from consumers import database
from consumers.batch import upsert
from consumers.runner import BATCH_EVENTS, Runner
from consumers.tables import METADATA, PROJECTED, ProjectionTable
from events.sqlite.log import SqliteLog
from ops.command_line import run_command
from ops.faults.folding import postgres
from ops.mix import write_log

Rows = list[tuple[type[ProjectionTable], list[dict[str, Any]]]]


def measure(folder: Path, events: int, rounds: int) -> dict[str, Any]:
    """Return all ratios of one run."""
    log, tenth = write_log(folder / "log.db", events), write_log(folder / "tenth.db", events // 10)
    report: dict[str, Any] = {"events": events, "rounds": rounds}
    for kind in ("sqlite", "postgres"):
        with _database(kind, folder) as engine:
            report[kind] = _ratios(log, tenth, engine, events, rounds)
    log.close()
    tenth.close()
    return report


def _ratios(
    log: SqliteLog, tenth: SqliteLog, engine: Engine, events: int, rounds: int
) -> dict[str, Any]:
    _fold(log, engine)
    rows = _rows(engine)
    transactions = max(1, events // BATCH_EVENTS)
    took: dict[str, list[float]] = {"fold": [], "insert": [], "driver": [], "tenth": []}
    for _ in range(rounds):
        took["fold"].append(_time_work(engine, lambda: _fold(log, engine)))
        took["tenth"].append(_time_work(engine, lambda: _fold(tenth, engine)))
        took["insert"].append(
            _time_work(engine, lambda: _write(engine, rows, transactions, _multi_row))
        )
        took["driver"].append(
            _time_work(engine, lambda: _write(engine, rows, transactions, upsert))
        )
    median = {name: statistics.median(values) for name, values in took.items()}
    return {
        "share_of_multi_row_insert": round(median["insert"] / median["fold"], 3),
        "share_of_driver_insert": round(median["driver"] / median["fold"], 3),
        "replay_all_over_tenth": round(median["fold"] / median["tenth"], 2),
        "events_per_second": round(events / median["fold"]),
        "rows_per_event": round(sum(len(part) for _, part in rows) / events, 2),
    }


def _time_work(engine: Engine, work: Callable[[], None]) -> float:
    with database.write_transaction(engine) as connection:
        for table in METADATA.sorted_tables:
            connection.execute(table.delete())
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _fold(log: SqliteLog, engine: Engine) -> None:
    Runner(log, engine).catch_up()


def _rows(engine: Engine) -> Rows:
    with database.read_transaction(engine) as connection:
        return [
            (model, [dict(row) for row in connection.execute(select(model.table())).mappings()])
            for model in PROJECTED
        ]


def _pages(rows: Rows, transactions: int) -> Iterator[Rows]:
    for number in range(transactions):
        yield [(model, part[number::transactions]) for model, part in rows]


Store = Callable[[Connection, type[ProjectionTable], list[dict[str, Any]]], object]


def _multi_row(
    connection: Connection, model: type[ProjectionTable], rows: list[dict[str, Any]]
) -> None:
    connection.execute(insert(model.table()), rows)


def _write(engine: Engine, rows: Rows, transactions: int, store: Store) -> None:
    for page in _pages(rows, transactions):
        with database.write_transaction(engine) as connection:
            for model, part in page:
                if part:
                    store(connection, model, part)


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[Engine]:
    if kind == "sqlite":
        engine = database.open_database(f"sqlite:///{folder / 'bench.db'}")
        METADATA.create_all(engine)
        yield engine
        engine.dispose()
        return
    with postgres() as server:
        engine = database.open_database(server.create_database())
        METADATA.create_all(engine)
        yield engine
        engine.dispose()


if __name__ == "__main__":
    run_command(__doc__, measure, indent=2, events=20_000, rounds=5)
