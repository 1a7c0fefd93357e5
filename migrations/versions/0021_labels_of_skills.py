"""Who labelled the rollouts of a comparison of skills; a rebuild fills it for those before."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("skills", sa.Column("labeller", STRING, nullable=True))
    op.add_column("skill_comparisons", sa.Column("labeller", STRING, nullable=True))
    op.add_column("skill_comparisons", sa.Column("left_out", sa.BigInteger(), nullable=True))
    op.add_column("skill_comparisons", sa.Column("refused", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("skill_comparisons", "refused")
    op.drop_column("skill_comparisons", "left_out")
    op.drop_column("skill_comparisons", "labeller")
    op.drop_column("skills", "labeller")
