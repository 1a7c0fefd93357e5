"""Ends of sessions, and what a gateway knows of a call."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TEXTS = ("endpoint", "attribution", "client", "purpose", "upstream")


def upgrade() -> None:
    with op.batch_alter_table("calls", schema=None) as batch_op:
        for name in _TEXTS:
            batch_op.add_column(sa.Column(name, STRING, nullable=True))
        batch_op.add_column(sa.Column("status", sa.BigInteger(), nullable=True))
    op.create_table(
        "session_ends",
        sa.Column("session_end", STRING, nullable=False),
        sa.Column("session", STRING, nullable=False),
        sa.Column("because", STRING, nullable=False),
        sa.Column("rollout", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_end"),
    )
    with op.batch_alter_table("session_ends", schema=None) as batch_op:
        batch_op.create_index("ix_session_ends_session", ["session"], unique=False)


def downgrade() -> None:
    op.drop_table("session_ends")
    with op.batch_alter_table("calls", schema=None) as batch_op:
        for name in ("status", *_TEXTS):
            batch_op.drop_column(name)
