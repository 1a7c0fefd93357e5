"""Alembic's entry point: runs migrations on the connection that `upgrade.py` passes."""

from alembic import context
from sqlalchemy import Connection

from consumers.database import open_database
from consumers.tables import METADATA


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


existing: Connection | None = context.config.attributes.get("connection")
if existing is not None:
    _run(existing)
else:
    # `alembic revision --autogenerate -x url=...` while developing.
    engine = open_database(context.get_x_argument(as_dictionary=True)["url"])
    with engine.connect() as opened:
        _run(opened)
