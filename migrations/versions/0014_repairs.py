"""What a search for the smallest repair of a failed rollout came to."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "repairs",
        sa.Column("rollout", STRING, nullable=False),
        sa.Column("rules", STRING, nullable=False),
        sa.Column("outcome", STRING, nullable=False),
        sa.Column("category", STRING, nullable=True),
        sa.Column("pivot", STRING, nullable=True),
        sa.Column("edits", STRING, nullable=False),
        sa.Column("replays", sa.BigInteger(), nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout"),
    )


def downgrade() -> None:
    op.drop_table("repairs")
