"""Upgrades a database to this version's tables, or checks that this was done.

An embedded SQLite database is migrated on first use; an empty one needs only `head.py`. An operator
migrates any other database with `kintsugi db upgrade`. It takes a lock, so concurrent runs migrate
once.
"""

import io
from functools import cache
from pathlib import Path
from typing import Final

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from consumers.database import DatabaseMismatch, read_transaction, write_transaction
from consumers.tables import METADATA, OLDEST_REVISION, REVISION
from events.privacy.database_url import render_database_url
from migrations.head import create_tables

_LOCK: Final = 0x6B696E74
"""Number of the PostgreSQL advisory lock for migrations."""


def upgrade(engine: Engine) -> str:
    """Upgrade the tables to this version and return the revision. An empty database gets all
    tables; any other database gets the missing revisions. Raises DatabaseMismatch if the tables are
    of a newer version or too old."""
    _refuse_others(engine, current(engine))
    config = _config()
    with write_transaction(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        if MigrationContext.configure(connection).get_current_revision() is None:
            create_tables(connection)
        else:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    return REVISION


def head() -> str:
    """Return the newest revision of this code."""
    revision = _scripts().get_current_head()
    assert revision is not None, "migrations/versions holds at least one revision"
    return revision


def current(engine: Engine) -> str | None:
    """Return the revision of the database; None for an empty one."""
    with read_transaction(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def require_head(engine: Engine) -> None:
    """Raise DatabaseMismatch unless the database is at this code's revision."""
    revision = current(engine)
    _refuse_others(engine, revision)
    if revision != head():
        raise DatabaseMismatch(
            f"database {render_database_url(engine.url)} is at revision {revision}, "
            f"this version needs {head()}; run kintsugi db upgrade"
        )


def _refuse_others(engine: Engine, revision: str | None) -> None:
    """Raise DatabaseMismatch for a revision that cannot be upgraded to this version."""
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is None or revision in known:
        return
    what = f"database {render_database_url(engine.url)} is at revision {revision}, which this"
    if revision < OLDEST_REVISION:
        raise DatabaseMismatch(
            f"{what} version cannot upgrade (the oldest is {OLDEST_REVISION}); fold its log anew "
            "in a new home: kintsugi log export, kintsugi log import, kintsugi rebuild --yes "
            "(docs/upgrading.md)"
        )
    raise DatabaseMismatch(
        f"{what} version does not know (it needs {head()}); run the newer kintsugi that made it"
    )


def differences(engine: Engine) -> list[str]:
    """Return the differences between the database's tables and the code's; empty if none."""
    with read_transaction(engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [repr(difference) for difference in compare_metadata(context, METADATA)]


@cache
def _scripts() -> ScriptDirectory:
    """Return this code's revision scripts, which are read once per process."""
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config(stdout=io.StringIO(), output_buffer=io.StringIO())
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config
