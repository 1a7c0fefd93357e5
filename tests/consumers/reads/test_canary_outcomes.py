"""What the live guard reads: sessions under one policy, with their first verdict, in one order."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select

from consumers import database
from consumers.reads.outcomes.canary import (
    Behaviour,
    SessionVerdict,
    behaviours,
    canary_share,
    find_session_changes,
    latest_call,
    open_sessions,
    read_live_verdicts,
    read_session_verdicts,
)
from consumers.tables import Call
from events.envelope import timestamp
from events.log import Entry
from events.messages import Message, ToolCall
from events.position import Position
from events.rollouts import (
    CallEnded,
    CallStarted,
    FeedbackReceived,
    MemberChoice,
    RolloutContent,
    RolloutEnded,
    Task,
)
from tests.consumers.folding import at, entry, fold, folded_position, log_of

SINCE = timestamp(at(100))


def call(session: str, policy: str, second: int, **fields: object) -> Entry:
    given = {
        "call": f"{session}-{policy}-{second}", "session": session, "alias": "agent",
        "base": "base", "policy": policy, "routed": "drawn", **fields,
    }  # fmt: skip
    if given["routed"] == "drawn":
        given.setdefault("shares", {"a": 0.25, "base": 0.75})
    return entry(CallStarted.model_validate(given), str(given["call"]), at(second))


def graded(
    session: str, success: bool | None, second: int, capability: str | None = "cancel",
    messages: Sequence[Message] = (), purpose: str = "live",
) -> Entry:  # fmt: skip
    data = RolloutEnded.model_validate({
        "rollout": f"{session}-{second}", "alias": "agent", "base": "base", "policy": "any",
        "source": "live", "purpose": purpose, "session": session, "success": success,
        "task": Task(id="t", capability=capability), "content": RolloutContent(messages=messages),
    })  # fmt: skip
    return entry(data, data.rollout, at(second))


def told(session: str, success: bool | None, second: int, verified: bool = True) -> Entry:
    data = FeedbackReceived(session=session, success=success, verified=verified)
    return entry(data, f"feedback-{session}-{second}", at(second))


def judged(engine: Engine, until: Position | None = None) -> list[SessionVerdict]:
    with database.read_transaction(engine) as connection:
        return read_session_verdicts(connection, "agent", "base", SINCE, until)


def briefly(engine: Engine) -> list[tuple[str, str | None, str, bool]]:
    return [(one.session, one.adapter, one.slice, one.success) for one in judged(engine)]


def test_graded_sessions_and_told_ones_come_in_the_order_of_their_verdicts(engine: Engine) -> None:
    entries = [
        call("s1", "a", 110), graded("s1", True, 150),
        call("s2", "base", 111), graded("s2", False, 140, capability=None),
        call("s3", "a", 112), told("s3", False, 145),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert briefly(engine) == [
        ("s2", None, "all", False), ("s3", "a", "all", False), ("s1", "a", "cancel", True),
    ]  # fmt: skip


def test_a_session_that_began_before_the_canary_says_nothing_of_it(engine: Engine) -> None:
    entries = [
        call("old", "base", 99), call("old", "base", 120), graded("old", True, 150),
        call("new", "base", 100), graded("new", True, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert [one.session for one in judged(engine)] == ["new"]


def test_a_session_that_two_policies_answered_says_nothing_of_either(engine: Engine) -> None:
    entries = [call("s", "a", 110), call("s", "base", 120), graded("s", False, 150)]
    fold(log_of(entries), engine)
    assert judged(engine) == []


@pytest.mark.parametrize("routed", ["named", "fallback", None])
@pytest.mark.parametrize("policy", ["a", "base"])
def test_a_session_with_a_call_that_no_share_decided_says_nothing(
    engine: Engine, policy: str, routed: str | None
) -> None:
    entries = [
        call("whole", policy, 110, routed=routed), graded("whole", True, 150),
        call("begun", policy, 110, routed=routed), call("begun", policy, 120, routed="kept"),
        told("begun", True, 150),
        call("later", policy, 110), call("later", policy, 120, routed=routed),
        graded("later", True, 150),
        call("kept", policy, 110), call("kept", policy, 120, routed="kept"),
        graded("kept", True, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert [one.session for one in judged(engine)] == ["kept"]
    with database.read_transaction(engine) as connection:
        counted = behaviours(connection, "agent", "base", SINCE)
    assert [one.sessions for one in counted] == [1]


def test_a_session_in_which_no_engine_had_the_member_of_a_panel_says_nothing(
    engine: Engine,
) -> None:
    absent = MemberChoice(skill="returns", kept=True, doubt="absent")
    entries = [
        call("away", "a", 110, member=absent), graded("away", True, 150),
        call("later", "a", 110, member=MemberChoice(skill="returns", adapter="one")),
        call("later", "a", 120, routed="kept", member=absent), told("later", True, 150),
        call("doubt", "a", 110, member=MemberChoice(doubt="tie")), graded("doubt", True, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert briefly(engine) == [("doubt", "a", "cancel", True)]
    with database.read_transaction(engine) as connection:
        counted = behaviours(connection, "agent", "base", SINCE)
    assert [one.sessions for one in counted] == [1]


def test_a_session_that_another_base_answered_in_between_says_nothing(engine: Engine) -> None:
    entries = [
        call("s", "a", 110), call("s", "a", 120, base="new"), told("s", True, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert judged(engine) == []


def test_a_session_has_the_shares_of_the_route_that_drew_it(engine: Engine) -> None:
    """Whatever they became since, and as the gateway had them that drew it."""
    grown = {"a": 0.5, "base": 0.5}
    entries = [
        call("early", "a", 110), call("early", "a", 130, routed="kept"), told("early", True, 150),
        call("late", "base", 130, shares=grown), told("late", True, 140),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    found = {one.session: canary_share(one.shares, "a", "base") for one in judged(engine)}
    assert found == {"early": 0.25, "late": 0.5}
    assert [one.began for one in judged(engine)] == [timestamp(at(130)), timestamp(at(110))]
    assert canary_share('{"b":0.5,"base":0.5}', "a", "base") is None
    assert canary_share('{"a":0.2,"b":0.5,"base":0.3}', "a", "base") == 0.4


@pytest.mark.parametrize("policy", ["a", "base"])
def test_a_session_that_chance_had_no_choice_about_says_nothing(
    engine: Engine, policy: str
) -> None:
    """Drawn by a route of one alone, by a gateway that does not say the shares yet, or twice by
    different shares."""
    entries = [
        call("alone", policy, 110, shares=None), told("alone", True, 150),
        call("half", policy, 110), call("half", policy, 120, shares=None), told("half", True, 150),
        call("twice", policy, 110),
        call("twice", policy, 120, shares={"a": 0.5, "base": 0.5}), told("twice", True, 150),
        call("again", policy, 110), call("again", policy, 120), told("again", True, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert [one.session for one in judged(engine)] == ["again"]


def test_of_one_policy_alone_sessions_count_that_had_no_other_to_go_to(engine: Engine) -> None:
    entries = [
        call("alone", "a", 110, shares=None), call("alone", "a", 120, routed="kept"),
        graded("alone", True, 150),
        call("drawn", "a", 110), told("drawn", False, 150),
        call("base", "base", 110, shares=None), told("base", True, 150),
        call("named", "a", 110, routed="named"), told("named", False, 150),
        call("both", "a", 110), call("both", "base", 120), told("both", False, 150),
        call("before", "a", 90, shares=None), call("before", "a", 110, routed="kept"),
        told("before", False, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert [verdict.session for verdict in judged(engine)] == ["drawn"]
    with database.read_transaction(engine) as connection:
        verdicts = read_live_verdicts(connection, "agent", "base", SINCE)
    assert verdicts == {"a": [True, False], None: [True]}


def test_open_sessions_have_neither_an_end_nor_a_verdict(engine: Engine) -> None:
    entries = [
        call("open", "a", 110), call("open", "a", 120, routed="kept"), call("base", "base", 111),
        call("judged", "a", 110), told("judged", True, 130),
        call("doubted", "a", 112), told("doubted", True, 130, verified=False),
        call("over", "a", 110), graded("over", None, 140),
        call("named", "a", 110, routed="named"), call("old", "a", 99),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    with database.read_transaction(engine) as connection:
        found = open_sessions(connection, "agent", "base", SINCE)
    assert [(one.session, one.adapter, one.began) for one in found if not one.ended] == [
        ("base", None, timestamp(at(111))), ("doubted", "a", timestamp(at(112))),
        ("open", "a", timestamp(at(110))),
    ]  # fmt: skip


def test_a_session_that_ended_without_a_verdict_is_told_as_such(engine: Engine) -> None:
    entries = [
        call("old", "a", 110), graded("old", None, 140),
        call("open", "a", 111),
        call("young", "a", 115), graded("young", None, 141),
        call("graded", "a", 116), graded("graded", False, 142),
        call("told", "a", 117), graded("told", None, 143), told("told", True, 144),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    with database.read_transaction(engine) as connection:
        found = open_sessions(connection, "agent", "base", SINCE)
        assert latest_call(connection, "agent") == timestamp(at(117))
        assert latest_call(connection, "other") is None
    told_so = [(one.session, one.ended) for one in found]
    assert told_so == [("old", True), ("open", False), ("young", True)]


def test_the_row_of_a_call_says_why_it_was_answered_and_by_which_server(engine: Engine) -> None:
    asked = call("s", "a", 110, routed="fallback", upstream="http://first/v1")
    said = CallEnded(
        call="s-a-110", session="s", outcome="completed", upstream="http://second/v1"
    )  # fmt: skip
    fold(log_of([asked, entry(said, "end", at(111))]), engine)
    with database.read_transaction(engine) as connection:
        (row,) = connection.execute(select(Call.table())).all()
    assert (row.routed, row.upstream) == ("fallback", "http://second/v1")


def test_what_is_not_the_agents_own_traffic_does_not_count(engine: Engine) -> None:
    entries = [
        call("shadow", "a", 110, purpose="probe"), told("shadow", True, 150),
        call("trained", "a", 110), graded("trained", True, 150, purpose="train"),
        call("other", "a", 110, alias="other"), told("other", True, 150),
        call("new", "a", 110, base="new"), told("new", True, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert judged(engine) == []


def test_nobody_judges_but_a_grader_or_somebody_who_may(engine: Engine) -> None:
    entries = [
        call("s1", "a", 110), graded("s1", None, 150), told("s1", True, 160, verified=False),
        call("s2", "a", 110), told("s2", None, 150),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert judged(engine) == []


def test_the_first_verdict_of_a_session_stands(engine: Engine) -> None:
    entries = [
        call("s", "a", 110), told("s", False, 140), graded("s", True, 150), told("s", True, 160),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    (one,) = judged(engine)
    assert (one.success, one.time) == (False, timestamp(at(140)))


def test_up_to_a_position_nothing_later_counts(engine: Engine) -> None:
    log = log_of([call("s1", "a", 110), told("s1", True, 140), call("s2", "a", 110)])
    fold(log, engine)
    then = folded_position(engine)
    log.append([told("s2", True, 130)])
    fold(log, engine)
    assert [one.session for one in judged(engine, then)] == ["s1"]
    assert [one.session for one in judged(engine, folded_position(engine))] == ["s2", "s1"]
    assert judged(engine, {}) == []


def asked(arguments: dict[str, object] | str, error: bool = False) -> list[Message]:
    return [
        Message(role="assistant", tool_calls=(ToolCall(name="find", arguments=arguments),)),
        Message(role="tool", content="none", error=error),
    ]


def test_behaviour_is_counted_by_ended_sessions_judged_or_not(engine: Engine) -> None:
    loop = [message for _ in range(3) for message in asked({"order": 1})]
    entries = [
        call("s1", "a", 110),
        graded("s1", None, 150, messages=[*loop, *asked("{", error=True), *asked("{", error=True)]),
        call("s2", "a", 111), graded("s2", True, 151), graded("s2", True, 161),
        call("s3", "base", 112), graded("s3", None, 152, messages=asked("no", error=True)),
        call("open", "a", 113),
        call("s4", "a", 114, shares={"a": 0.5, "base": 0.5}), graded("s4", None, 154),
        call("s5", "a", 115, shares=None), graded("s5", None, 155),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    with database.read_transaction(engine) as connection:
        found = behaviours(connection, "agent", "base", SINCE)
    assert [replace(one, shares="") for one in found] == [
        Behaviour("a", "", sessions=2, tool_errors=1, loops=1, format_errors=1),
        Behaviour("a", "", sessions=1, tool_errors=0, loops=0, format_errors=0),
        Behaviour(None, "", sessions=1, tool_errors=1, loops=0, format_errors=1),
    ]
    shares = [canary_share(one.shares, "a", "base") for one in found]
    assert shares == [0.25, 0.5, 0.25], "sessions that different shares drew are not pooled"


def test_between_two_positions_only_some_sessions_can_have_changed(engine: Engine) -> None:
    entries = [
        call("old", "a", 110), call("moves", "a", 111), told("moves", True, 112),
        call("late", "a", 113), call("silent", "a", 114),
    ]  # fmt: skip
    log = log_of(entries)
    fold(log, engine)
    before = folded_position(engine)
    log.append([
        call("moves", "b", 120), told("late", False, 121), graded("old", True, 122),
        call("new", "a", 123), told("silent", None, 124), graded("silent", None, 125),
    ])  # fmt: skip
    fold(log, engine)
    after = folded_position(engine)
    with database.read_transaction(engine) as connection:
        touched = find_session_changes(connection, before, after)
        assert touched == {"moves", "late", "old", "new"}
        assert find_session_changes(connection, after, after) == set()
        assert find_session_changes(connection, {}, after) == {*touched, "silent"}
        some = read_session_verdicts(connection, "agent", "base", SINCE, after, {"old", "moves"})
    assert [one.session for one in some] == ["old"]
    assert [one.session for one in judged(engine)] == ["late", "old"]
