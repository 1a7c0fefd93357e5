"""Bring a database to this version's tables, or say that it is not there.

An embedded SQLite database migrates itself on first use, an empty one by `head.py` alone; any other
is migrated by the operator with `kintsugi db upgrade`, under a lock, so that two of them at once do
the work once.
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
from consumers.tables import METADATA, REVISION
from events.privacy.database_url import render_database_url
from migrations.head import lay_out

_LOCK: Final = 0x6B696E74
"""PostgreSQL's advisory lock of a migration."""


def upgrade(engine: Engine) -> str:
    """Bring the tables to this version; returns the revision reached. Raises DatabaseMismatch where
    a newer version has been here."""
    if lay_out(engine) != REVISION:
        run_revisions(engine)
    return REVISION


def run_revisions(engine: Engine, last: str = "head") -> None:
    """Apply the missing revisions one by one, in an empty database all of them. Raises
    DatabaseMismatch where a newer version has been here."""
    _refuse_newer(engine, current(engine))
    config = _config()
    with write_transaction(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, last)


def head() -> str:
    """The newest revision of this code."""
    revision = _scripts().get_current_head()
    assert revision is not None, "migrations/versions holds at least one revision"
    return revision


def current(engine: Engine) -> str | None:
    """The revision of the database; None for an empty one."""
    with read_transaction(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def require_head(engine: Engine) -> None:
    """Raise DatabaseMismatch unless the database is at this code's revision."""
    revision = current(engine)
    _refuse_newer(engine, revision)
    if revision != head():
        raise DatabaseMismatch(
            f"database {render_database_url(engine.url)} is at revision {revision}, "
            f"this version needs {head()}; run kintsugi db upgrade"
        )


def _refuse_newer(engine: Engine, revision: str | None) -> None:
    """Nothing that this code could do would help there."""
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is not None and revision not in known:
        raise DatabaseMismatch(
            f"database {render_database_url(engine.url)} is at revision {revision}, "
            f"which this version does not know (it needs {head()}); run the newer kintsugi that "
            "made it"
        )


def differences(engine: Engine) -> list[str]:
    """Where the database's tables differ from the code's: empty when they are the same."""
    with read_transaction(engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [repr(difference) for difference in compare_metadata(context, METADATA)]


@cache
def _scripts() -> ScriptDirectory:
    """Return the revisions of this code, which are read once."""
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config(stdout=io.StringIO(), output_buffer=io.StringIO())
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config
