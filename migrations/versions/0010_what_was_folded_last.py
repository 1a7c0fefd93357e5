"""Which record was folded last: by it a restored log, and a restored spool, are told."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("positions", sa.Column("last_offset", sa.BigInteger(), nullable=True))
    op.add_column("positions", sa.Column("last_sha256", STRING, nullable=True))
    op.add_column("sources", sa.Column("last_sequence", sa.BigInteger(), nullable=True))
    op.add_column("sources", sa.Column("last_sha256", STRING, nullable=True))


def downgrade() -> None:
    op.drop_column("sources", "last_sha256")
    op.drop_column("sources", "last_sequence")
    op.drop_column("positions", "last_sha256")
    op.drop_column("positions", "last_offset")
