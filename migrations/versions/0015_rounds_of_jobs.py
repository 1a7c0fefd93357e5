"""The rounds that jobs closed over their own rollouts."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "job_rounds",
        sa.Column("job", STRING, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("cycle", STRING, nullable=False),
        sa.Column("directive", STRING, nullable=False),
        sa.Column("tasks", STRING, nullable=False),
        sa.Column("rejected", sa.BigInteger(), nullable=False),
        sa.Column("rollouts", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.BigInteger(), nullable=True),
        sa.Column("unread", sa.BigInteger(), nullable=True),
        sa.Column("pools", STRING, nullable=True),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "number"),
    )
    op.create_index("ix_job_rounds_cycle", "job_rounds", ["cycle"])


def downgrade() -> None:
    op.drop_table("job_rounds")
