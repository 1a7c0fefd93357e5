"""After a change of the base model, move routes from the old base to the new one.

If every engine answers and all serve another base, the new base answers the alias alone. The old
base's adapters get no new sessions. Guarantee: no route moves while an engine is away, since it may
serve the old base. Not covered: several new bases.
"""

from typing import TYPE_CHECKING

from consumers.reads import serving
from consumers.reads.serving import RouteTable
from daemon.core.decision_log import Decisions
from daemon.serving.fleet import Fleet, Look
from events.serving import RouteChanged, RouteShare

if TYPE_CHECKING:
    from daemon.core.app import App


def rebase_routes(table: RouteTable, look: Look) -> list[RouteChanged]:
    """Return routes to the base that all engines serve, for aliases on a base that none serves."""
    served = {contents.base for contents in look.holding.values()}
    if look.lost or len(served) != 1:
        return []
    (base,) = served
    return [
        RouteChanged(
            alias=route.alias,
            base=base,
            shares=(RouteShare(share=1),),
            why="rebased",
            reason=f"the engines serve {base}, and no longer {route.standing.base}",
        )
        for route in table.routes
        if route.standing.base != base
    ]


def move(app: "App", fleet: Fleet) -> list[RouteChanged]:
    """Append and return the routes of aliases whose base is gone. Call within `hold_serving_lock`.
    Raises LogError, DatabaseUnavailable, DecisionRefusal."""
    with app.reading() as connection:
        table = serving.route_table(connection)
    if not table.routes or not fleet.engines:
        return []
    turned = rebase_routes(table, fleet.look())
    for route in turned:
        standing = table.route(route.alias)
        assert standing is not None, "it is one of the table's"
        Decisions(app).take(route, f"rebased {route.base}", standing.cause)
    return turned
