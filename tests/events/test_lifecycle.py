"""The life of an adapter: every event in every state, and the table of what may follow."""

from typing import Final

import pytest

from events.gate import Decision, GateReport
from events.lifecycle import LOADED, NEXT, RETIRED, SERVING, State, after
from events.serving import (
    AdapterEvaluated,
    AdapterMoved,
    AdapterProduced,
    AdapterStaged,
    GateDecided,
    PassRates,
    RouteChanged,
    RouteShare,
    ServingEvent,
    UserEvaluated,
    UserFaultRate,
    Why,
)

A: Final = "a"
WHYS: Final[tuple[Why, ...]] = (
    "canary", "promoted", "rollback", "operator", "expired", "rebased", "holdout",
)  # fmt: skip


def produced() -> AdapterProduced:
    return AdapterProduced(
        adapter=A, alias="agent", base="base", sha256="0" * 64, path="/a", origin="push"
    )


def staged() -> AdapterStaged:
    return AdapterStaged(adapter=A, replicas=("http://r",), distance=0.0, from_base=1.0)


def evaluated() -> AdapterEvaluated:
    rates = PassRates(incumbent=0.5, candidate=0.6)
    return AdapterEvaluated(adapter=A, environment="shop", tasks=8, trials=1, pass_hat_1=rates)


def decided(decision: Decision) -> GateDecided:
    report = GateReport(decision=decision, test="sign_flip", alpha=0.05, tasks=8, checks=())
    return GateDecided(adapter=A, alias="agent", report=report)


def measured_as_user(*, passed: bool) -> UserEvaluated:
    rate = UserFaultRate(count=0, of=600, upper=0.005, limit=0.01)
    return UserEvaluated(
        adapter=A, alias="agent", environment="shop", dialogues=600, violations=rate,
        early_ends=rate, schema_errors=rate, passed=passed,
    )  # fmt: skip


def routed(why: Why, share: float) -> RouteChanged:
    """A route that gives `a` a share, all of it or nothing."""
    shares = [RouteShare(adapter=A, share=share)] if share else []
    if share < 1:
        shares.append(RouteShare(share=1 - share))
    return RouteChanged(alias="agent", base="base", shares=tuple(shares), why=why)


def moved(state: State) -> AdapterMoved:
    return AdapterMoved.model_validate({"adapter": A, "state": state.value})


RETIREMENTS: Final = (State.REJECTED, State.DRAINING, State.UNLOADED, State.COLLECTED)
EVENTS: Final[tuple[ServingEvent, ...]] = (
    produced(),
    staged(),
    evaluated(),
    *(decided(decision) for decision in ("PROMOTE", "REJECT", "EXTEND")),
    *(measured_as_user(passed=passed) for passed in (True, False)),
    *(routed(why, share) for why in WHYS for share in (0, 0.25, 1)),
    *(moved(state) for state in RETIREMENTS),
)


def test_every_state_has_its_followers() -> None:
    assert set(NEXT) == set(State)
    assert all(state not in followers for state, followers in NEXT.items())


def test_every_state_can_be_reached_and_all_but_the_last_be_left() -> None:
    reached = {State.PRODUCED}
    while more := {follower for state in reached for follower in NEXT[state]} - reached:
        reached |= more
    assert reached == set(State)
    assert [state for state in State if not NEXT[state]] == [State.COLLECTED]


def test_an_event_moves_only_along_the_table_and_every_entry_has_an_event() -> None:
    moves = {
        (state, found)
        for state in State
        for event in EVENTS
        if (found := after(A, state, event)) is not None and found is not state
    }
    assert moves == {(state, follower) for state in State for follower in NEXT[state]}


def test_a_name_that_nobody_produced_has_no_life_but_by_being_produced() -> None:
    assert after(A, None, produced()) is State.PRODUCED
    assert {after(A, None, event) for event in EVENTS[1:]} == {None}
    assert {after(A, state, produced()) for state in State} == {None}


def test_the_whole_way_of_an_adapter_that_is_good() -> None:
    events = (
        produced(), staged(), evaluated(), decided("EXTEND"), evaluated(), decided("PROMOTE"),
        routed("canary", 0.05), routed("canary", 0.25), routed("promoted", 1),
        routed("promoted", 0),
        moved(State.UNLOADED), moved(State.COLLECTED),
    )  # fmt: skip
    state: State | None = None
    way = [state := after(A, state, event) for event in events]
    assert way == [
        "produced", "staged", "evaluated", "evaluated", "evaluated", "gated", "canary", "canary",
        "promoted", "draining", "unloaded", "collected",
    ]  # fmt: skip


@pytest.mark.parametrize("state", sorted(set(State) - {State.GATED} - SERVING))
@pytest.mark.parametrize("why", ["canary", "promoted"])
def test_without_a_passed_gate_only_a_person_or_a_rollback_brings_sessions(
    state: State, why: Why
) -> None:
    assert after(A, state, routed(why, 0.25)) is None
    assert after(A, state, routed(why, 1)) is None
    by_operator = after(A, state, routed("operator", 1))
    assert by_operator is (State.PROMOTED if state in LOADED else None)


@pytest.mark.parametrize("state", sorted(SERVING))
def test_whoever_serves_leaves_by_a_route_alone(state: State) -> None:
    assert {after(A, state, moved(wanted)) for wanted in RETIREMENTS} == {None}
    assert after(A, state, routed("rollback", 0)) is State.ROLLED_BACK
    assert {after(A, state, routed(why, 0)) for why in WHYS if why != "rollback"} == {
        State.DRAINING
    }


def test_the_incumbent_of_a_canary_stays_promoted_with_a_smaller_share() -> None:
    assert after(A, State.PROMOTED, routed("canary", 0.25)) is State.PROMOTED


def test_a_new_measurement_takes_back_an_older_decision() -> None:
    assert after(A, State.GATED, evaluated()) is State.EVALUATED
    assert after(A, State.PROMOTED, evaluated()) is State.PROMOTED
    assert after(A, State.REJECTED, evaluated()) is None


def test_an_adapter_that_is_proven_again_stays_what_it_is() -> None:
    assert {after(A, state, staged()) for state in RETIRED} == {None}
    for state in LOADED - RETIRED:
        assert after(A, state, staged()) is state
    assert after(A, State.UNLOADED, staged()) is State.STAGED


def test_somebody_elses_route_moves_nobody() -> None:
    for state in set(State) - SERVING:
        assert after("other", state, routed("operator", 1)) is state
