"""Whose neighbour a rollout is, who answered, and what a person made of a pattern."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("kind", STRING, nullable=True))
    op.add_column("rollouts", sa.Column("tools", STRING, nullable=False, server_default="[]"))
    op.add_column("rollouts", sa.Column("words", STRING, nullable=True))
    op.add_column("rollouts", sa.Column("outdated", sa.Boolean(), nullable=True))
    op.create_index("ix_rollouts_task", "rollouts", ["task_key", "alias", "base"])
    for table in ("patterns", "pattern_rounds"):
        op.add_column(
            table, sa.Column("learnability", sa.Float(), nullable=False, server_default="1")
        )
    op.add_column("patterns", sa.Column("operator", STRING, nullable=True))
    op.add_column("patterns", sa.Column("operator_reason", STRING, nullable=True))
    op.add_column("patterns", sa.Column("anchors", STRING, nullable=False, server_default="{}"))


def downgrade() -> None:
    for name in ("anchors", "operator_reason", "operator"):
        op.drop_column("patterns", name)
    for table in ("pattern_rounds", "patterns"):
        op.drop_column(table, "learnability")
    op.drop_index("ix_rollouts_task", table_name="rollouts")
    for name in ("outdated", "words", "tools", "kind"):
        op.drop_column("rollouts", name)
