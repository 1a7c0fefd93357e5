"""The versions of the rules that verdicts were given under."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER = sa.BigInteger()

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("rules", INTEGER, nullable=True))
    op.create_table(
        "rule_versions",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("kind", STRING, nullable=False),
        sa.Column("environment", STRING, nullable=False),
        sa.Column("rules", INTEGER, nullable=False),
        sa.Column("counted", INTEGER, nullable=True),
        sa.Column("before", INTEGER, nullable=True),
        sa.Column("changed", INTEGER, nullable=True),
        sa.PrimaryKeyConstraint("alias", "base", "kind"),
    )


def downgrade() -> None:
    op.drop_table("rule_versions")
    op.drop_column("rollouts", "rules")
