"""Which policies answer an alias now: what a round's numbers are about.

The routes table says it, as of the event that is folded: the shares of the route, the base where it
has a share; an alias without a route is answered by its base. What an import brings was recorded
elsewhere, so it always counts. Failures of any other policy say nothing of who answers: they are
claimed by the round and count in none of its numbers. Nor do verdicts under older rules than others
of their kind of task (rule_versions.py).
"""

import json
from typing import Any

from sqlalchemy import Connection, and_, or_, select
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis.rule_versions import follows_newest_rules
from consumers.tables import Route


def is_current(connection: Connection, rollouts: Any) -> ColumnElement[bool]:
    """Whether a rollout (columns of the table) says anything of who answers now: its policy does,
    and no verdict on its kind of task was given under newer rules."""
    return and_(answers_now(connection, rollouts), follows_newest_rules(rollouts))


def answers_now(connection: Connection, rollouts: Any) -> ColumnElement[bool]:
    """Whether a rollout (columns of the table) was imported, or played by a policy that answers its
    alias on its base now."""
    routes = Route.table().c
    rows = connection.execute(
        select(routes.alias, routes.base, routes.shares).order_by(routes.alias)
    ).all()
    routed = [
        and_(
            rollouts.alias == row.alias,
            rollouts.base == row.base,
            rollouts.policy.in_(
                sorted({part["adapter"] or row.base for part in json.loads(row.shares)})
            ),
        )
        for row in rows
    ]
    by_base = and_(
        rollouts.alias.not_in([row.alias for row in rows]), rollouts.policy == rollouts.base
    )
    return or_(rollouts.purpose == "import", by_base, *routed)
