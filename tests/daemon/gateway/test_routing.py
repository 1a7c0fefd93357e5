"""Calls by route: who answers, what the client reads, what is recorded, and what the gateway uses.

A real engine with adapters of random weights, which answer otherwise than their base.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from events.rollouts import CallStarted, HoldoutDraw
from events.serving import RouteShare
from events.sqlite.log import SqliteLog
from producers.gateway.routing.routes import (
    Adapter,
    GatewayRoute,
    GatewayRoutes,
    is_held_out,
    shadow_session,
)
from producers.gateway.routing.routes import Policy as Answerer
from tests.daemon.engine.conftest import Live, adapter, listening, other_adapter
from tests.daemon.gateway.conftest import Front, Fronted, fronting, post
from tests.daemon.gateway.recording_upstream import recording_upstream
from tests.daemon.gateway.test_exactness import pieces, without_chance

__all__ = ["adapter", "other_adapter"]

Json = dict[str, Any]
HELLO = [{"role": "user", "content": "Hello, I am Rosa."}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GREEDY: Json = {"messages": HELLO, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
LONG: Json = {"messages": HELLO, "max_tokens": 4000, "ignore_eos": True, "stream": True}


def load(live: Live, **folders: Path) -> None:
    for name, folder in folders.items():
        assert post(
            live.url, "/v1/load_lora_adapter", lora_name=name, lora_path=str(folder)
        ).is_success


def unload(live: Live, name: str) -> None:
    assert post(live.url, "/v1/unload_lora_adapter", lora_name=name).is_success


@pytest.fixture
def engine(base: Policy, served_chat: Chat, adapter: Path, other_adapter: Path) -> Iterator[Live]:
    """An engine with the adapters `one` and `two`."""
    with listening(base, served_chat) as found:
        load(found, one=adapter, two=other_adapter)
        yield found


@pytest.fixture
def front(engine: Live, front_over: Front) -> Fronted:
    return front_over(engine.url)


def routes(
    shares: dict[Answerer, float],
    position: int = 1,
    kept: tuple[str, ...] = ("one", "two"),
    **about: Any,
) -> GatewayRoutes:
    """A route of `agent`; sessions stay with the adapters `kept`."""
    found = GatewayRoute(
        "tiny",
        tuple(RouteShare(adapter=name, share=share) for name, share in shares.items()),
        **about,
    )
    known = {name: Adapter("agent", "tiny", name in kept) for name in ("one", "two")}
    return GatewayRoutes(position, {"agent": found}, known)


def route(front: Fronted, shares: dict[Answerer, float], **about: Any) -> None:
    front.gateway.context.routing.apply(routes(shares, **about))


def ask(front: Fronted, session: str = "s", **body: Any) -> httpx2.Response:
    """A short call of a session under the alias."""
    headers = {"x-kintsugi-session": session}
    asked = {"model": "agent", "messages": HELLO, "max_tokens": 2, **body}
    return httpx2.post(f"{front.url}{CHAT}", json=asked, headers=headers, timeout=60)


def answerer(front: Fronted, session: str = "s", **body: Any) -> str:
    """Who answers such a call."""
    answer = ask(front, session, **body)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-kintsugi-adapter"])


def named(value: Any, model: str) -> Any:
    """An answer, or the events of one, with another model's name."""
    if isinstance(value, list):
        return [named(one, model) for one in value]
    return {**value, "model": model} if isinstance(value, dict) else value


@pytest.mark.parametrize(("policy", "asked"), [(None, "agent"), ("one", "agent"), ("one", None)])
@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, GREEDY), (TEXT, {"prompt": "Hello", "max_tokens": 8, "temperature": 0})],
)
def test_a_client_gets_what_the_route_answers_under_the_name_that_it_asked_for(
    front: Fronted, engine: Live, policy: Answerer, asked: str | None, path: str, body: Json
) -> None:
    route(front, {policy: 1.0})
    given = body if asked is None else {**body, "model": asked}
    said = asked or "tiny"
    direct = post(engine.url, path, **body, model=policy or "tiny").json()
    through = post(front.url, path, **given)
    assert without_chance(through.json()) == named(without_chance(direct), said)
    streamed = pieces(engine.url, path, {**body, "model": policy or "tiny", "stream": True})
    through_stream = pieces(front.url, path, {**given, "stream": True})
    assert through_stream == named(streamed, said)
    assert through.headers["x-kintsugi-adapter"] == (policy or "tiny")
    for started in front.started():
        assert (started.alias, started.base, started.policy) == ("agent", "tiny", policy or "tiny")
        assert started.routed == "drawn"
    assert [(one.outcome, one.trainable) for one in front.ended()] == [("completed", True)] * 2


