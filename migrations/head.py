"""Creates this version's tables in an empty database, without Alembic.

Importing Alembic takes time, for which every command in a new home would wait. Tests check that
these tables equal those of an upgraded database.
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
    """Create the tables in an empty SQLite database and return their revision. Return None for any
    other database, which stays unchanged. Of concurrent processes, only one creates them."""
    if engine.dialect.name != "sqlite":
        return None
    with write_transaction(engine) as connection:
        if inspect(connection).get_table_names():
            return None
        create_tables(connection)
    return REVISION


def create_tables(connection: Connection) -> None:
    """Create the tables in a database without kintsugi's tables, and store their revision."""
    for table in METADATA.sorted_tables:
        connection.execute(CreateTable(table))
    # Of two equally good indexes SQLite uses the newer, so create them in a fixed order.
    indexes = (index for table in METADATA.sorted_tables for index in table.indexes)
    for index in sorted(indexes, key=lambda index: str(index.name)):
        connection.execute(CreateIndex(index))
    connection.execute(text(_VERSION_TABLE))
    connection.execute(
        text("INSERT INTO alembic_version (version_num) VALUES (:revision)"),
        {"revision": REVISION},
    )
