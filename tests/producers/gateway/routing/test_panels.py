"""Panels in routes and sticky sessions, and what is read of an engine's answer: pure."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.codec import Event
from events.envelope import Envelope, new_id
from events.rollouts import CallStarted, MemberChoice
from producers.gateway.http.wire import ModelRequest
from producers.gateway.routing.engine_proof import parse_json
from producers.gateway.routing.routes import choose
from producers.gateway.routing.routing import Attempt, RouteLease, Routing
from producers.gateway.routing.sticky_recovery import StickyRecovery
from producers.gateway.routing.sticky_sessions import StickyMember, StickySessions
from producers.gateway.routing.token_scores import build_score_request, read_token_scores
from producers.gateway.routing.upstreams import Upstream
from producers.gateway.skills.label_router import build_prompts
from producers.gateway.skills.member_choice import RouterBound, list_messages
from tests.daemon.gateway.panels import TOKENS, panel, routed

IDLE, AGE, NOW = 100.0, 1000.0, 5000.0
TODAY = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
ONE, TWO = StickyMember("returns", "one"), StickyMember("payments", "two")


def test_a_panel_is_chosen_as_an_adapter_is_and_by_its_name_it_has_no_stand_in() -> None:
    routes = routed({"p": panel("returns")}, "p", shadow="q")
    chosen = choose(routes, "agent", "agent", "s", {})
    assert (chosen.routed, chosen.order, chosen.shadow) == ("drawn", ("p", None), "q")
    by_name = choose(routes, "agent", "p", "s", {"agent": None})
    assert (by_name.routed, by_name.order, by_name.base) == ("named", ("p",), "tiny")
    assert choose(routes, "agent", "one", "s", {}).order == (), "a member is an adapter"


def test_a_member_is_kept_and_counted_for_as_long_as_its_panel_answers_the_session() -> None:
    known = StickySessions(IDLE, AGE)
    known.keep_member("gone", "p", ONE)
    assert known.count_open(0) == {}, "a session that is over keeps nothing"
    known.assign("s", "agent", "p", 0)
    known.keep_member("s", "p", ONE)
    known.keep_member("s", "p", ONE)
    known.open("named", 0)
    known.keep_member("named", "p", StickyMember(None, None, "none"))
    assert known.count_open(0) == {"p": 1, "one": 1}
    known.assign("s", "agent", "q", 1)
    assert known.read_member("s", "p", 1) is None
    known.keep_member("s", "q", TWO)
    newer = StickySessions(IDLE, AGE)
    newer.assign("s", "agent", "q", 2)
    newer.keep_member("s", "q", ONE)
    newer.recall(known)
    assert newer.count_open(2) == {"q": 1, "one": 1}
    assert newer.read_member("s", "q", 2) == ONE
    assert newer.count_open(IDLE + 2) == {}
    assert newer.read_member("s", "q", IDLE + 2) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["s", "t", "u"]),
            st.sampled_from(["p", "q", None]),
            st.sampled_from([ONE, TWO, StickyMember(None, None, "tie"), None]),
        ),
        max_size=40,
    )
)
def test_open_sessions_are_always_those_of_the_policies_and_members_that_are_kept(
    steps: list[tuple[str, str | None, StickyMember | None]],
) -> None:
    known, sessions = StickySessions(IDLE, AGE, most=2), ("s", "t", "u")
    for now, (session, policy, kept) in enumerate(steps):
        known.assign(session, "agent", policy, now)
        if kept is not None and policy is not None:
            known.keep_member(session, policy, kept)
    now = len(steps)
    members = (known.read_member(session, it, now) for session in sessions for it in ("p", "q"))
    policies = (policy for s in sessions for policy in known.read_policies(s, now).values())
    kept_names = [*policies, *(None if kept is None else kept.adapter for kept in members)]
    expected = {name: kept_names.count(name) for name in kept_names if name is not None}
    assert known.count_open(now) == expected


def call(seconds_ago: float, member: dict[str, Any], **fields: Any) -> Event:
    fields = {
        "call": new_id(), "session": "s", "alias": "agent", "base": "base", "policy": "p",
        "routed": "drawn", "member": member, **fields,
    }  # fmt: skip
    data = CallStarted.model_validate(fields)
    envelope = Envelope(
        id=new_id(), type=data.TYPE, version=data.VERSION, subject=data.key(),
        time=TODAY - timedelta(seconds=seconds_ago),
    )  # fmt: skip
    return Event(envelope, data)


def test_the_member_of_a_session_is_read_back_from_its_calls() -> None:
    recovery = StickyRecovery(StickySessions(IDLE, AGE), NOW, TODAY)
    returns = {"skill": "returns"}
    recovery.take(call(9, returns | {"adapter": "one", "router_ms": 20}))
    recovery.take(call(8, returns | {"kept": True, "doubt": "absent"}))
    recovery.take(call(7, {"doubt": "tie", "router_ms": 9}, session="t", routed="named"))
    recovery.take(call(6, {"doubt": "tie", "router_ms": 9}, session="t", routed="named"))
    known = recovery.stays
    assert known.read_member("s", "p", NOW) == StickyMember("returns", None, None, 1, at_turn=True)
    assert known.read_member("t", "p", NOW) == StickyMember(None, None, "tie", 2, at_turn=True)
    assert known.read_policies("t", NOW) == {}
    recovery.take(call(5, returns | {"adapter": "one"}, policy="q"))
    assert known.read_member("s", "p", NOW) is None


def test_without_a_chooser_the_base_answers_for_a_member_and_the_doubt_is_recorded() -> None:
    routing, upstream = Routing("agent"), Upstream("http://127.0.0.1:1/v1")
    routing.apply(routed({"p": panel("returns")}, "p"))

    async def attempt(lease: RouteLease) -> Attempt:
        return await anext(lease.attempts([upstream]))

    with routing.begin("agent", "s") as lease:
        first = asyncio.run(attempt(lease))
    assert (first.policy, first.adapter) == ("p", None), "the call counts as the panel's"
    assert first.member == MemberChoice(doubt="failed")


def request(endpoint: Any, **document: Any) -> ModelRequest:
    return ModelRequest(endpoint, document)


def test_a_router_reads_what_was_said_over_each_protocol() -> None:
    said = [{"role": "user", "content": "A refund."}]
    assert list_messages(request("chat", messages=[*said, "odd"])) == said
    assert list_messages(request("completions", prompt="A refund.")) == said
    assert list_messages(request("completions", prompt=[4, 5])) == []
    (message,) = list_messages(request("messages", messages=said))
    assert message["role"] == "user"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_router_reads_no_instructions_of_the_agents_operator(role: str) -> None:
    router = panel("returns").router
    said = [{"role": "user", "content": "A refund."}]
    instructions = {"role": role, "content": "You are an agent."}
    assert build_prompts(router, [instructions, *said]) == build_prompts(router, said)


def test_a_router_is_asked_for_the_log_probabilities_of_its_labels_and_nothing_else() -> None:
    body = build_score_request("tiny", [{"role": "user", "content": "Label?"}], TOKENS)
    assert (body["logprob_token_ids"], body["max_tokens"]) == (list(TOKENS), 1)
    assert "model" not in build_score_request(None, [], TOKENS)
    tops = [{"token": f"token_id:{token}", "logprob": -token / 8} for token in (9, *TOKENS)]
    content = [{"token": "token_id:9", "logprob": -1.125, "top_logprobs": tops}]
    answer = {"choices": [{"logprobs": {"content": content}}]}
    assert read_token_scores(answer) == {token: -token / 8 for token in (9, *TOKENS)}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"logprobs":null}]}',
        b'{"choices":[{"logprobs":{"content":[]}}]}',
        b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":"A","logprob":0}]}]}}]}',
        b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":7,"logprob":0}]}]}}]}',
    ],
)  # fmt: skip
def test_whatever_else_an_engine_answers_is_no_score(raw: bytes) -> None:
    assert read_token_scores(parse_json(raw)) == {}


def test_the_bound_follows_the_median_of_the_last_answers_of_an_engine_up_to_a_limit() -> None:
    upstream, bound = Upstream("http://127.0.0.1:1/v1"), RouterBound(0.15, 2.0)
    assert bound.find_seconds(upstream) == 0.15
    for seconds in (9.0, *[0.2] * 64):
        upstream.first_tokens.add(seconds)
    assert bound.find_seconds(upstream) == pytest.approx(0.4)
    for _ in range(40):
        upstream.first_tokens.add(0.01)
    assert bound.find_seconds(upstream) == 0.15, "older ones are forgotten"
    for _ in range(64):
        upstream.first_tokens.add(9.0)
    assert bound.find_seconds(upstream) == 2.0
    assert RouterBound(3.0, 2.0).find_seconds(upstream) == 3.0, "who asks for more gets it"
