"""Close a round on copies of its tables that only one connection sees.

The tables that `close_round` writes are copied, for one agent only, into temporary tables of the
same names, which hide the real ones from this connection. Guarantee: other connections see no
writes and meet no lock, no transaction stays open between two reads, and the copies are gone when
the connection closes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, text

from consumers.batch import Batch, Row
from consumers.diagnosis.rounds import close_round
from consumers.tables import (
    Pattern,
    PatternRound,
    ProjectionTable,
    Rollout,
    Round,
    RuleVersion,
    TaskPattern,
)
from events.learning import PatternsDiagnosed

WRITTEN: Final[tuple[type[ProjectionTable], ...]] = (
    Rollout, TaskPattern, Pattern, PatternRound, RuleVersion, Round,
)  # fmt: skip
"""The tables that closing a round writes."""

_AGENT: Final = "kintsugi_preview_agent"
_NOWHERE: Final[Row] = {"event_source": "preview", "sequence": 0, "offset": 0}
"""The place in the log, as columns, of a round that no event closed."""


@contextmanager
def preview_round(
    engine: Engine, data: PatternsDiagnosed, alias: str
) -> Iterator[tuple[Connection, int]]:
    """Yield (connection, round number). The connection sees the tables of agent `alias` as they
    would be after the event `data`. Each read begins its own transaction."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        # Closed and not given back: the next user of a pooled connection must see the real tables.
        connection.detach()
        with connection.begin():
            _hide_tables(connection, alias)
            batch = Batch(connection)
            number = close_round(data, None, _NOWHERE, batch)
            batch.keep()
            batch.flush()
        yield connection, number


def _hide_tables(connection: Connection, alias: str) -> None:
    connection.execute(text(f"CREATE TEMPORARY TABLE {_AGENT} (alias TEXT)"))
    connection.execute(text(f"INSERT INTO {_AGENT} VALUES (:alias)"), {"alias": alias})
    for model in WRITTEN:
        table = model.table()
        own = f"WHERE alias IN (SELECT alias FROM {_AGENT})" if "alias" in table.c else ""
        # A statement that makes a table takes no parameters on PostgreSQL.
        copy = f'CREATE TEMPORARY TABLE "{table.name}" AS SELECT * FROM "{table.name}" {own}'
        connection.execute(text(copy))
        keys = ", ".join(f'"{column.name}"' for column in table.primary_key.columns)
        connection.execute(
            text(f'CREATE UNIQUE INDEX "preview_{table.name}" ON "{table.name}" ({keys})')
        )
        for index in table.indexes:
            index.create(connection)
