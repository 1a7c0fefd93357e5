"""Indexes of rollouts by what has read them: what the scheduler counts with every tick."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index(
        "ix_rollouts_counted", "rollouts", ["alias", "base", "purpose", "round", "success"]
    )
    op.create_index(
        "ix_rollouts_failures", "rollouts",
        ["alias", "base", "purpose", "round", "policy", "trace_key"],
        sqlite_where=sa.text("category IS NOT NULL"),
        postgresql_where=sa.text("category IS NOT NULL"),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index("ix_rollouts_failures", table_name="rollouts")
    op.drop_index("ix_rollouts_counted", table_name="rollouts")
