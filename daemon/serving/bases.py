"""A new base model: move routes of an old one to what the engines serve now.

    rebase_routes(table, look)     the routes that turn, by alias
    move(app, fleet)         the same, decided

An adapter is a difference to one base, and is noise on any other. So when every engine answers and
none serves the base of a route any more, but all serve one other, the alias begins anew there: the
new base answers alone, and the old one's adapters drain. Tasks stay, numbers are kept for each base
separately. Guarantee: no route moves while an engine is away, for it may serve the old base when it
is back. Not covered: engines of several new bases; an operator then chooses one.
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
    """Return the routes whose base no engine serves any more, on the one base that all engines
    serve."""
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
    """Turn the routes whose base is gone; return those that turned. The caller holds
    `hold_serving_lock`. Raises LogError, DatabaseUnavailable, DecisionRefusal."""
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