def test_without_routes_the_alias_is_the_base(front: Fronted, engine: Live) -> None:
    direct = post(engine.url, **GREEDY).json()
    through = post(front.url, **GREEDY, model="agent").json()
    assert without_chance(through) == named(without_chance(direct), "agent")
    assert front.started()[0].routed is None


def test_the_adapters_answer_otherwise_than_the_base(engine: Live) -> None:
    said = [post(engine.url, **GREEDY, model=name).json() for name in ("tiny", "one", "two")]
    texts = [one["choices"][0]["message"]["content"] for one in said]
    assert len(set(texts)) == 3, "or no test here could fail"


def test_an_adapter_is_asked_by_its_own_name(front: Fronted, engine: Live) -> None:
    route(front, {"one": 1.0})
    through = post(front.url, **GREEDY, model="two")
    direct = post(engine.url, **GREEDY, model="two").json()
    assert without_chance(through.json()) == without_chance(direct)
    assert through.headers["x-kintsugi-adapter"] == "two"
    (started,) = front.started()
    assert (started.alias, started.policy, started.routed) == ("agent", "two", "named")


def test_a_named_adapter_that_no_engine_has_is_not_replaced(front: Fronted, engine: Live) -> None:
    route(front, {"one": 1.0})
    unload(engine, "two")
    assert post(front.url, **GREEDY, model="two").status_code == 404


def test_the_models_are_the_engines_and_the_aliases(front: Fronted, engine: Live) -> None:
    direct = httpx2.get(f"{engine.url}/v1/models").json()["data"]
    planner = GatewayRoute("tiny", (RouteShare(adapter="two", share=1.0),))
    front.gateway.context.routing.apply(GatewayRoutes(1, {"planner": planner}))
    cards = httpx2.get(f"{front.url}/v1/models").json()["data"]
    assert cards[:3] == direct
    assert [(one["id"], one["root"], one["parent"]) for one in cards[3:]] == [
        ("agent", "tiny", "tiny"),
        ("planner", "tiny", "tiny"),
    ]


def test_a_flip_is_for_new_sessions_and_a_rollback_for_all(front: Fronted) -> None:
    route(front, {None: 1.0})
    assert answerer(front, "old") == "tiny"
    route(front, {"one": 1.0})
    assert [answerer(front, name) for name in ("old", "new")] == ["tiny", "one"]
    route(front, {"two": 1.0}, taken_back=True)
    assert [answerer(front, name) for name in ("old", "new")] == ["two", "two"]
    why = [(one.policy, one.routed) for one in front.started()]
    assert why == [
        ("tiny", "drawn"), ("tiny", "kept"), ("one", "drawn"), ("two", "drawn"), ("two", "drawn"),
    ]  # fmt: skip


def test_a_session_that_ended_goes_on_by_the_route(front: Fronted) -> None:
    route(front, {"one": 1.0})
    assert [answerer(front, name) for name in ("asked", "told", "on")] == ["one"] * 3
    route(front, {"two": 1.0})
    assert post(front.url, "/v1/sessions/asked/end").is_success
    assert post(front.url, "/v1/feedback", session="told", score=1).is_success
    assert [answerer(front, name) for name in ("asked", "told", "on")] == ["two", "two", "one"]


def test_sessions_stay_over_a_restart_of_the_gateway(engine: Live, tmp_path: Path) -> None:
    with fronting(tmp_path, [engine.url]) as first:
        route(first, {"one": 0.5, None: 0.5})
        names = [f"s{number}" for number in range(8)]
        before = [answerer(first, name) for name in names]
        assert set(before) == {"one", "tiny"}
        assert answerer(first, "ended") in before
        assert post(first.url, "/v1/sessions/ended/end").is_success
    with fronting(tmp_path, [engine.url], log=SqliteLog(tmp_path / "log.db")) as second:
        route(second, {"two": 1.0})
        assert [answerer(second, name) for name in names] == before
        assert answerer(second, "ended") == "two"


def test_an_engine_that_lost_the_adapter_is_not_asked_for_it(
    front: Fronted, engine: Live, adapter: Path
) -> None:
    """It is known from its answer, seconds before it is asked again what it serves."""
    route(front, {"one": 1.0})
    assert answerer(front) == "one"
    unload(engine, "one")
    assert answerer(front) == "tiny"
    assert answerer(front) == "tiny"
    ended = [(one.outcome, one.error) for one in front.ended()]
    asked = [(one.policy, one.routed) for one in front.started()]
    assert asked == [
        ("one", "drawn"), ("one", "kept"), ("tiny", "fallback"), ("tiny", "fallback"),
    ], "one call has one policy"  # fmt: skip
    assert ended[1][0] == "failed"
    assert "has no one any more" in str(ended[1][1])
    assert [outcome for outcome, _ in ended].count("failed") == 1
    load(engine, one=adapter)
    assert front.wait_for(lambda: answerer(front) == "one"), "the session is still its own"


