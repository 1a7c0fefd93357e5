"""Verdicts on rollouts from other sources than their success; a rebuild fills them."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("verdicts", STRING, nullable=True))


def downgrade() -> None:
    op.drop_column("rollouts", "verdicts")
