"""Which bodies of tasks have a lesson: the column is filled from the bodies, as the fold does."""

import json
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

STRING = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("task_bodies", sa.Column("operator", STRING, nullable=True))
    bodies = sa.table("task_bodies", *(sa.column(name) for name in ("task", "body", "operator")))
    connection = op.get_bind()
    query = sa.select(bodies.c.task, bodies.c.body).where(bodies.c.body.contains('"lesson":{'))
    for task, body in connection.execute(query).all():
        lesson = json.loads(body).get("lesson")
        operator = lesson.get("operator") if isinstance(lesson, dict) else None
        if isinstance(operator, str):
            change = sa.update(bodies).where(bodies.c.task == task).values(operator=operator)
            connection.execute(change)


def downgrade() -> None:
    op.drop_column("task_bodies", "operator")
