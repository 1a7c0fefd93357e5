"""Rebuild: fold the log again from the start, beside the live tables, compare, and swap.

    fold      into fresh tables beside the live ones, up to the live position
    lock      the live position: no fold moves it from here on
    finish    the few events that came meanwhile
    compare   every row, every column except the broker's offset
    swap      in the transaction that holds the lock

The same fold version must give equal tables; else nothing is swapped and the first difference is
named. A new fold version reports the changes, and swaps if confirmed. Equal tables need no swap,
except if they were folded from another log (LogDiverged, AheadOfLog): then a confirmed swap lets
the fold continue with this log. The fresh tables are in a file (SQLite) or schema (PostgreSQL) of
their own.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, delete, select, text

from consumers import database
from consumers.batch import upsert
from consumers.database import sqlite_url
from consumers.digest import Difference, count_differences, digest, first_difference
from consumers.position import OFFSETS, offsets, read_fold_positions, read_fold_version
from consumers.runner import Runner
from consumers.tables import (
    BOOKKEEPING,
    FOLD_VERSION,
    PROJECTED,
    ProjectionTable,
    create_tables,
)
from events import private
from events.errors import KintsugiError
from events.log import Cursor, EventLog
from events.streams import STREAMS

SCHEMA: Final = "kintsugi_rebuild"
"""PostgreSQL schema of the fresh tables while they are filled."""

_ROWS_AT_ONCE: Final = 1_000


class SnapshotUnfit(KintsugiError):
    """The snapshot has another fold version or is newer than the live tables."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild."""

    events: int
    seconds: float
    hash: str
    """Hash of the fresh tables."""
    equal: bool | None
    """Whether the tables are equal; None if the fold version is new. See `changed` then."""
    swapped: bool
    difference: Difference | None = None
    changed: dict[str, int] = field(default_factory=dict)
    """Table -> number of rows that differ."""


def rebuild(
    log: EventLog,
    engine: Engine,
    *,
    confirmed: bool = False,
    snapshot: Engine | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Rebuilt:
    """Fold the log again, from `snapshot` if given, and compare. Swap the tables if `confirmed`."""
    started = time.monotonic()
    ends = {(name, p): end for name in STREAMS for p, end in enumerate(log.end(name))}
    with _fresh_tables(engine) as fresh:
        if snapshot is not None:
            _begin_at(snapshot, engine, fresh)
        runner = Runner(log, fresh, on_progress=on_progress)
        with database.read_transaction(engine) as connection:
            target = offsets(connection)
        runner.catch_up(until=_within(target, ends))
        with _lock_positions(engine) as live:
            reached = offsets(live)
            runner.catch_up(until=_within(reached, ends) if _beyond(target, ends) else reached)
            with database.read_transaction(fresh) as rebuilt:
                return _finish(live, rebuilt, runner, started, confirmed)


def _beyond(goal: Cursor, ends: Cursor) -> bool:
    return any(offset > ends[at] for at, offset in goal.items())


def _within(goal: Cursor, ends: Cursor) -> Cursor:
    return {at: min(offset, ends[at]) for at, offset in goal.items()}


def _finish(
    live: Connection, rebuilt: Connection, runner: Runner, started: float, confirmed: bool
) -> Rebuilt:
    difference = first_difference(live, rebuilt)
    same_version = read_fold_version(live) in (None, FOLD_VERSION)
    changed = count_differences(live, rebuilt) if difference else {}
    elsewhere = _stands_elsewhere(live, rebuilt)
    swap = confirmed and (difference is not None or not same_version or elsewhere)
    if swap:
        for model in (*PROJECTED, *BOOKKEEPING):
            _replace(live, rebuilt, model)
    return Rebuilt(
        events=runner.counters.folded,
        seconds=time.monotonic() - started,
        hash=digest(rebuilt),
        equal=difference is None if same_version else None,
        swapped=swap,
        difference=difference,
        changed=changed,
    )


def _stands_elsewhere(live: Connection, rebuilt: Connection) -> bool:
    """Return whether the live tables were folded from another log, as their last records show."""
    there = read_fold_positions(rebuilt)
    return any(
        stands.last_sha256 is not None and stands != there.get(at)
        for at, stands in read_fold_positions(live).items()
    )


def _begin_at(snapshot: Engine, engine: Engine, fresh: Engine) -> None:
    with (
        database.read_transaction(snapshot) as source,
        database.read_transaction(engine) as live,
        database.write_transaction(fresh) as target,
    ):
        version = read_fold_version(source)
        if version != FOLD_VERSION:
            raise SnapshotUnfit(
                f"snapshot {snapshot.url.database} was folded by version {version} of the folds, "
                f"this is version {FOLD_VERSION}; make another one, or rebuild from the start"
            )
        reached = offsets(live)
        if any(offset > reached.get(at, 0) for at, offset in offsets(source).items()):
            raise SnapshotUnfit(
                f"snapshot {snapshot.url.database} is ahead of the live tables; choose an earlier "
                "one, or rebuild from the start"
            )
        for model in (*PROJECTED, *BOOKKEEPING):
            _replace(target, source, model)


def _replace(live: Connection, rebuilt: Connection, model: type[ProjectionTable]) -> None:
    live.execute(delete(model.table()))
    query = select(model.table())
    paged = {"yield_per": _ROWS_AT_ONCE}
    rows = rebuilt.execute(query, execution_options=paged).mappings()
    for page in rows.partitions(_ROWS_AT_ONCE):
        upsert(live, model, [dict(row) for row in page])


@contextmanager
def _lock_positions(engine: Engine) -> Iterator[Connection]:
    """Yield a transaction on the live tables that keeps folds from moving the position."""
    with database.write_transaction(engine) as connection:
        if connection.dialect.name == "postgresql":
            # The transaction idles while the fresh tables are read, and must not time out.
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            connection.execute(select(OFFSETS).with_for_update())
        yield connection


@contextmanager
def _fresh_tables(engine: Engine) -> Iterator[Engine]:
    """Yield empty tables beside the live ones and remove them at the end; one rebuild at a time."""
    build = _fresh_schema if engine.dialect.name == "postgresql" else _fresh_file
    with build(engine) as fresh:
        create_tables(fresh)
        try:
            yield fresh
        finally:
            fresh.dispose()


@contextmanager
def _fresh_schema(engine: Engine) -> Iterator[Engine]:
    url = engine.url.render_as_string(hide_password=False)
    with engine.connect() as holder:
        if not holder.execute(
            text("SELECT pg_try_advisory_lock(hashtext(:s))"), {"s": SCHEMA}
        ).scalar():
            raise database.DatabaseUnavailable(
                f"another rebuild is filling schema {SCHEMA}; wait until it has finished"
            )
        holder.commit()
        try:
            _drop_schema(engine)
            with engine.begin() as connection:
                connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
            yield database.open_database(url, schema=SCHEMA)
        finally:
            _drop_schema(engine)
            holder.execute(text("SELECT pg_advisory_unlock(hashtext(:s))"), {"s": SCHEMA})


def _drop_schema(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))


@contextmanager
def _fresh_file(engine: Engine) -> Iterator[Engine]:
    live = Path(str(engine.url.database))
    path = live.with_name(f"{live.name}.rebuild")
    with private.open_lock(path.with_name(f"{path.name}.lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise database.DatabaseUnavailable(
                f"another rebuild is filling {path}; wait until it has finished"
            ) from error
        _remove(path)
        try:
            yield database.open_database(sqlite_url(path))
        finally:
            _remove(path)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
