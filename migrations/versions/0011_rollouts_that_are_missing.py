"""Which rollout is missing because of a dead letter, so that nobody tries to make it again."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("dead_letters", sa.Column("rollout", STRING, nullable=True))
    op.create_index(
        "ix_dead_letters_rollout", "dead_letters", ["rollout"],
        sqlite_where=sa.text("rollout IS NOT NULL"),
        postgresql_where=sa.text("rollout IS NOT NULL"),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index("ix_dead_letters_rollout", table_name="dead_letters")
    op.drop_column("dead_letters", "rollout")
