"""What an agent lacks: skills that were found by contrast."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "skills",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("skill", STRING, nullable=False),
        sa.Column("description", STRING, nullable=False),
        sa.Column("patterns", STRING, nullable=False),
        sa.Column("state", STRING, nullable=False),
        sa.Column("delta", sa.Float(), nullable=False),
        sa.Column("delta_deviation", sa.Float(), nullable=False),
        sa.Column("coverage", sa.Float(), nullable=False),
        sa.Column("coverage_deviation", sa.Float(), nullable=False),
        sa.Column("selected", sa.BigInteger(), nullable=False),
        sa.Column("labellings", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("successes", sa.BigInteger(), nullable=False),
        sa.Column("within", STRING, nullable=True),
        sa.Column("examples", STRING, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("alias", "base", "skill"),
    )
    op.create_table(
        "skill_comparisons",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("successes", sa.BigInteger(), nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("alias", "base"),
    )


def downgrade() -> None:
    op.drop_table("skill_comparisons")
    op.drop_table("skills")
