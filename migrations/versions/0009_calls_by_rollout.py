"""Which rollout a call is in, and an index of those that are in none: what a session waits for."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("calls", sa.Column("rollout", STRING, nullable=True))
    op.create_index(
        "ix_calls_loose", "calls", ["session"],
        sqlite_where=sa.text("rollout IS NULL"),
        postgresql_where=sa.text("rollout IS NULL"),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index("ix_calls_loose", table_name="calls")
    op.drop_column("calls", "rollout")
