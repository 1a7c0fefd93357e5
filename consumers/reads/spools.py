"""Spools with recorded events that the log may lack, as their owners last reported them.

The process that writes or ships a spool reports every few seconds how far the spool reaches, with
the database's time. It deletes its row when it stops and all events are shipped. A row without new
reports belongs to an owner that was killed or that ended with unshipped events. Events recorded
after the last report are unknown, so silence alone is reported as well.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from consumers.database import clock
from consumers.position import SOURCES, position
from consumers.tables import METADATA
from events.canonical import exact_json
from events.position import Position

_SPOOLS = METADATA.tables["spools"]


@dataclass(frozen=True, slots=True)
class Report:
    """A report on a spool: where it is, and how far it reaches."""

    source: str
    """Id of the spool, which its events carry as their source."""
    host: str
    path: str
    ends: Mapping[str, Sequence[int]]
    """Stream -> for each partition, the sequence that the spool's next event gets."""


@dataclass(frozen=True, slots=True)
class SpoolState:
    """A spool's last report, the report's age, and the number of events missing in the tables."""

    report: Report
    seen: float
    age_seconds: float
    unfolded: int
    """Number of the spool's events that are not in the tables."""


def report(connection: Connection, status: Report) -> None:
    """Store a report on a spool, within `database.write_transaction`."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    row = {
        "host": status.host,
        "path": status.path,
        "seen": clock(connection),
        "ends": exact_json({stream: list(ends) for stream, ends in status.ends.items()}),
    }
    connection.execute(
        dialect.insert(_SPOOLS)
        .values(source=status.source, **row)
        .on_conflict_do_update(index_elements=["source"], set_=row)
    )


def forget(connection: Connection, source: str) -> bool:
    """Delete a spool's row, within `database.write_transaction`. Return whether there was one."""
    gone = delete(_SPOOLS).where(_SPOOLS.c.source == source).returning(_SPOOLS.c.source)
    return connection.execute(gone).first() is not None


def read_spools(connection: Connection) -> list[SpoolState]:
    """Return the states of all reported spools, ordered by source."""
    now, folded = clock(connection), position(connection)
    spools = []
    for row in connection.execute(select(_SPOOLS).order_by(_SPOOLS.c.source)):
        status = Report(row.source, row.host, row.path, json.loads(row.ends))
        spools.append(SpoolState(status, row.seen, now - row.seen, count_lag(status, folded)))
    return spools


@dataclass(frozen=True, slots=True)
class Last:
    """The last folded event of a spool in one partition."""

    stream: str
    partition: int
    sequence: int
    sha256: str | None


def lasts(connection: Connection, source: str) -> list[Last]:
    """Return the last folded event of a spool in each partition."""
    query = select(SOURCES).where(SOURCES.c.source == source, SOURCES.c.sequence >= 0)
    return [
        Last(
            row.stream, row.partition, row.sequence,
            row.last_sha256 if row.last_sequence == row.sequence else None,
        )
        for row in connection.execute(query)
    ]  # fmt: skip


def count_lag(status: Report, folded: Position) -> int:
    """Return how many events of the reported spool are not folded at this position."""
    return sum(
        max(0, end - 1 - folded.get(stream, {}).get(str(partition), {}).get(status.source, -1))
        for stream, ends in status.ends.items()
        for partition, end in enumerate(ends)
    )
