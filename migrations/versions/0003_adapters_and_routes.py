"""Adapters, routes and what moved them; who runs a gateway; why a policy answered a call; what a
rollout did besides passing."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_COUNTS = ("malformed_calls", "loops")
_JUDGED = {
    "rollouts": "session IS NOT NULL AND success IS NOT NULL",
    "feedback": "success IS NOT NULL",
}
"""Table -> its rows that say how a session went."""


def _place() -> list[sa.Column[object]]:
    return [
        sa.Column("event_source", STRING, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
    ]


def upgrade() -> None:
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        for name in _COUNTS:
            # Rows of older folds hold no count until the rebuild that a new fold version asks for.
            batch_op.add_column(
                sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            )
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.add_column(sa.Column("routed", STRING, nullable=True))
    op.create_index(
        "ix_rollouts_session", "rollouts", ["session"],
        sqlite_where=sa.text("session IS NOT NULL"),
        postgresql_where=sa.text("session IS NOT NULL"),
    )  # fmt: skip
    op.create_index("ix_calls_alias", "calls", ["alias", "started"])
    op.create_index("ix_calls_started", "calls", ["partition", "event_source", "started_sequence"])
    for table, judged in _JUDGED.items():
        op.create_index(
            f"ix_{table}_judged", table, ["partition", "event_source", "sequence"],
            sqlite_where=sa.text(judged), postgresql_where=sa.text(judged),
        )  # fmt: skip
    op.create_table(
        "adapters",
        sa.Column("adapter", STRING, nullable=False),
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("sha256", STRING, nullable=False),
        sa.Column("path", STRING, nullable=False),
        sa.Column("capability", STRING, nullable=True),
        sa.Column("job", STRING, nullable=True),
        sa.Column("origin", STRING, nullable=False),
        sa.Column("state", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("replicas", STRING, nullable=False),
        sa.Column("distance", sa.Float(), nullable=True),
        sa.Column("from_base", sa.Float(), nullable=True),
        sa.Column("incumbent", STRING, nullable=True),
        sa.Column("gate", STRING, nullable=True),
        sa.Column("since", STRING, nullable=True),
        sa.Column("cause", STRING, nullable=False),
        *_place(),
        sa.PrimaryKeyConstraint("adapter"),
    )
    op.create_index("ix_adapters_alias", "adapters", ["alias", "base"])
    op.create_table(
        "routes",
        sa.Column("alias", STRING, nullable=False),
        sa.Column("base", STRING, nullable=False),
        sa.Column("shares", STRING, nullable=False),
        sa.Column("shadow", STRING, nullable=True),
        sa.Column("incumbent", STRING, nullable=True),
        sa.Column("previous", STRING, nullable=False),
        sa.Column("why", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("since", STRING, nullable=True),
        sa.Column("cause", STRING, nullable=False),
        *_place(),
        sa.PrimaryKeyConstraint("alias"),
    )
    op.create_table(
        "serving_steps",
        sa.Column("kind", STRING, nullable=False),
        sa.Column("subject", STRING, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("type", STRING, nullable=False),
        sa.Column("state", STRING, nullable=True),
        sa.Column("refused", STRING, nullable=True),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("event", STRING, nullable=False),
        sa.Column("cause", STRING, nullable=True),
        sa.Column("time", STRING, nullable=True),
        *_place(),
        sa.PrimaryKeyConstraint("kind", "subject", "number"),
    )
    op.create_index("ix_serving_steps_event", "serving_steps", ["event"])
    op.create_table(
        "evaluations",
        sa.Column("adapter", STRING, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("incumbent", STRING, nullable=True),
        sa.Column("environment", STRING, nullable=False),
        sa.Column("tasks", sa.BigInteger(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.Column("incumbent_pass", sa.Float(), nullable=False),
        sa.Column("candidate_pass", sa.Float(), nullable=False),
        sa.Column("event", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        *_place(),
        sa.PrimaryKeyConstraint("adapter", "number"),
    )
    op.create_table(
        "operator_actions",
        sa.Column("event", STRING, autoincrement=False, nullable=False),
        sa.Column("actor", STRING, nullable=False),
        sa.Column("action", STRING, nullable=False),
        sa.Column("arguments", STRING, nullable=False),
        sa.Column("reason", STRING, nullable=False),
        sa.Column("time", STRING, nullable=True),
        *_place(),
        sa.PrimaryKeyConstraint("event"),
    )
    op.create_table(
        "gateways",
        sa.Column("gateway", STRING, nullable=False),
        sa.Column("host", STRING, nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("in_flight", STRING, nullable=False),
        sa.Column("open_sessions", STRING, nullable=False),
        sa.PrimaryKeyConstraint("gateway"),
    )


def downgrade() -> None:
    for name in (
        "gateways", "operator_actions", "evaluations", "serving_steps", "routes", "adapters",
    ):  # fmt: skip
        op.drop_table(name)
    for table in _JUDGED:
        op.drop_index(f"ix_{table}_judged", table)
    op.drop_index("ix_calls_started", "calls")
    op.drop_index("ix_calls_alias", "calls")
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.drop_column("routed")
    op.drop_index("ix_rollouts_session", "rollouts")
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        for name in _COUNTS:
            batch_op.drop_column(name)
