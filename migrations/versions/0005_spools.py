"""The logs of processes that are shipped: who has recorded how much."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "spools",
        sa.Column("source", STRING, nullable=False),
        sa.Column("host", STRING, nullable=False),
        sa.Column("path", STRING, nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("ends", STRING, nullable=False),
        sa.PrimaryKeyConstraint("source"),
    )


def downgrade() -> None:
    op.drop_table("spools")
