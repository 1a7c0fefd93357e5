"""The bodies of tasks that no generator makes, and which tasks jobs draw no more."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "task_bodies",
        sa.Column("task", STRING, nullable=False),
        sa.Column("environment", STRING, nullable=False),
        sa.Column("body", STRING, nullable=False),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task"),
    )
    op.create_table(
        "task_states",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("task", STRING, nullable=False),
        sa.Column("state", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("alias", "task"),
    )


def downgrade() -> None:
    for table in ("task_states", "task_bodies"):
        op.drop_table(table)
