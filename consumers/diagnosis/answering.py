"""The policies that answer an alias now; only their rollouts count in a round's numbers. They have
a share of the route at the folded event; without a route, the base answers. Imported rollouts
always count. A round also claims rollouts of other policies, but does not count them."""

import json
from typing import Any

from sqlalchemy import Connection, and_, or_, select
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis.rule_versions import follows_newest_rules
from consumers.tables import Route


def is_current(connection: Connection, rollouts: Any) -> ColumnElement[bool]:
    """Return the SQL condition that a rollout's policy answers now and no newer rules judged its
    kind of task."""
    return and_(answers_now(connection, rollouts), follows_newest_rules(rollouts))


def answers_now(connection: Connection, rollouts: Any) -> ColumnElement[bool]:
    """Return the SQL condition that a rollout was imported or its policy answers now."""
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
