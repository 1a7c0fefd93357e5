"""The data engine: plans, whose fault a failure was, and adapters that play users."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER = sa.BigInteger()

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

NAMED = ("tasks", "task_rejections")


def upgrade() -> None:
    for table in NAMED:
        op.add_column(table, sa.Column("plans", STRING, nullable=True))
        op.add_column(table, sa.Column("plan", STRING, nullable=True))
        op.add_column(table, sa.Column("plan_revision", INTEGER, nullable=True))
    op.add_column("adapters", sa.Column("role", STRING, nullable=False, server_default="agent"))
    op.add_column("adapters", sa.Column("user_gate", STRING, nullable=True))
    _create_plan_sets()
    _create_plans()
    _create_plan_changes()
    _create_trajectory_verdicts()


def _create_plan_sets() -> None:
    op.create_table(
        "plan_sets",
        sa.Column("plans", STRING, nullable=False),
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("environment", STRING, nullable=False),
        sa.Column("cycle", STRING, nullable=True),
        sa.Column("patterns", STRING, nullable=False),
        sa.Column("overlap", sa.Float(), nullable=False),
        sa.Column("uncovered", STRING, nullable=False),
        sa.Column("writer", STRING, nullable=True),
        sa.Column("refused", STRING, nullable=False),
        sa.Column("trouble", STRING, nullable=False),
        sa.Column("round", INTEGER, nullable=False),
        sa.Column("stopped", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", INTEGER, nullable=False),
        sa.Column("offset", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("plans"),
    )
    op.create_index("ix_plan_sets_alias", "plan_sets", ["alias", "base"])


def _create_plans() -> None:
    op.create_table(
        "plans",
        sa.Column("plans", STRING, nullable=False),
        sa.Column("plan", STRING, nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("revision", INTEGER, nullable=False),
        sa.Column("definition", STRING, nullable=False),
        sa.Column("tries", INTEGER, nullable=False),
        sa.Column("accepted", INTEGER, nullable=False),
        sa.Column("task_faults", INTEGER, nullable=False),
        sa.Column("user_faults", INTEGER, nullable=False),
        sa.Column("trajectory_faults", INTEGER, nullable=False),
        sa.Column("disagreements", INTEGER, nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", INTEGER, nullable=False),
        sa.Column("offset", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("plans", "plan"),
    )


def _create_plan_changes() -> None:
    op.create_table(
        "plan_changes",
        sa.Column("plans", STRING, nullable=False),
        sa.Column("plan", STRING, nullable=False),
        sa.Column("round", INTEGER, nullable=False),
        sa.Column("revision", INTEGER, nullable=False),
        sa.Column("definition", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("failures", STRING, nullable=False),
        sa.Column("tries_before", INTEGER, nullable=False),
        sa.Column("accepted_before", INTEGER, nullable=False),
        sa.Column("tries", INTEGER, nullable=False),
        sa.Column("accepted", INTEGER, nullable=False),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.Column("writer", STRING, nullable=True),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", INTEGER, nullable=False),
        sa.Column("offset", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("plans", "plan", "round"),
    )


def _create_trajectory_verdicts() -> None:
    op.create_table(
        "trajectory_verdicts",
        sa.Column("rollout", STRING, nullable=False),
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("cycle", STRING, nullable=True),
        sa.Column("task", STRING, nullable=False),
        sa.Column("plans", STRING, nullable=True),
        sa.Column("plan", STRING, nullable=True),
        sa.Column("fault", STRING, nullable=True),
        sa.Column("rule", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("opinion_by", STRING, nullable=True),
        sa.Column("opinion", STRING, nullable=True),
        sa.Column("opinion_reason", STRING, nullable=True),
        sa.Column("agrees", sa.Boolean(), nullable=True),
        sa.Column("trouble", STRING, nullable=False),
        sa.Column("siblings", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", INTEGER, nullable=False),
        sa.Column("offset", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("rollout"),
    )
    op.create_index("ix_trajectory_verdicts_task", "trajectory_verdicts", ["alias", "task"])


def downgrade() -> None:
    op.drop_table("trajectory_verdicts")
    op.drop_table("plan_changes")
    op.drop_table("plans")
    op.drop_table("plan_sets")
    op.drop_column("adapters", "user_gate")
    op.drop_column("adapters", "role")
    for table in reversed(NAMED):
        for column in ("plan_revision", "plan", "plans"):
            op.drop_column(table, column)
