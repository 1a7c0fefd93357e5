"""Make this version's tables in an empty database, at once and without Alembic.

Alembic takes a while to import, which every command in a new home would wait for. Tests hold the
tables of an upgraded database to those that are made here.
"""

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from consumers.database import write_transaction
from consumers.tables import METADATA, REVISION

_VERSION_TABLE = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)
"""The table in which Alembic keeps a revision."""


def lay_out(engine: Engine) -> str | None:
    """Make the tables where a SQLite database is empty, and return their revision. Return None for
    any other database, which stays as it is. Two processes at once do it once."""
    if engine.dialect.name != "sqlite":
        return None
    with write_transaction(engine) as connection:
        if inspect(connection).get_table_names():
            return None
        create_tables(connection)
    return REVISION


def create_tables(connection: Connection) -> None:
    """Make the tables in a database that has none of ours, and name their revision."""
    for table in METADATA.sorted_tables:
        connection.execute(CreateTable(table))
    # Of two indexes that serve a query alike, SQLite takes the one that was made later.
    indexes = (index for table in METADATA.sorted_tables for index in table.indexes)
    for index in sorted(indexes, key=lambda index: str(index.name)):
        connection.execute(CreateIndex(index))
    connection.execute(text(_VERSION_TABLE))
    connection.execute(
        text("INSERT INTO alembic_version (version_num) VALUES (:revision)"),
        {"revision": REVISION},
    )
