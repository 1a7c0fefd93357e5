"""Which bodies of tasks have a lesson; a rebuild fills it for those that are there."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("task_bodies", sa.Column("operator", STRING, nullable=True))


def downgrade() -> None:
    op.drop_column("task_bodies", "operator")
