"""Panels as the tables have them: who of a panel answered which calls, and why no member did."""

from collections.abc import Collection
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from consumers.reads import serving
from consumers.reads.serving import AdapterRow
from consumers.tables import Adapter, Call


@dataclass(slots=True)
class PanelTraffic:
    """Calls that a panel answered."""

    calls: int = 0
    by_skill: dict[str | None, int] = field(default_factory=dict)
    """Skill that the router found -> calls; None: the base answered, for a doubt."""
    doubts: dict[str, int] = field(default_factory=dict)
    """Doubt of the router -> calls that the base answered for it."""


def list_panels(connection: Connection, alias: str | None = None) -> list[AdapterRow]:
    """Return the panels of an agent, or of all, the one that moved last first."""
    adapters = Adapter.table().c
    query = select(adapters.adapter).where(adapters.panel.is_not(None))
    if alias is not None:
        query = query.where(adapters.alias == alias)
    names = connection.execute(query.order_by(adapters.offset.desc(), adapters.adapter)).scalars()
    return [serving.find_adapter(connection, name) for name in list(names)]


def read_traffic(connection: Connection, panels: Collection[str]) -> dict[str, PanelTraffic]:
    """Return panel -> the calls that it answered; zeros for one that answered none. A call that no
    engine answered, as one whose member was lost before it, is none of them."""
    calls = Call.table().c
    lost = (func.coalesce(calls.outcome, "") == "failed") & calls.upstream.is_(None)
    query = (
        select(calls.policy, calls.skill, calls.router_doubt, func.count().label("number"))
        .where(calls.policy.in_(sorted(panels)), calls.member.is_not(None), ~lost)
        .group_by(calls.policy, calls.skill, calls.router_doubt)
        .order_by(calls.policy, calls.skill, calls.router_doubt)
    )
    traffic = {panel: PanelTraffic() for panel in sorted(panels)}
    for row in connection.execute(query):
        seen = traffic[row.policy]
        seen.calls += row.number
        # A doubt keeps the skill that was found where no engine has its member.
        skill = row.skill if row.router_doubt is None else None
        seen.by_skill[skill] = seen.by_skill.get(skill, 0) + row.number
        if row.router_doubt is not None:
            seen.doubts[row.router_doubt] = seen.doubts.get(row.router_doubt, 0) + row.number
    return traffic
