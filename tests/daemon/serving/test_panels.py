"""Panels: composed of adapters, staged by their parts, served, taken back and let go."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from consumers.reads import explanation
from daemon.serving.panels import Composition, CompositionRefusal, compose
from daemon.serving.residency import NoRoom
from events.serving import AdapterStaged, PanelComposed
from ops.random_adapters import Adapters
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home

DESCRIPTIONS = {"refunds": "pays money back", "rebooking": "moves a booking to another day"}


def composed(home: Home, members: Mapping[str, str | None], **fields: Any) -> str:
    """The name of the panel that was composed."""
    descriptions = {skill: DESCRIPTIONS[skill] for skill in members}
    composition = Composition(members, descriptions=descriptions, **fields)
    return compose(home.app, home.fleet, composition, ADA).adapter


def pushed(home: Home, adapters: Adapters) -> tuple[str, str, str]:
    """Two members and a router."""
    first, second, router = (home.push(adapters[name]) for name in ("v1", "v2", "v3"))
    return first, second, router


def ticked(home: Home, most: int = 8) -> list[str]:
    """What went wrong until a round has nothing left to do."""
    troubles: list[str] = []
    for _ in range(most):
        before = home.decided(), home.loaded()
        troubles += home.tick().troubles
        if (home.decided(), home.loaded()) == before:
            return troubles
    raise AssertionError(f"there is something to do after {most} rounds")


def test_a_panel_is_staged_served_and_brought_back_by_its_parts(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    first, second, router = pushed(home, adapters)
    parts = sorted([first, second, router])
    panel = composed(home, {"refunds": first, "rebooking": second}, router=router)
    assert composed(home, {"refunds": first, "rebooking": second}, router=router) == panel
    assert sum(isinstance(event.data, PanelComposed) for event in home.decided()) == 1
    home.publisher.stage(panel, ADA)
    assert home.loaded() == [parts, parts]
    staged = {e.data.adapter for e in home.decided() if isinstance(e.data, AdapterStaged)}
    assert staged == {panel, *parts}
    row, rows = home.row(panel), [home.row(part) for part in parts]
    assert row.distance == max(part.distance or 0 for part in rows)
    assert row.from_base == min(part.from_base or 0 for part in rows)
    home.publisher.promote(panel, ADA, override=True)
    assert home.shares() == {panel: 1.0}
    assert ticked(home) == []
    home.engines[0].restart()
    assert sorted(home.tick().loaded) == parts, "each is proven again"
    assert (home.loaded(), home.state(panel)) == ([parts, parts], "promoted")
    with home.app.reading() as connection:
        (node,) = explanation.explain(connection, "agent").because
    assert (node.kind, [child.node for child in node.because]) == ("panel", [first, second, router])


def test_a_panel_that_is_taken_back_lets_its_parts_go(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """A member that answers by itself stays, and so does everything that a gateway still uses."""
    home = make_home(1)
    first, second, router = pushed(home, adapters)
    parts = sorted([first, second, router])
    home.publisher.promote(first, ADA, override=True)
    panel = composed(home, {"refunds": first, "rebooking": second}, router=router)
    home.publisher.promote(panel, ADA, override=True)
    assert home.state(first) == "draining"
    home.gateway()
    assert ticked(home) == []
    assert home.loaded() == [parts], "the panel needs it, whatever its own state"
    home.gateway(**{panel: 1})
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), home.state(panel)) == ({first: 1.0}, "rolled_back")
    assert ticked(home) == []
    assert home.loaded() == [parts], "a session is still with the panel"
    home.gateway()
    assert ticked(home) == []
    assert home.loaded() == [[first]]
    assert [home.state(name) for name in (panel, second, router)] == ["unloaded"] * 3
    reasons = [step.reason for step in home.steps(second) if step.state == "draining"]
    assert reasons == ["the last panel that named it is unloaded"]
    home.later = timedelta(days=1)
    assert ticked(home) == []
    with home.app.reading() as connection:
        states = {row.adapter: row.state for row in home.table().adapters}
        assert connection is not None
    assert states == {first: "promoted"}, "the others are collected, the panel before its parts"
    assert "was collected" not in " ".join(step.refused or "" for step in home.steps(panel))


def test_a_panel_that_was_served_before_is_brought_back_by_a_rollback(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_loras": 4, "max_cpu_loras": 4})
    first, second, third = pushed(home, adapters)
    panel = composed(home, {"refunds": first, "rebooking": second}, router=first)
    home.publisher.promote(panel, ADA, override=True)
    home.publisher.promote(third, ADA, override=True)
    assert ticked(home) == []
    assert (home.state(panel), home.loaded()) == ("draining", [sorted([first, second, third])])
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), home.state(panel)) == ({panel: 1.0}, "promoted")
    assert ticked(home) == []
    assert home.loaded() == [sorted([first, second])]
    home.publisher.retire(third, ADA) if home.state(third) == "staged" else None
    home.publisher.promote(third, ADA, override=True)
    wide = [home.push(adapters["v1"], name=f"wide-{n}") for n in range(2)]
    home.publisher.stage(wide[0], ADA)
    home.publisher.stage(wide[1], ADA)
    assert home.state(panel) == "unloaded", "what is only kept makes room, and the panel as a whole"
    assert ticked(home) == []
    home.publisher.retire(wide[0], ADA)
    home.publisher.retire(wide[1], ADA)
    assert ticked(home) == []
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), home.loaded()) == ({panel: 1.0}, [sorted([first, second, third])])


def test_a_panel_without_slots_for_all_of_its_parts_is_staged_nowhere(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_loras": 2})
    first, second, router = pushed(home, adapters)
    panel = composed(home, {"refunds": first, "rebooking": second}, router=router)
    with pytest.raises(NoRoom, match=r"no slots for the 3 adapters .* 3 are needed .* is 2"):
        home.publisher.stage(panel, ADA)
    assert (home.loaded(), home.state(panel)) == ([[]], "produced")
