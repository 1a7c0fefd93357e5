"""Routes move to another base when nobody serves theirs any more, and for no other reason."""

from dataclasses import replace

import pytest

from consumers.folds.routing import RouteRefusal, RouteState, apply_route_change
from consumers.reads.serving import RouteRow, RouteTable
from daemon.serving.bases import rebase_routes
from daemon.serving.desired_state import ReplicaContents
from daemon.serving.fleet import Look
from daemon.serving.replica import ReplicaDown
from events.lifecycle import State, after
from events.serving import RouteChanged, RouteShare

OLD, NEW = "base-1", "base-2"
ROUTE = RouteRow(
    alias="agent",
    standing=replace(
        RouteState.of_base(OLD), shares=(RouteShare(adapter="a", share=1),), incumbent="a"
    ),
    why="promoted", reason="", since=None, cause="event-1", offset=3,
)  # fmt: skip
TABLE = RouteTable(position=4, routes=(ROUTE,), adapters=())


def look(*bases: str, lost: bool = False) -> Look:
    """Engines that serve these bases; and one that gives no answer."""
    urls = [f"http://e{place}" for place in range(len(bases))]
    found = {
        url: ReplicaContents(url, base, frozenset()) for url, base in zip(urls, bases, strict=True)
    }
    return Look(found, {"http://away": ReplicaDown("it is away")} if lost else {})


def test_an_alias_moves_where_every_engine_serves_another_base() -> None:
    (turned,) = rebase_routes(TABLE, look(NEW, NEW))
    assert (turned.alias, turned.base, turned.why) == ("agent", NEW, "rebased")
    assert turned.shares == (RouteShare(share=1),)
    standing = apply_route_change(ROUTE.standing, {}, turned)
    assert standing == RouteState.of_base(NEW)
    assert after("a", State.PROMOTED, turned) is State.DRAINING


@pytest.mark.parametrize(
    "seen",
    [look(OLD), look(OLD, NEW), look(NEW, lost=True), look(NEW, "base-3"), look()],
    ids=["the same", "one of two", "one is away", "two others", "nobody answers"],
)
def test_nobody_moves_while_the_old_base_may_be_served(seen: Look) -> None:
    assert rebase_routes(TABLE, seen) == []


@pytest.mark.parametrize(
    "change",
    [
        {"base": OLD},
        {"shares": (RouteShare(adapter="a", share=1),)},
        {"shares": (RouteShare(share=0.5), RouteShare(adapter="a", share=0.5))},
        {"shadow": "a"},
    ],
)
def test_on_another_base_one_begins_with_the_base_alone(change: dict[str, object]) -> None:
    (turned,) = rebase_routes(TABLE, look(NEW))
    other = RouteChanged.model_validate({**turned.model_dump(), **change})
    with pytest.raises(RouteRefusal):
        apply_route_change(ROUTE.standing, {}, other)