def test_the_first_call_after_a_flip_finds_what_was_loaded_since_the_last_look(
    front: Fronted, engine: Live, adapter: Path
) -> None:
    """Engines are watched every two seconds; adapters are loaded and routed faster."""
    unload(engine, "one")
    route(front, {"two": 1.0}, position=1)
    assert front.wait_for(lambda: "one" not in front.upstreams.all[0].served)
    load(engine, one=adapter)
    route(front, {"one": 1.0}, position=2)
    assert answerer(front, "new") == "one"


def test_the_operator_may_have_such_calls_refused(engine: Live, front_over: Front) -> None:
    front = front_over(engine.url)
    front.gateway.context.routing.missing = "refuse"
    route(front, {"three": 1.0})
    refused = ask(front)
    assert refused.status_code == 503
    assert "no engine has three" in refused.json()["error"]["message"]
    assert front.records() == []


def test_only_the_replica_that_has_the_adapter_is_asked(
    engine: Live, front_over: Front, base: Policy, served_chat: Chat
) -> None:
    with listening(base, served_chat) as bare:
        front = front_over(bare.url, engine.url)
        route(front, {"one": 1.0})
        assert {answerer(front, f"s{number}") for number in range(8)} == {"one"}
        assert {one.upstream for one in front.started()} == {f"{engine.url}/v1"}
        post(front.url, **GREEDY, model="two")
        assert front.started()[-1].upstream == f"{engine.url}/v1"


def test_a_replica_that_dies_takes_no_call_with_it(
    engine: Live, front_over: Front, base: Policy, served_chat: Chat
) -> None:
    with ExitStack() as stack:
        dying = stack.enter_context(listening(base, served_chat))
        load(dying, two=Path(engine.server.adapters.entries["two"].folder))
        unload(engine, "two")
        front = front_over(engine.url, dying.url)
        route(front, {"two": 1.0})
        assert answerer(front) == "two"
        stack.close()
        assert answerer(front) == "tiny"


def test_the_log_says_which_replica_was_asked_first_and_which_one_answered(
    engine: Live, front_over: Front, base: Policy, served_chat: Chat
) -> None:
    with ExitStack() as stack:
        dying = stack.enter_context(listening(base, served_chat))
        front = front_over(engine.url, dying.url)
        first, second = f"{dying.url}/v1", f"{engine.url}/v1"
        names = (f"s{number}" for number in range(100))
        session = next(s for s in names if front.upstreams.for_session(s)[0].url == first)
        assert answerer(front, session) == "tiny"
        stack.close()
        assert answerer(front, session) == "tiny"
    assert [one.upstream for one in front.started()] == [first, first]
    assert [one.upstream for one in front.ended()] == [first, second]


def test_calls_and_sessions_are_counted_until_they_are_over(front: Fronted) -> None:
    routing = front.gateway.context.routing
    route(front, {"one": 1.0})
    headers = {"x-kintsugi-session": "s"}
    with httpx2.stream(
        "POST", f"{front.url}{CHAT}", json={**LONG, "model": "agent"}, headers=headers
    ) as response:
        stream = response.iter_raw()
        next(stream)
        usage = routing.usage()
        assert (usage.position, usage.in_flight, usage.open_sessions) == (1, {"one": 1}, {"one": 1})
        route(front, {"two": 1.0}, position=2)
        usage = routing.usage()
        assert (usage.position, usage.in_flight) == (2, {"one": 1})
    # The client hung up.
    assert front.wait_for(lambda: routing.usage().in_flight == {})
    assert routing.usage().open_sessions == {"one": 1}
    assert post(front.url, "/v1/sessions/s/end").is_success
    assert routing.usage().open_sessions == {}


def test_a_call_that_nothing_can_go_on_from_leaves_no_open_session(front: Fronted) -> None:
    route(front, {"one": 1.0})
    assert post(front.url, TEXT, prompt="Hello", max_tokens=2, model="agent").is_success
    assert front.gateway.context.routing.usage().open_sessions == {}


