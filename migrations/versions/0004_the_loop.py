"""Cycles, the tasks and jobs of each, and who leads."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_OF_PROPOSED = ("base", "cycle", "mode", "verified", "text_by", "event")
"""Texts of a task that was written for a pattern."""


def _place() -> list[sa.Column[object]]:
    return [
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
    ]


def upgrade() -> None:
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        for name in _OF_PROPOSED:
            batch_op.add_column(sa.Column(name, STRING, nullable=True))
        batch_op.add_column(sa.Column("offset", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_tasks_event", "tasks", ["event"],
        sqlite_where=sa.text("event IS NOT NULL"), postgresql_where=sa.text("event IS NOT NULL"),
    )  # fmt: skip
    op.create_table(
        "leaders",
        sa.Column("name", STRING, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", STRING, nullable=False),
        sa.Column("since", STRING, nullable=True),
        *_place(),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "leases",
        sa.Column("name", STRING, nullable=False),
        sa.Column("holder", STRING, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    _create_cycles()
    _create_rejections()
    _create_jobs()


def _create_cycles() -> None:
    op.create_table(
        "learning_cycles",
        sa.Column("cycle", STRING, nullable=False),
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("environment", STRING, nullable=False),
        sa.Column("trigger", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("position", STRING, nullable=False),
        sa.Column("slot", STRING, nullable=True),
        sa.Column("acted", STRING, nullable=True),
        sa.Column("round", sa.BigInteger(), nullable=True),
        sa.Column("directive", STRING, nullable=True),
        sa.Column("findings", STRING, nullable=True),
        sa.Column("summary", STRING, nullable=True),
        sa.Column("analyzer", STRING, nullable=True),
        sa.Column("trouble", STRING, nullable=True),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("rejected", sa.BigInteger(), nullable=False),
        sa.Column("job", STRING, nullable=True),
        sa.Column("outcome", STRING, nullable=True),
        sa.Column("ended_because", STRING, nullable=True),
        sa.Column("event", STRING, nullable=False),
        sa.Column("started", STRING, nullable=True),
        sa.Column("diagnosed", STRING, nullable=True),
        sa.Column("directed", STRING, nullable=True),
        sa.Column("ended", STRING, nullable=True),
        *_place(),
        sa.PrimaryKeyConstraint("cycle"),
    )
    op.create_index("ix_learning_cycles_alias", "learning_cycles", ["alias", "base", "number"])


def _create_rejections() -> None:
    op.create_table(
        "task_rejections",
        sa.Column("event", STRING, autoincrement=False, nullable=False),
        sa.Column("cycle", STRING, nullable=False),
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("pattern", STRING, nullable=False),
        sa.Column("mode", STRING, nullable=False),
        sa.Column("check", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("source_rollout", STRING, nullable=True),
        sa.Column("instruction", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        *_place(),
        sa.PrimaryKeyConstraint("event"),
    )
    op.create_index("ix_task_rejections_cycle", "task_rejections", ["cycle"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job", STRING, nullable=False),
        sa.Column("cycle", STRING, nullable=True),
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("capability", STRING, nullable=True),
        sa.Column("spec", STRING, nullable=False),
        sa.Column("minutes", sa.Float(), nullable=False),
        sa.Column("outcome", STRING, nullable=True),
        sa.Column("reason", STRING, nullable=True),
        sa.Column("adapter", STRING, nullable=True),
        sa.Column("sha256", STRING, nullable=True),
        sa.Column("steps", sa.BigInteger(), nullable=True),
        sa.Column("rollouts", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("attempts", sa.BigInteger(), nullable=True),
        sa.Column("event", STRING, nullable=False),
        sa.Column("requested", STRING, nullable=True),
        sa.Column("ended", STRING, nullable=True),
        *_place(),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_index(
        "ix_jobs_open", "jobs", ["offset"],
        sqlite_where=sa.text("outcome IS NULL"), postgresql_where=sa.text("outcome IS NULL"),
    )  # fmt: skip


def downgrade() -> None:
    for name in ("jobs", "task_rejections", "learning_cycles", "leases", "leaders"):
        op.drop_table(name)
    op.drop_index("ix_tasks_event", "tasks")
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        for name in ("offset", *_OF_PROPOSED):
            batch_op.drop_column(name)
