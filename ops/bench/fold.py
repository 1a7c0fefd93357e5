"""How fast the fold is, against a bare multi-row insert of the rows that it makes.

    python -m ops.bench.fold --events 20000 --rounds 5 [--memory]

Method. The mix of ops/mix.py is appended once to an embedded log. Each round then does, in turn and
on fresh tables, on SQLite and on a real PostgreSQL:

    fold       the runner from the log's start to its end, 500 events a transaction
    insert     the rows of that fold, already made, as SQLAlchemy's multi-row INSERT, in as many
               transactions of as many rows
    driver     the same rows through the statement of the fold itself (executemany on SQLite, one
               JSON document per table on PostgreSQL)

and the medians' ratios are reported, insert/fold and driver/fold as a share of that peer's speed.
Fold decodes, validates and runs the detectors; the peers are handed finished rows, a call's two
events merged into one. `decode` is the time to read stored events, token arrays included, over that
of pydantic on the same events (envelope, data, content, arrays) as one plain JSON text each.
`replay` is the time of a fold of all events over that of a tenth, 10 where replay is linear;
`--memory` adds the peak resident memory of folding 1,000,000 events and closing one round over all
of them, over that of 100,000 (each in a process of its own, some minutes).
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, create_model
from sqlalchemy import Engine, insert, select, text

from consumers import database
from consumers.batch import upsert
from consumers.position import position
from consumers.runner import BATCH_EVENTS, Runner
from consumers.tables import METADATA, PROJECTED, ProjectionTable
from events.codec import arrays_of, decode, encode
from events.envelope import Envelope
from events.log import Record
from events.memory import MemoryLog
from events.messages import Message
from events.rollouts import CallEndContent, CallEnded, EventData
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from ops.mix import make_round, mix
from ops.postgres.server import Postgres

APPEND_EVENTS: Final = 2_000
Rows = list[tuple[type[ProjectionTable], list[dict[str, Any]]]]


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="also the memory of a million events")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(_peak_of(options.peak))
        return
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        report = measure(Path(folder), options.events, options.rounds)
    if options.memory:
        report["memory_1m_over_100k"] = _peak(1_000_000) / _peak(100_000)
    print(json.dumps(report, indent=2))


def measure(folder: Path, events: int, rounds: int) -> dict[str, Any]:
    """All ratios of one run."""
    log, tenth = _log(folder / "log.db", events), _log(folder / "tenth.db", events // 10)
    report: dict[str, Any] = {"events": events, "rounds": rounds}
    for kind in ("sqlite", "postgres"):
        with _database(kind, folder) as engine:
            report[kind] = _ratios(log, tenth, engine, events, rounds)
    report["decode_over_plain_json"] = {
        "mix": _decoding(_records(log), rounds),
        "calls_of_1500_tokens": _decoding(_long_calls(200), rounds),
    }
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
        took["insert"].append(_time_work(engine, lambda: _insert(engine, rows, transactions)))
        took["driver"].append(_time_work(engine, lambda: _driver(engine, rows, transactions)))
    median = {name: statistics.median(values) for name, values in took.items()}
    return {
        "share_of_multi_row_insert": round(median["insert"] / median["fold"], 3),
        "share_of_driver_insert": round(median["driver"] / median["fold"], 3),
        "replay_all_over_tenth": round(median["fold"] / median["tenth"], 2),
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


def _insert(engine: Engine, rows: Rows, transactions: int) -> None:
    for page in _pages(rows, transactions):
        with database.write_transaction(engine) as connection:
            for model, part in page:
                if part:
                    connection.execute(insert(model.table()), part)


def _driver(engine: Engine, rows: Rows, transactions: int) -> None:
    for page in _pages(rows, transactions):
        with database.write_transaction(engine) as connection:
            for model, part in page:
                if part:
                    upsert(connection, model, part)


def _decoding(records: list[Record], rounds: int) -> float:
    """Time of decoding stored records, token arrays too, over that of pydantic on plain JSON."""
    models: dict[str, type[BaseModel]] = {}
    plain = [_plain(record, models) for record in records]
    ours, theirs = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        for record in records:
            decode(record)
            arrays_of(record.value)
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        for model, document in plain:
            model.model_validate_json(document)
        theirs.append(time.perf_counter() - started)
    return round(statistics.median(ours) / statistics.median(theirs), 3)


def _plain(record: Record, models: dict[str, type[BaseModel]]) -> tuple[type[BaseModel], bytes]:
    """The same event, envelope and arrays and all, as one JSON text and the model to read it."""
    event = decode(record)
    content = getattr(event.data, "content", None)
    model = models.setdefault(event.data.TYPE, _plain_model(type(event.data), type(content)))
    document = model(
        envelope={name: value.decode() for name, value in record.headers},
        data=event.data,
        content=content,
        arrays={name: list(values) for name, values in arrays_of(record.value).items()},
    )
    return model, document.model_dump_json().encode()


def _plain_model(data: type[EventData], content: type[Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        "envelope": (dict[str, str], ...),
        "data": (data, ...),
        "content": (content, None),
        "arrays": (dict[str, list[float]], ...),
    }
    return create_model(f"Plain{data.__name__}", **fields)


def _records(log: SqliteLog) -> list[Record]:
    return [
        record
        for partition in range(ROLLOUTS.partitions)
        for record in log.read(ROLLOUTS.name, partition, 0, limit=500)
    ]


def _long_calls(count: int) -> list[Record]:
    """Calls with 1,500 sampled tokens, most of them with a log-probability near zero."""
    chance = random.Random(0)
    log = MemoryLog()
    for number in range(count):
        data = CallEnded(
            call=f"call-{number}",
            session=f"session-{number}",
            outcome="completed",
            trainable=True,
            content=CallEndContent(messages=(Message(role="assistant", content="x " * 3_000),)),
        )
        arrays: dict[str, array[Any]] = {
            "token_ids": array(
                "i", (int(chance.paretovariate(0.5)) % 150_000 for _ in range(1_500))
            ),
            "logprobs": array("f", (-(chance.random() ** 8) for _ in range(1_500))),
        }
        envelope = Envelope(f"id-{number}", data.TYPE, data.VERSION, data.key())
        log.append([encode(envelope, data, 0, arrays).entry])
    return [record for p in range(8) for record in log.read(ROLLOUTS.name, p, 0, limit=count)]


def _log(path: Path, events: int) -> SqliteLog:
    log = SqliteLog(path, durability="process")
    for start in range(0, events, APPEND_EVENTS):
        log.append(list(mix(min(APPEND_EVENTS, events - start), start=start)))
    return log


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[Engine]:
    if kind == "sqlite":
        engine = database.open_database(f"sqlite:///{folder / 'bench.db'}")
        METADATA.create_all(engine)
        yield engine
        engine.dispose()
        return
    # Its user may not enter our folder, so the server gets one of its own.
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-postgres-") as place,
        Postgres(Path(place)) as server,
    ):
        engine = database.open_database(server.create_database())
        METADATA.create_all(engine)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        yield engine
        engine.dispose()


def _peak(events: int) -> int:
    """Peak resident memory of folding that many events, in a process of its own; KiB."""
    ran = subprocess.run(
        [sys.executable, "-m", "ops.bench.fold", "--peak", str(events)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(ran.stdout)


def _peak_of(events: int) -> int:
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        log = _log(Path(folder) / "log.db", events)
        engine = database.open_database(f"sqlite:///{Path(folder) / 'bench.db'}")
        METADATA.create_all(engine)
        _fold(log, engine)
        with database.read_transaction(engine) as connection:
            folded = position(connection)
        log.append([make_round({ROLLOUTS.name: folded[ROLLOUTS.name]}, 0)])
        _fold(log, engine)
        log.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
