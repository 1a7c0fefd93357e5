"""Which sessions were held out on the base, and with which share."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("calls", sa.Column("holdout", sa.Float(), nullable=True))
    op.add_column("calls", sa.Column("held_out", sa.Boolean(), nullable=True))
    op.create_index(
        "ix_calls_holdout", "calls", ["alias", "started"],
        sqlite_where=sa.text("holdout IS NOT NULL"),
        postgresql_where=sa.text("holdout IS NOT NULL"),
    )  # fmt: skip
    op.add_column("routes", sa.Column("holdout", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("routes", "holdout")
    op.drop_index("ix_calls_holdout", table_name="calls")
    for name in ("held_out", "holdout"):
        op.drop_column("calls", name)
