"""Panels: composed of adapters, staged by their parts, served, taken back and let go."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads import explanation
from consumers.reads.serving import UnknownAdapter
from daemon.adapters.adoption import FINGERPRINT
from daemon.core.serving_lock import hold_serving_lock
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.skills.panels import (
    Composition,
    CompositionRefusal,
    compose,
    measure_calibration,
)
from daemon.serving import bases
from daemon.serving.fleet import NoReplica
from daemon.serving.residency import NoRoom
from daemon.serving.staging import StageRefusal
from events.serving import AdapterStaged, PanelComposed
from ops.random_adapters import Adapters
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home

DESCRIPTIONS: Final = {"refunds": "pays money back", "rebooking": "moves a booking to another day"}


def compose_panel(home: Home, members: Mapping[str, str | None], **fields: Any) -> str:
    """Compose a panel and return its name."""
    descriptions = {skill: DESCRIPTIONS[skill] for skill in members}
    composition = Composition(members, descriptions=descriptions, **fields)
    return compose(home.app, home.fleet, composition, ADA).adapter


def push_parts(home: Home, adapters: Adapters) -> tuple[str, str, str]:
    """Push two members and a router."""
    first, second, router = (home.push(adapters[name]) for name in ("v1", "v2", "v3"))
    return first, second, router


def tick_until_idle(home: Home, most: int = 8) -> list[str]:
    """Tick until a round has nothing left to do; return what went wrong."""
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
    first, second, router = push_parts(home, adapters)
    parts = sorted([first, second, router])
    panel = compose_panel(home, {"refunds": first, "rebooking": second}, router=router)
    assert compose_panel(home, {"refunds": first, "rebooking": second}, router=router) == panel
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
    assert tick_until_idle(home) == []
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
    first, second, router = push_parts(home, adapters)
    parts = sorted([first, second, router])
    home.publisher.promote(first, ADA, override=True)
    panel = compose_panel(home, {"refunds": first, "rebooking": second}, router=router)
    home.publisher.promote(panel, ADA, override=True)
    assert home.state(first) == "draining"
    home.gateway()
    assert tick_until_idle(home) == []
    assert home.loaded() == [parts], "the panel needs it, whatever its own state"
    home.gateway("g", 1 << 40, **{panel: 1})
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), home.state(panel)) == ({first: 1.0}, "rolled_back")
    assert tick_until_idle(home) == []
    assert home.loaded() == [parts], "a session is still with the panel"
    home.gateway()
    assert tick_until_idle(home) == []
    assert home.loaded() == [[first]]
    assert [home.state(name) for name in (panel, second, router)] == ["unloaded"] * 3
    reasons = [step.reason for step in home.steps(second) if step.state == "draining"]
    assert reasons == ["the last version with it is unloaded"]
    home.later = timedelta(days=1)
    assert home.tick().collected == [panel], "its parts could be staged again with it until now"
    assert sorted(home.tick().collected) == sorted([second, router])
    states = {row.adapter: row.state for row in home.table().adapters}
    assert states == {first: "promoted"}


def test_a_panel_that_was_served_before_is_brought_back_by_a_rollback(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_loras": 4, "max_cpu_loras": 4})
    first, second, third = push_parts(home, adapters)
    panel = compose_panel(home, {"refunds": first, "rebooking": second}, router=first)
    home.publisher.promote(panel, ADA, override=True)
    home.publisher.promote(third, ADA, override=True)
    assert tick_until_idle(home) == []
    assert (home.state(panel), home.loaded()) == ("draining", [sorted([first, second, third])])
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), home.state(panel)) == ({panel: 1.0}, "promoted")
    assert tick_until_idle(home) == []
    assert home.loaded() == [sorted([first, second])]
    home.publisher.promote(third, ADA, override=True)
    for name in ("one-more", "and-one-more"):
        home.publisher.stage(home.push(adapters["v1"], name=name), ADA)
    assert home.state(panel) == "unloaded", "what is only kept makes room, and the panel as a whole"
    assert tick_until_idle(home) == []
    assert home.loaded() == [sorted([third, "one-more", "and-one-more"])]
    for name in ("one-more", "and-one-more"):
        home.publisher.retire(name, ADA)
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), home.state(panel)) == ({panel: 1.0}, "promoted")
    assert tick_until_idle(home) == []
    assert home.loaded() == [sorted([first, second])]


def test_a_panel_without_slots_for_all_of_its_parts_is_staged_nowhere(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_loras": 2})
    first, second, router = push_parts(home, adapters)
    panel = compose_panel(home, {"refunds": first, "rebooking": second}, router=router)
    with pytest.raises(NoRoom, match=r"no slots for the 3 adapters .* 3 are needed .* is 2"):
        home.publisher.stage(panel, ADA)
    assert (home.loaded(), home.state(panel)) == ([[]], "produced")


def test_a_part_that_cannot_be_staged_leaves_the_panel_and_every_route_as_they_were(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    first, second, router = push_parts(home, adapters)
    answers = (Path(home.row(first).path) / FINGERPRINT).read_bytes()
    (Path(home.row(router).path) / FINGERPRINT).write_bytes(answers)
    served = home.serve(adapters["v1"], name="served")
    panel = compose_panel(home, {"refunds": first, "rebooking": second}, router=router)
    with pytest.raises(StageRefusal, match=f"{panel} is not staged: {router} was staged nowhere"):
        home.publisher.promote(panel, ADA, override=True)
    assert (home.shares(), home.state(panel)) == ({served: 1.0}, "produced")
    home.publisher.retire(panel, ADA)
    assert tick_until_idle(home) == []
    assert home.loaded() == [[served]], "what was staged for it goes with it"


def test_the_base_as_router_is_asked_for_its_labels_and_its_bias_once(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    first, second, _ = push_parts(home, adapters)
    panel = compose_panel(home, {"refunds": first[:-2], "rebooking": None})
    content = home.row(panel).composition
    assert content is not None
    assert [member.adapter for member in content.members] == [first, None]
    options = content.router.options
    assert [(o.label, o.skill) for o in options] == [
        ("A", "refunds"), ("B", "rebooking"), ("C", None),
    ]  # fmt: skip
    assert options[0].description == DESCRIPTIONS["refunds"]
    (engine,) = home.fleet.engines.values()
    measured = measure_calibration(engine, "reference", content.router)
    for row, again in zip(content.router.calibration, measured, strict=True):
        assert row == pytest.approx(again, abs=1e-4)
        assert all(score < 0 for score in row)
        assert len(set(row)) == 3
    assert compose_panel(home, {"refunds": first, "rebooking": None}) == panel
    assert compose_panel(home, {"refunds": second, "rebooking": None}) != panel


def test_what_cannot_be_a_panel_is_refused_before_it_is_one(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    first, second, _ = push_parts(home, adapters)
    other = home.push(adapters["v1"], name="other", alias="another")
    elsewhere = home.push(adapters["v1"], name="elsewhere", base="old")
    panel = compose_panel(home, {"refunds": first}, router=second)
    before = home.decided()
    for members, words in (
        ({"refunds": other, "rebooking": first}, "adapters of one agent on one base"),
        ({"refunds": panel}, "no panel is a part of another"),
        ({"refunds": None}, "the base answers every skill"),
        ({}, "a panel of 0 skills"),
    ):
        with pytest.raises(CompositionRefusal, match=words):
            compose_panel(home, members)
    with pytest.raises(CompositionRefusal, match="26th label means no skill"):
        compose(home.app, home.fleet, Composition({f"s{n}": first for n in range(26)}), ADA)
    with pytest.raises(CompositionRefusal, match="nothing is known of the skill upgrades"):
        compose(home.app, home.fleet, Composition({"upgrades": first}), ADA)
    for skill, text in (("refunds", "x" * 5_000), ("x" * 300, "pays")):
        composition = Composition({skill: first}, descriptions={skill: text})
        with pytest.raises(CompositionRefusal, match=r"cannot be an option .* more briefly"):
            compose(home.app, home.fleet, composition, ADA)
    with pytest.raises(UnknownAdapter, match="there is no adapter 'nobody'"):
        compose_panel(home, {"refunds": "nobody"})
    with pytest.raises(NoReplica, match="an engine of old, and there is none"):
        compose_panel(home, {"refunds": elsewhere})
    assert home.decided() == before


def test_a_panel_of_a_base_that_no_engine_serves_any_more_goes_with_its_parts(
    make_home: MakeHome, adapters: Adapters, reference: tuple[Policy, Chat]
) -> None:
    home = make_home(1)
    first, second, _ = push_parts(home, adapters)
    panel = compose_panel(home, {"refunds": first, "rebooking": second}, router=first)
    home.publisher.promote(panel, ADA, override=True)
    home.engines[0].stop()
    home.engines[0].policy = Policy.load(CHECKPOINT, "another")
    home.engines[0].start()
    with hold_serving_lock(home.app.home):
        assert [route.base for route in bases.move(home.app, home.fleet)] == ["another"]
    assert tick_until_idle(home) == []
    assert [home.state(name) for name in (panel, first, second)] == ["unloaded"] * 3
