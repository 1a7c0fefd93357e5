"""Panels: their members and router, who answered a call, and the jobs of a cycle by skill."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

STRINGS = (
    ("adapters", "panel"),
    ("calls", "member"),
    ("calls", "skill"),
    ("calls", "router_doubt"),
    ("rollouts", "member"),
    ("rollouts", "skill"),
    ("jobs", "skill"),
    ("jobs", "teaches"),
    ("learning_cycles", "panel"),
)


def upgrade() -> None:
    for table, column in STRINGS:
        op.add_column(table, sa.Column(column, STRING, nullable=True))
    op.add_column("calls", sa.Column("router_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("calls", "router_ms")
    for table, column in reversed(STRINGS):
        op.drop_column(table, column)
