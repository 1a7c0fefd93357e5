"""The projection tables."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "calls",
        sa.Column("call", STRING, nullable=False),
        sa.Column("session", STRING, nullable=False),
        sa.Column("alias", STRING, nullable=True),
        sa.Column("base", STRING, nullable=True),
        sa.Column("policy", STRING, nullable=True),
        sa.Column("task", STRING, nullable=True),
        sa.Column("parent", STRING, nullable=True),
        sa.Column("parent_messages", sa.BigInteger(), nullable=True),
        sa.Column("stream", sa.Boolean(), nullable=True),
        sa.Column("sampling", STRING, nullable=True),
        sa.Column("started", STRING, nullable=True),
        sa.Column("outcome", STRING, nullable=True),
        sa.Column("finish_reason", STRING, nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=True),
        sa.Column("trainable", sa.Boolean(), nullable=True),
        sa.Column("untrainable_because", STRING, nullable=True),
        sa.Column("invalid_tool_calls", sa.BigInteger(), nullable=True),
        sa.Column("error", STRING, nullable=True),
        sa.Column("ended", STRING, nullable=True),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("started_sequence", sa.BigInteger(), nullable=True),
        sa.Column("ended_sequence", sa.BigInteger(), nullable=True),
        sa.Column("started_offset", sa.BigInteger(), nullable=True),
        sa.Column("ended_offset", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("call"),
    )
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.create_index("ix_calls_session", ["session"], unique=False)

    op.create_table(
        "cycles",
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trigger", STRING, nullable=False),
        sa.Column("rollouts", sa.BigInteger(), nullable=False),
        sa.Column("judged", sa.BigInteger(), nullable=False),
        sa.Column("unjudged", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("patterns", sa.BigInteger(), nullable=False),
        sa.Column("other", sa.BigInteger(), nullable=False),
        sa.Column("position", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("round"),
    )
    op.create_table(
        "dead_letters",
        sa.Column("stream", STRING, nullable=False),
        sa.Column("partition", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("event_source", STRING, autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("type", STRING, nullable=True),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "partition", "event_source", "sequence"),
    )
    op.create_table(
        "feedback",
        sa.Column("feedback", STRING, nullable=False),
        sa.Column("session", STRING, nullable=False),
        sa.Column("call", STRING, nullable=True),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("success", sa.Boolean(), nullable=True),
        sa.Column("tags", STRING, nullable=False),
        sa.Column("verified", sa.Boolean(), nullable=False),
        sa.Column("time", STRING, nullable=True),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("feedback"),
    )
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.create_index("ix_feedback_session", ["session"], unique=False)

    op.create_table(
        "pattern_rounds",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("pattern", STRING, nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("passes", sa.BigInteger(), nullable=False),
        sa.Column("pass_rate", sa.Float(), nullable=False),
        sa.Column("recurrence", sa.Float(), nullable=False),
        sa.Column("streak", sa.BigInteger(), nullable=False),
        sa.Column("absent", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.Column("status", STRING, nullable=False),
        sa.PrimaryKeyConstraint("alias", "base", "pattern", "round"),
    )
    op.create_table(
        "patterns",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("pattern", STRING, nullable=False),
        sa.Column("category", STRING, nullable=False),
        sa.Column("pivot", STRING, nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("passes", sa.BigInteger(), nullable=False),
        sa.Column("pass_rate", sa.Float(), nullable=False),
        sa.Column("recurrence", sa.Float(), nullable=False),
        sa.Column("streak", sa.BigInteger(), nullable=False),
        sa.Column("absent", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.Column("status", STRING, nullable=False),
        sa.Column("examples", STRING, nullable=False),
        sa.Column("first_round", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("alias", "base", "pattern"),
    )
    op.create_table(
        "positions",
        sa.Column("stream", STRING, nullable=False),
        sa.Column("partition", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "partition"),
    )
    op.create_table(
        "projection",
        sa.Column("name", STRING, nullable=False),
        sa.Column("fold_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "rollouts",
        sa.Column("rollout", STRING, nullable=False),
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("policy", STRING, nullable=False),
        sa.Column("source", STRING, nullable=False),
        sa.Column("purpose", STRING, nullable=False),
        sa.Column("session", STRING, nullable=True),
        sa.Column("task", STRING, nullable=True),
        sa.Column("task_key", STRING, nullable=False),
        sa.Column("environment", STRING, nullable=True),
        sa.Column("capability", STRING, nullable=True),
        sa.Column("trial", sa.BigInteger(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("success", sa.Boolean(), nullable=True),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("termination", STRING, nullable=True),
        sa.Column("time", STRING, nullable=True),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("tool_calls", sa.BigInteger(), nullable=False),
        sa.Column("tool_errors", sa.BigInteger(), nullable=False),
        sa.Column("category", STRING, nullable=True),
        sa.Column("categories", STRING, nullable=False),
        sa.Column("pivot", STRING, nullable=True),
        sa.Column("evidence", STRING, nullable=True),
        sa.Column("trace_key", STRING, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=True),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout"),
    )
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        batch_op.create_index("ix_rollouts_round", ["round", "alias", "base"], unique=False)
        batch_op.create_index(
            "ix_rollouts_unread",
            ["partition", "event_source", "sequence"],
            unique=False,
            sqlite_where=sa.text("round IS NULL"),
            postgresql_where=sa.text("round IS NULL"),
        )

    op.create_table(
        "sources",
        sa.Column("stream", STRING, nullable=False),
        sa.Column("partition", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("beyond", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("stream", "partition", "source"),
    )
    op.create_table(
        "task_patterns",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("task_key", STRING, nullable=False),
        sa.Column("pattern", STRING, nullable=False),
        sa.PrimaryKeyConstraint("alias", "base", "task_key", "pattern"),
    )
    op.create_table(
        "tasks",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("task", STRING, nullable=False),
        sa.Column("environment", STRING, nullable=True),
        sa.Column("capability", STRING, nullable=True),
        sa.Column("instruction", STRING, nullable=True),
        sa.Column("gold_actions", STRING, nullable=True),
        sa.Column("outputs", STRING, nullable=False),
        sa.Column("reward_basis", STRING, nullable=False),
        sa.Column("definition", STRING, nullable=True),
        sa.Column("origin", STRING, nullable=False),
        sa.Column("pattern", STRING, nullable=True),
        sa.Column("source_rollout", STRING, nullable=True),
        sa.Column("order_key", STRING, nullable=False),
        sa.PrimaryKeyConstraint("alias", "task"),
    )


def downgrade() -> None:
    op.drop_table("tasks")
    op.drop_table("task_patterns")
    op.drop_table("sources")
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_rollouts_unread",
            sqlite_where=sa.text("round IS NULL"),
            postgresql_where=sa.text("round IS NULL"),
        )
        batch_op.drop_index("ix_rollouts_round")

    op.drop_table("rollouts")
    op.drop_table("projection")
    op.drop_table("positions")
    op.drop_table("patterns")
    op.drop_table("pattern_rounds")
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.drop_index("ix_feedback_session")

    op.drop_table("feedback")
    op.drop_table("dead_letters")
    op.drop_table("cycles")
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.drop_index("ix_calls_session")

    op.drop_table("calls")
