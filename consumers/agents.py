"""Which agents there are, and on which base each of them runs now.

An agent is an alias; its numbers are kept per (alias, base). The present base is the one that
answered its newest rollout: what the engines serve is no fact of the log, who answered is one.
A live rollout in which nobody answered, say for a client who asked for a model that does not exist,
says nothing of that; it counts only where there is no other.
"""

from typing import Final

from sqlalchemy import Connection, and_, case, func, select

from consumers.tables import Rollout
from consumers.tally import LIVE_PURPOSES, Pair

_NOBODY: Final = "unknown"
"""What a gateway notes as the base of a call that no engine was asked for."""


def present(connection: Connection) -> list[Pair]:
    """Every agent with its present base, by alias."""
    rollouts = Rollout.table().c
    unanswered = case((and_(rollouts.purpose == "live", rollouts.base == _NOBODY), 1), else_=0)
    place = func.row_number().over(
        partition_by=rollouts.alias,
        order_by=(unanswered, rollouts.time.desc().nulls_last(), rollouts.rollout.desc()),
    )
    ranked = (
        select(rollouts.alias, rollouts.base, place.label("place"))
        .where(rollouts.purpose.in_(LIVE_PURPOSES))
        .subquery()
    )
    query = select(ranked.c.alias, ranked.c.base).where(ranked.c.place == 1)
    return [Pair(row.alias, row.base) for row in connection.execute(query.order_by("alias"))]
