"""Who answered the sessions of the newest calls, read from the log by a gateway that starts."""

from datetime import UTC, datetime, timedelta

import pytest

from events.codec import Event
from events.envelope import Envelope, new_id
from events.rollouts import CallEnded, CallStarted, EventData, MemberChoice, SessionEnded
from producers.gateway.routing.sticky_recovery import StickyRecovery
from producers.gateway.routing.sticky_sessions import StickySessions

IDLE, AGE = 100.0, 1000.0
NOW = 5000.0
TODAY = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def event(data: EventData, seconds_ago: float) -> Event:
    at = TODAY - timedelta(seconds=seconds_ago)
    envelope = Envelope(
        id=new_id(), type=data.TYPE, version=data.VERSION, subject=data.key(), time=at
    )
    return Event(envelope, data)


def call(policy: str, seconds_ago: float, session: str = "s", **fields: object) -> Event:
    given = {
        "call": new_id(), "session": session, "alias": "agent", "base": "base",
        "policy": policy, "routed": "drawn", **fields,
    }  # fmt: skip
    return event(CallStarted.model_validate(given), seconds_ago)


def after(*events: Event) -> StickySessions:
    """What is known once these were read."""
    answered = StickyRecovery(StickySessions(IDLE, AGE), NOW, TODAY)
    for one in events:
        answered.take(one)
    return answered.stays


def test_a_session_stays_with_whom_its_route_gave_it_to() -> None:
    known = after(call("a", 20), call("a", 10, routed="kept"), call("base", 10, session="other"))
    assert known.read_policies("s", NOW) == {"agent": "a"}
    assert known.read_policies("other", NOW) == {"agent": None}


@pytest.mark.parametrize("routed", ["named", "fallback"])
def test_a_call_that_its_route_did_not_decide_moves_no_session(routed: str) -> None:
    assert after(call("a", 20), call("b", 10, routed=routed)).read_policies("s", NOW) == {
        "agent": "a"
    }
    assert after(call("base", 10, routed=routed)).read_policies("s", NOW) == {}


def test_what_ended_or_was_idle_for_too_long_is_not_open() -> None:
    ended = event(SessionEnded(session="s", because="asked"), 5)
    assert after(call("a", 10), ended).read_policies("s", NOW) == {}
    assert after(call("a", IDLE + 1)).read_policies("s", NOW) == {}


def test_a_clock_that_was_set_back_keeps_no_session_open_for_longer() -> None:
    known = after(call("a", seconds_ago=-86_400))
    assert known.read_policies("s", NOW) == {"agent": "a"}
    assert known.count_open(NOW + IDLE) == {}


def test_a_session_whose_router_said_nothing_keeps_the_base_once_it_answered() -> None:
    silence = MemberChoice(doubt="timeout", router_ms=150)
    first = call("panel", 20, call="first", member=silence)
    failure = event(CallEnded(call="first", session="s", outcome="failed"), 19)
    whole = event(CallEnded(call="first", session="s", outcome="completed"), 18)
    beside = call("panel", 20, call="beside", member=silence.model_copy(update={"kept": True}))
    assert after(first, failure).read_member("s", "panel", NOW) is None, "nobody answered it"
    for events in (
        (first,),
        (first, whole),
        (first, beside, failure),
        (first, whole, beside, failure),
    ):
        member = after(*events).read_member("s", "panel", NOW)
        assert member is not None
        assert (member.adapter, member.doubt) == (None, "timeout")
