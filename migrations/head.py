"""This version's tables for an empty SQLite database, laid out at once.

All revisions in their order take 40 times as long, and Alembic a while to import: what every new
home would wait for. `head.sql` holds what they make, as SQLite itself describes it. It is written
by `python -m ops.tables` and never by hand; a test holds it to the revisions. Any other database is
brought here by `upgrade.py`, and so is one that an older `head.sql` made.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine

from consumers.database import read_transaction, write_transaction

STATEMENTS: Final = Path(__file__).with_name("head.sql")
_END: Final = ";\n"


def lay_out(engine: Engine) -> str | None:
    """Make the tables where a SQLite database is empty; returns their revision, and None for any
    other database, which stays as it is. Two processes at once do it once."""
    if engine.dialect.name != "sqlite":
        return None
    with write_transaction(engine) as connection:
        if connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one():
            return None
        for statement in STATEMENTS.read_text().split(_END):
            if statement:
                connection.exec_driver_sql(statement)
        return _revision(connection)


def describe(engine: Engine) -> str:
    """Return the statements that make the tables of a SQLite database and name their revision."""
    with read_transaction(engine) as connection:
        made = connection.exec_driver_sql(
            # An index that has no statement comes with its table, and any other behind it.
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type = 'index', name"
        ).scalars()
        named = f"INSERT INTO alembic_version (version_num) VALUES ('{_revision(connection)}')"
        return "".join(f"{statement}{_END}" for statement in (*made, named))


def _revision(connection: Connection) -> str:
    return str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one())
