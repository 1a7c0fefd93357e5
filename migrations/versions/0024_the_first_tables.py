"""The oldest tables that a revision can upgrade. New databases get all tables at once
(migrations/head.py), so there is nothing to do here."""

from collections.abc import Sequence

revision: str = "0024"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Do nothing."""


def downgrade() -> None:
    """Do nothing."""
