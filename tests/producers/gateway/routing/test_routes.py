"""Who answers a call by the routes: by the shares, always the same, and grown one way."""

from itertools import pairwise
from math import sqrt
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from events.rollouts import HoldoutDraw
from events.serving import RouteShare
from producers.gateway.routing.routes import (
    Adapter,
    Choice,
    GatewayRoute,
    GatewayRoutes,
    Policy,
    choose,
    draw_policy,
    is_held_out,
    is_shadow,
    shadow_session,
)

SESSIONS = [f"session-{number}" for number in range(2000)]
names = st.text(min_size=1, max_size=12)
weights = st.lists(st.integers(1, 100), min_size=1, max_size=5)


def parts(*weights: float) -> tuple[RouteShare, ...]:
    """The base and adapters `a1`, `a2`, ... with shares in these proportions."""
    return tuple(
        RouteShare(adapter=f"a{place}" if place else None, share=weight / sum(weights))
        for place, weight in enumerate(weights)
        if weight
    )


def route(*weights: float, **about: Any) -> GatewayRoute:
    return GatewayRoute("base", parts(*weights), **about)


def table(
    found: GatewayRoute, keeps: bool = True, alias: str = "agent", base: str = "base"
) -> GatewayRoutes:
    """A route of `agent`, and the adapters `a1` to `a3`."""
    adapters = {f"a{number}": Adapter(alias, base, keeps) for number in (1, 2, 3)}
    return GatewayRoutes(7, {"agent": found}, adapters)


def asked(of: GatewayRoutes, model: str | None, stays: dict[str, Policy] | None = None) -> Choice:
    return choose(of, "agent", model, "s", stays or {})


@given(weights, names)
def test_shares_are_kept_within_sampling_error(given: list[int], alias: str) -> None:
    found = parts(*given)
    got = [draw_policy(found, alias, session) for session in SESSIONS]
    for part in found:
        expected = part.share * len(SESSIONS)
        spread = sqrt(expected * (1 - part.share)) + 1
        assert abs(got.count(part.adapter) - expected) < 5.5 * spread


@given(weights, names, names, st.randoms())
def test_a_session_is_drawn_the_same_whatever_the_order_of_the_shares(
    given: list[int], alias: str, session: str, chance: Any
) -> None:
    found = list(parts(*given))
    mixed = chance.sample(found, len(found))
    assert draw_policy(mixed, alias, session) == draw_policy(found, alias, session)


def test_a_session_is_drawn_the_same_by_every_version_of_this_program() -> None:
    found = parts(3, 1)
    got = "".join("1" if draw_policy(found, "agent", one) else "0" for one in SESSIONS[:32])
    assert got == "10001000010100100000100001011001"


@given(weights, st.integers(0, 4), st.integers(1, 200), names)
def test_a_share_that_grows_only_takes_sessions(
    given: list[int], place: int, more: int, session: str
) -> None:
    assume(place < len(given))
    grown = [*given]
    grown[place] += more
    name = f"a{place}" if place else None
    before, after = (draw_policy(parts(*one), "agent", session) for one in (given, grown))
    assert after in (before, name)


@given(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=6))
def test_of_two_none_leaves_the_canary_while_it_grows(shares: list[float]) -> None:
    inside = [
        {s for s in SESSIONS[:300] if draw_policy(parts(1 - share, share), "agent", s)}
        for share in sorted(shares)
    ]
    assert all(smaller <= larger for smaller, larger in pairwise(inside))


def test_aliases_draw_independently() -> None:
    both = [
        [draw_policy(parts(1, 1), alias, session) is None for session in SESSIONS]
        for alias in ("agent", "planner")
    ]
    agreed = sum(one == other for one, other in zip(*both, strict=True))
    assert abs(agreed - len(SESSIONS) / 2) < 5.5 * sqrt(len(SESSIONS)) / 2


def test_a_name_that_nobody_knows_goes_through_as_it_came() -> None:
    choice = asked(table(route(0, 1)), "llama")
    assert (choice.alias, choice.routed, choice.order) == ("agent", None, ())


def test_an_adapter_that_is_named_answers_and_counts_for_its_own_alias() -> None:
    choice = asked(table(route(1), alias="planner"), "a2")
    assert (choice.alias, choice.routed, choice.order) == ("planner", "named", ())


def test_an_alias_with_a_route_is_answered_by_it_in_any_gateway() -> None:
    choice = choose(
        table(GatewayRoute("base", (RouteShare(adapter="a1", share=1.0),))),
        "other",
        "agent",
        "s",
        {},
    )
    assert (choice.alias, choice.policy, choice.base) == ("agent", "a1", "base")


@given(weights)
def test_who_is_asked_next_is_of_the_route_and_in_the_end_the_base(given: list[int]) -> None:
    choice = asked(table(route(*given)), "agent", {})
    assert choice.order[0] == draw_policy(parts(*given), "agent", "s")
    assert set(choice.order) == {part.adapter for part in parts(*given)} | {None}
    assert len(choice.order) == len(set(choice.order))


