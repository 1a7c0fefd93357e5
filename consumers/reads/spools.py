"""Spools with recorded events that the log may lack, as their owners last reported them.

Events in a spool that is not shipped are neither in the log nor in the tables. So the process that
writes or ships a spool reports in a row how far it reaches, every few seconds, and deletes the row
when it ends with everything shipped. A row that stays without new reports belongs to an owner that
was killed, or that ended with events that Kafka does not have; its events that are not folded are
missing until they are.

The time is the database's. Not folded from the log and not rebuilt. Not covered: what an owner
recorded after its last report, which is why silence alone is reported as well.
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
    """What is said of a spool."""

    source: str
    """The id of its log, that its events carry."""
    host: str
    path: str
    ends: Mapping[str, Sequence[int]]
    """Stream -> per partition, the sequence that its next event gets."""


@dataclass(frozen=True, slots=True)
class SpoolState:
    """A spool's last report, how old that is, and what came of its events."""

    report: Report
    seen: float
    """Time of the last report by the database's clock, in seconds since 1970."""
    age_seconds: float
    unfolded: int
    """Events of it that are not in the tables."""


def report(connection: Connection, status: Report) -> None:
    """Write the row of one spool, within `database.write_transaction`."""
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
    """Take out a row, within `database.write_transaction`; whether there was one."""
    gone = delete(_SPOOLS).where(_SPOOLS.c.source == source).returning(_SPOOLS.c.source)
    return connection.execute(gone).first() is not None


def read_spools(connection: Connection) -> list[SpoolState]:
    """All that were reported and not taken out, by source."""
    now, folded = clock(connection), position(connection)
    spools = []
    for row in connection.execute(select(_SPOOLS).order_by(_SPOOLS.c.source)):
        status = Report(row.source, row.host, row.path, json.loads(row.ends))
        spools.append(SpoolState(status, row.seen, now - row.seen, count_lag(status, folded)))
    return spools


@dataclass(frozen=True, slots=True)
class Last:
    """The last event of a spool that was folded, in one partition."""

    stream: str
    partition: int
    sequence: int
    sha256: str | None
    """None where it is not known."""


def lasts(connection: Connection, source: str) -> list[Last]:
    """How far a spool was folded."""
    query = select(SOURCES).where(SOURCES.c.source == source, SOURCES.c.sequence >= 0)
    return [
        Last(
            row.stream, row.partition, row.sequence,
            row.last_sha256 if row.last_sequence == row.sequence else None,
        )
        for row in connection.execute(query)
    ]  # fmt: skip


def count_lag(status: Report, folded: Position) -> int:
    """How many of its events a fold at this position lacks."""
    return sum(
        max(0, end - 1 - folded.get(stream, {}).get(str(partition), {}).get(status.source, -1))
        for stream, ends in status.ends.items()
        for partition, end in enumerate(ends)
    )
