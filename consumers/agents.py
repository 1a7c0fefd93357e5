"""Which agents there are, and on which base each of them runs now.

An agent is an alias; its numbers are kept per (alias, base). The present base is the one that
answered its newest rollout: what the engines serve is no fact of the log, who answered is one.
"""

from sqlalchemy import Connection, func, select

from consumers.tables import Rollout
from consumers.tally import LIVE_PURPOSES, Pair


def present(connection: Connection) -> list[Pair]:
    """Every agent with its present base, by alias."""
    rollouts = Rollout.table().c
    place = func.row_number().over(
        partition_by=rollouts.alias,
        order_by=(rollouts.time.desc().nulls_last(), rollouts.rollout.desc()),
    )
    ranked = (
        select(rollouts.alias, rollouts.base, place.label("place"))
        .where(rollouts.purpose.in_(LIVE_PURPOSES))
        .subquery()
    )
    query = select(ranked.c.alias, ranked.c.base).where(ranked.c.place == 1)
    return [Pair(row.alias, row.base) for row in connection.execute(query.order_by("alias"))]