def test_a_choice_says_by_which_shares_it_was_drawn_where_there_were_several() -> None:
    several = table(route(3, 1))
    assert asked(several, "agent").shares == {"base": 0.75, "a1": 0.25}
    assert asked(several, "agent", {"agent": "a1"}).shares is None, "it was kept"
    assert asked(table(route(0, 1)), "agent").shares is None, "nothing to choose"
    assert asked(several, "a1").shares is None, "it was named"


@pytest.mark.parametrize("before", [None, "a1"])
def test_a_session_stays_with_who_answered_it_while_shares_change(before: Policy) -> None:
    choice = asked(
        table(GatewayRoute("base", (RouteShare(adapter="a2", share=1.0),))),
        "agent",
        {"agent": before},
    )
    assert (choice.policy, choice.routed) == (before, "kept")
    assert choice.order[1] == "a2"


ALONE = GatewayRoute("base", (RouteShare(adapter="a2", share=1.0),))


@pytest.mark.parametrize(
    "routes",
    [
        table(ALONE, keeps=False),
        table(ALONE, base="old"),
        GatewayRoutes(1, {"agent": ALONE}),
    ],
    ids=["taken back", "of another base", "unknown"],
)
def test_a_session_leaves_an_adapter_that_may_answer_it_no_more(routes: GatewayRoutes) -> None:
    choice = asked(routes, "agent", {"agent": "a1"})
    assert (choice.policy, choice.routed) == ("a2", "drawn")


@pytest.mark.parametrize("before", [None, "a1"])
def test_after_a_rollback_nobody_stays_with_who_has_no_share(before: Policy) -> None:
    back = GatewayRoute("base", (RouteShare(adapter="a2", share=1.0),), taken_back=True)
    assert asked(table(back), "agent", {"agent": before}).policy == "a2"


def test_who_has_a_share_keeps_its_sessions_in_a_rollback() -> None:
    back = GatewayRoute(
        "base",
        (RouteShare(adapter="a1", share=0.01), RouteShare(adapter="a2", share=0.99)),
        taken_back=True,
    )
    assert asked(table(back, keeps=False), "agent", {"agent": "a1"}).policy == "a1"


def test_a_shadow_is_not_asked_where_it_answers_already() -> None:
    alone = GatewayRoute("base", (RouteShare(adapter=None, share=1.0),), shadow="a1")
    assert asked(table(alone), "agent").shadow == "a1"
    assert asked(table(alone), "agent", {"agent": "a1"}).shadow is None


@given(st.text(min_size=1, max_size=256))
def test_a_shadows_session_has_a_name_of_its_own_that_a_table_can_hold(session: str) -> None:
    assert is_shadow(shadow_session(session))
    assert len(shadow_session(session)) <= 256


# Sessions that are held out


@given(st.floats(0.01, 0.5), names)
def test_the_held_out_share_is_kept_within_sampling_error(share: float, alias: str) -> None:
    held_out = sum(is_held_out(share, alias, session) for session in SESSIONS)
    expected = share * len(SESSIONS)
    assert abs(held_out - expected) < 5.5 * (sqrt(expected) + 1)


@given(st.floats(0.001, 0.5), st.floats(0.001, 0.5), names, names)
def test_who_is_held_out_by_a_share_is_so_by_a_larger_one(
    one: float, other: float, alias: str, session: str
) -> None:
    small, large = sorted((one, other))
    assert is_held_out(large, alias, session) or not is_held_out(small, alias, session)
    assert not is_held_out(0.0, alias, session)


@given(weights, weights, st.booleans(), st.booleans())
def test_the_same_sessions_are_held_out_whoever_is_promoted(
    before: list[int], after: list[int], taken_back: bool, shadow: bool
) -> None:
    for shares in (before, after):
        found = route(*shares, holdout=0.2, taken_back=taken_back, shadow="a9" if shadow else None)
        for session in SESSIONS[:60]:
            choice = choose(table(found), "agent", "agent", session, {})
            held_out = is_held_out(0.2, "agent", session)
            assert choice.holdout == HoldoutDraw(share=0.2, held_out=held_out)
            if held_out:
                assert (choice.policy, choice.shares, choice.base) == (None, None, "base")
            else:
                assert choice.policy == draw_policy(found.parts, "agent", session)


def test_who_is_not_held_out_is_drawn_by_the_shares_alone() -> None:
    found = parts(1, 3)
    others = [name for name in SESSIONS if not is_held_out(0.2, "agent", name)]
    first = sum(draw_policy(found, "agent", name) == "a1" for name in others)
    assert abs(first - 0.75 * len(others)) < 5.5 * sqrt(0.1875 * len(others))


def test_a_session_keeps_its_policy_when_a_holdout_begins_and_says_no_draw() -> None:
    held_out = next(name for name in SESSIONS if is_held_out(0.2, "agent", name))
    choice = choose(table(route(0, 1, holdout=0.2)), "agent", "agent", held_out, {"agent": "a1"})
    assert (choice.policy, choice.routed, choice.holdout) == ("a1", "kept", None)
