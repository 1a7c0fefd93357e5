"""An index of rollouts by agent: what is asked for with every tick reads a few rows of it."""

from collections.abc import Sequence

from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("ix_rollouts_agent", "rollouts", ["alias", "base", "purpose", "time"])


def downgrade() -> None:
    op.drop_index("ix_rollouts_agent", table_name="rollouts")