def shadows(front: Fronted) -> list[CallStarted]:
    return [one for one in front.started() if one.purpose == "probe"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_shadow_answers_as_well_and_nobody_hears_it(
    front: Fronted, engine: Live, stream: bool
) -> None:
    route(front, {"one": 1.0}, shadow="two")
    through = ask(front, **{**GREEDY, "stream": stream})
    direct = post(engine.url, **GREEDY, model="one").json()
    if not stream:
        assert without_chance(through.json()) == named(without_chance(direct), "agent")
    assert front.wait_for(lambda: len(front.ended()) == 2)
    (shadow,) = shadows(front)
    assert (shadow.policy, shadow.session, shadow.task) == ("two", shadow_session("s"), None)
    (ended,) = [one for one in front.ended() if one.call == shadow.call]
    assert (ended.outcome, ended.trainable) == ("completed", True)
    said = post(engine.url, **GREEDY, model="two").json()["choices"][0]["message"]["content"]
    assert ended.content is not None
    assert ended.content.messages[0].content == said
    metrics = front.gateway.metrics
    counted = {"endpoint": "chat", "outcome": "completed", "recorded": "yes"}
    assert metrics.value("kintsugi_gateway_calls_total", **counted) == 1
    assert front.wait_for(lambda: front.gateway.context.routing.usage().in_flight == {})


def test_a_shadow_that_no_engine_has_fails_nothing(front: Fronted) -> None:
    route(front, {"one": 1.0}, shadow="three")
    assert answerer(front) == "one"
    metrics = front.gateway.metrics
    assert front.wait_for(lambda: metrics.value("kintsugi_gateway_shadows_total", asked="no") == 1)
    assert shadows(front) == []


def test_shadows_are_bounded_in_number(engine: Live, front_over: Front) -> None:
    front = front_over(engine.url, max_shadows=1)
    route(front, {"one": 1.0}, shadow="two")
    with ThreadPoolExecutor(6) as clients:
        asked = [
            clients.submit(answerer, front, f"s{number}", max_tokens=64, ignore_eos=True)
            for number in range(6)
        ]
    assert {one.result() for one in asked} == {"one"}

    def count(asked: str) -> float:
        return front.gateway.metrics.value("kintsugi_gateway_shadows_total", asked=asked)

    # A client may have its answer before its call's shadow is counted.
    assert front.wait_for(lambda: count("yes") + count("no") == 6)
    assert count("no") > 0


def test_what_a_shadow_said_is_not_taken_for_the_conversation(
    engine: Live, front_over: Front
) -> None:
    """Nor after a restart; here the shadow says word for word what was answered."""
    front = front_over(engine.url)
    route(front, {None: 1.0}, shadow="same")
    load(engine, same=Path(engine.server.adapters.entries["one"].folder))
    assert front.wait_for(lambda: "same" in front.upstreams.all[0].served)
    route(front, {"one": 1.0}, shadow="same")
    first = post(front.url, **GREEDY, model="agent")
    assert front.wait_for(lambda: len(front.ended()) == 2)
    answer = first.json()["choices"][0]["message"]
    more = [*HELLO, answer, {"role": "user", "content": "And?"}]
    second = post(front.url, **{**GREEDY, "messages": more}, model="agent")
    assert second.headers["x-kintsugi-session"] == first.headers["x-kintsugi-session"]
    assert front.wait_for(lambda: len(front.ended()) == 4)
    with fronting(front.log.path.parent, [engine.url], log=SqliteLog(front.log.path)) as again:
        third = post(again.url, **{**GREEDY, "messages": more}, model="agent")
        assert third.headers["x-kintsugi-session"] == first.headers["x-kintsugi-session"]


def test_the_tokens_for_anthropics_clients_are_counted_by_the_base_of_the_route(
    tmp_path: Path,
) -> None:
    with recording_upstream() as engine:
        url = engine.url.removesuffix("/v1")
        with fronting(tmp_path, [url], proven=False) as front:
            found = GatewayRoute("one", (RouteShare(adapter=None, share=1.0),))
            front.gateway.context.routing.apply(GatewayRoutes(1, {"agent": found}))
            post(front.url, "/v1/messages/count_tokens", model="agent", messages=HELLO)
    assert b'"model":"one"' in engine.received
    assert b"agent" not in engine.received


HELD = [name for name in (f"h{n}" for n in range(60)) if is_held_out(0.3, "agent", name)]
"""Sessions of `agent` that a share of .3 holds out."""


def test_a_held_out_session_is_answered_by_the_base_and_its_draw_is_recorded(
    front: Fronted,
) -> None:
    route(front, {"one": 0.5, "two": 0.5}, holdout=0.3)
    assert [answerer(front, HELD[0]) for _ in range(2)] == ["tiny", "tiny"]
    held, kept = front.started()
    assert (held.routed, held.shares) == ("drawn", None)
    assert held.holdout == HoldoutDraw(share=0.3, held_out=True)
    assert (kept.routed, kept.holdout) == ("kept", None)


def test_a_session_that_another_policy_answers_keeps_its_draw(front: Fronted, engine: Live) -> None:
    """The lift counts a session by its draw, so an adapter that is lost costs the loop's arm."""
    unload(engine, "one")
    other = next(name for name in (f"o{n}" for n in range(60)) if name not in HELD)
    route(front, {"one": 1.0}, holdout=0.3)
    assert answerer(front, other) == "tiny"
    begun = front.started()
    assert (begun[-1].routed, begun[-1].shares) == ("fallback", None)
    assert {one.holdout for one in begun} == {HoldoutDraw(share=0.3, held_out=False)}
