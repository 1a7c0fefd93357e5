"""Calls whose policy is a panel: a real gateway over a real engine with two members.

The router is the base; the calibration in the panel makes it choose the same after any text.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.config.settings import load as settings
from daemon.core.app import App
from daemon.engine.adapters import Adapters
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.server import Server
from daemon.roles import route_follower
from daemon.sessions.closing import close_sessions
from events.codec import decode
from events.envelope import utc_now
from events.rollouts import CallStarted, MemberChoice, RolloutEnded
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from producers.gateway.routing.upstreams import MOST_TIMES
from producers.gateway.skills.member_choice import RouterBound
from tests.daemon.conftest import clean, home
from tests.daemon.engine.conftest import Live, adapter, listening, other_adapter
from tests.daemon.gateway.conftest import Front, Fronted, fronting, post
from tests.daemon.gateway.panels import panel, routed
from tests.daemon.gateway.test_exactness import pieces, without_chance
from tests.daemon.gateway.test_messages import MESSAGES
from tests.daemon.gateway.test_routing import CHAT, GREEDY, HELLO, ask, load, named, unload
from tests.daemon.listening import at_a_port

POLL_SECONDS: Final = 0.02

__all__ = ["adapter", "clean", "home", "other_adapter"]

SHADOWS: Final = "kintsugi_gateway_shadows_total"

Json = dict[str, Any]
PATIENT: Json = {"router_ms": 20_000}
"""Of a gateway whose router must answer, however busy the machine is."""


@pytest.fixture
def engine(base: Policy, served_chat: Chat, adapter: Path, other_adapter: Path) -> Iterator[Live]:
    """An engine with the members `one` and `two`."""
    with listening(base, served_chat) as found:
        load(found, one=adapter, two=other_adapter)
        yield found


def answered(front: Fronted, session: str = "s", **body: Any) -> tuple[str, str]:
    """Policy and member that a call's headers name."""
    answer = ask(front, session, **body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-kintsugi-adapter"], answer.headers["x-kintsugi-member"]


def last(front: Fronted) -> CallStarted:
    return front.started()[-1]


def choices(front: Fronted, outcome: str) -> float:
    """How often the router came to that."""
    return front.gateway.metrics.value("kintsugi_gateway_router_choices_total", outcome=outcome)


def test_the_member_that_the_router_chooses_answers_the_session_and_no_client_sees_more(
    engine: Live, front_over: Front
) -> None:
    front = front_over(engine.url, **PATIENT)
    routing = front.gateway.context.routing
    routing.apply(routed({"p": panel("returns")}, "p"))
    direct = post(engine.url, **GREEDY, model="one").json()
    through = ask(front, **GREEDY)
    assert without_chance(through.json()) == named(without_chance(direct), "agent")
    asked = {**GREEDY, "stream": True}
    streamed = pieces(engine.url, CHAT, {**asked, "model": "one"})
    assert pieces(front.url, CHAT, {**asked, "model": "agent"}) == named(streamed, "agent")
    assert through.headers["x-kintsugi-member"] == "one"
    assert answered(front) == ("p", "one")
    first, other, later = front.started()
    assert (first.policy, first.base, first.routed) == ("p", "tiny", "drawn")
    assert first.member is not None
    took = first.member.router_ms
    assert took is not None
    assert first.member == MemberChoice(skill="returns", adapter="one", router_ms=took)
    assert other.session != first.session
    assert later.member == MemberChoice(skill="returns", adapter="one", kept=True)
    assert choices(front, "member") == 2, "once per session"
    assert front.gateway.metrics.value("kintsugi_gateway_router_seconds_count") == 2
    assert post(front.url, "/v1/sessions/s/end").is_success
    usage = routing.usage()
    assert (usage.in_flight, usage.open_sessions) == ({}, {"p": 1, "one": 1})
    assert front.upstreams.all[0].first_tokens.median is not None


def test_a_session_keeps_its_member_until_its_panel_is_another_one(
    engine: Live, tmp_path: Path
) -> None:
    panels = {"p": panel("returns"), "q": panel("payments"), "r": panel(None)}
    with fronting(tmp_path, [engine.url], **PATIENT) as front:
        routing = front.gateway.context.routing
        routing.apply(routed(panels, "p"))
        with ThreadPoolExecutor(2) as clients:
            both = [clients.submit(answered, front) for _ in range(2)]
        assert [one.result() for one in both] == [("p", "one")] * 2
        assert choices(front, "member") == 1, "two first calls wait for one choice"
        routing.apply(routed(panels, "q", position=2, kept="p"))
        assert [answered(front, name) for name in ("s", "new")] == [("p", "one"), ("q", "two")]
        assert routing.usage().open_sessions == {"p": 1, "one": 1, "q": 1, "two": 1}
        routing.apply(routed(panels, "q", position=3, taken_back=True))
        assert answered(front) == ("q", "two")
        assert routing.usage().open_sessions == {"q": 2, "two": 2}
    with fronting(tmp_path, [engine.url], log=SqliteLog(tmp_path / "log.db"), **PATIENT) as again:
        again.gateway.context.routing.apply(routed(panels, "r", kept="q"))
        assert answered(again) == ("q", "two")
        assert last(again).member == MemberChoice(skill="payments", adapter="two", kept=True)
        assert choices(again, "member") == 0, "a restart asks no router"
        assert answered(again, "newer") == ("r", "tiny")
        again.gateway.context.routing.apply(routed(panels, "r", 2, taken_back=True))
        assert answered(again) == ("r", "tiny")


def test_a_member_is_asked_by_its_own_name_and_a_panel_by_its_own(
    engine: Live, front_over: Front
) -> None:
    front = front_over(engine.url, **PATIENT)
    routing = front.gateway.context.routing
    routing.apply(routed({"p": panel("returns")}, None))
    plain = ask(front, model="one")
    assert plain.headers["x-kintsugi-adapter"] == "one"
    assert "x-kintsugi-member" not in plain.headers
    assert answered(front, model="p") == ("p", "one")
    by_panel = last(front)
    assert (by_panel.alias, by_panel.routed, by_panel.policy) == ("agent", "named", "p")
    assert ask(front).headers["x-kintsugi-adapter"] == "tiny", "its alias is where it was"
    assert answered(front, model="p") == ("p", "one")
    assert last(front).member == MemberChoice(skill="returns", adapter="one", kept=True)
    headers = {"x-kintsugi-session": "s"}
    through = httpx2.post(f"{front.url}/v1/completions", headers=headers, timeout=60,
                          json={"model": "p", "prompt": [4, 5], "max_tokens": 2})  # fmt: skip
    assert through.headers["x-kintsugi-member"] == "one"
    tokens = post(front.url, "/v1/completions", model="p", prompt=[4, 5], max_tokens=2)
    assert (tokens.headers["x-kintsugi-member"], tokens.status_code) == ("tiny", 200)
    assert last(front).member == MemberChoice(doubt="failed"), "no words to choose by"


def test_a_panel_that_is_not_loaded_is_no_model_for_clients_who_name_it(
    engine: Live, front_over: Front, adapter: Path
) -> None:
    """As an adapter; by the route of its alias, the base stands in."""
    front = front_over(engine.url, **PATIENT)
    front.gateway.context.routing.apply(routed({"p": panel("returns")}, "p"))
    assert answered(front, model="p") == ("p", "one")
    unload(engine, "one")
    assert answered(front) == ("p", "tiny"), "the engine is asked what it has"
    for name, why in (("one", "does not exist"), ("p", "no engine has one of it")):
        refused = ask(front, "by-name", model=name)
        assert (refused.status_code, why in refused.text) == (404, True), refused.text
    shown = httpx2.post(f"{front.url}{MESSAGES}", json={**GREEDY, "model": "p"}, timeout=60)
    assert (shown.status_code, shown.json()["error"]["type"]) == (404, "not_found_error")
    assert choices(front, "absent") == 1
    shadowed = routed({"p": panel("returns")}, None, position=2, shadow="p")
    front.gateway.context.routing.apply(shadowed)
    assert ask(front, "another").status_code == 200
    left_out = lambda: front.gateway.metrics.value(SHADOWS, asked="no") == 1  # noqa: E731
    assert front.wait_for(left_out), "nobody is asked for the panel's base in its name"
    load(engine, one=adapter)
    returned = lambda: ask(front, "by-name", model="p").status_code == 200  # noqa: E731
    assert front.wait_for(returned)
    assert answered(front, "by-name", model="p") == ("p", "one")


@pytest.mark.parametrize(
    ("choice", "router", "doubt"),
    [
        ((None,), None, "none"),
        (("returns", "payments"), None, "disagreement"),
        (("returns",), "nowhere", "failed"),
    ],
)
def test_in_doubt_the_base_answers_and_the_log_says_why(
    engine: Live, front_over: Front, choice: tuple[str | None, ...], router: str | None, doubt: Any
) -> None:
    front = front_over(engine.url, **PATIENT)
    front.gateway.context.routing.apply(routed({"p": panel(*choice, router=router)}, "p"))
    direct = post(engine.url, **GREEDY, model="tiny").json()
    through = ask(front, **GREEDY)
    assert without_chance(through.json()) == named(without_chance(direct), "agent")
    assert through.headers["x-kintsugi-member"] == "tiny"
    assert answered(front) == ("p", "tiny")
    first, later = (started.member for started in front.started())
    assert first is not None
    assert first == MemberChoice(doubt=doubt, router_ms=first.router_ms)
    assert (first.router_ms is None) == (doubt == "failed")
    assert later == MemberChoice(doubt=doubt, kept=True)
    assert choices(front, doubt) == 1
    assert front.gateway.metrics.value("kintsugi_gateway_fallbacks_total") == 0


def test_the_base_of_another_engine_chooses_no_member(engine: Live, front_over: Front) -> None:
    """Its tokens are others, whatever their numbers."""
    front = front_over(engine.url, **PATIENT)
    routes = routed({"p": panel("returns")}, "p")
    elsewhere = replace(routes.adapters["p"], base="elsewhere")
    front.gateway.context.routing.apply(
        replace(routes, adapters={**routes.adapters, "p": elsewhere})
    )
    assert answered(front) == ("p", "tiny")
    assert last(front).member == MemberChoice(doubt="failed")


def test_a_member_that_no_engine_has_is_replaced_for_as_long_as_it_is_missing(
    engine: Live, front_over: Front, adapter: Path
) -> None:
    front = front_over(engine.url, **PATIENT)
    front.gateway.context.routing.apply(routed({"p": panel("returns")}, "p"))
    assert answered(front) == ("p", "one")
    unload(engine, "one")
    assert answered(front) == ("p", "tiny")
    lost, base = front.started()[-2:]
    assert (lost.member, base.member) == (
        MemberChoice(skill="returns", adapter="one", kept=True),
        MemberChoice(skill="returns", kept=True, doubt="absent"),
    ), "a call has one member"
    assert (base.policy, base.routed, lost.policy) == ("p", "kept", "p")
    assert [ended.outcome for ended in front.ended()].count("failed") == 1
    assert answered(front, "new") == ("p", "tiny")
    assert choices(front, "absent") == 2
    load(engine, one=adapter)
    assert front.wait_for(lambda: answered(front) == ("p", "one")), "it is still the session's"
    assert answered(front, "new") == ("p", "one")


class HeldRouter:
    """The engine's application, in which requests of routers wait."""

    def __init__(self, application: ASGIApp) -> None:
        self.released = threading.Event()
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        first = await receive()
        pending = [first]
        if b"logprob_token_ids" in first.get("body", b""):
            gone = asyncio.ensure_future(receive())
            while not (self.released.is_set() or gone.done()):
                await asyncio.sleep(0.01)
            gone.cancel()

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._application(scope, replay, send)


@contextmanager
def held(base: Policy, chat: Chat, **adapters: Path) -> Iterator[tuple[str, HeldRouter]]:
    """The URL of an engine whose router is held."""
    server = Server(Adapters(base, "a checkpoint"), chat, Engine(base, slots=8))
    for name, folder in adapters.items():
        server.adapters.load(name, folder)
    application = HeldRouter(server.app)
    with at_a_port(application, lifespan="on") as url:
        yield url, application


def test_no_call_waits_longer_than_its_bound_and_a_later_one_asks_once_more(
    base: Policy, served_chat: Chat, front_over: Front, adapter: Path, other_adapter: Path
) -> None:
    with held(base, served_chat, one=adapter, two=other_adapter) as (url, router):
        front = front_over(url, router_ms=60, router_most_ms=600_000, reroute=True)
        front.gateway.context.routing.apply(routed({"p": panel("returns")}, "p"))
        began = time.monotonic()
        assert answered(front) == ("p", "tiny")
        waited = time.monotonic() - began
        member = last(front).member
        assert member is not None
        assert member == MemberChoice(doubt="timeout", router_ms=member.router_ms)
        assert 60 <= (member.router_ms or 0) <= 1000 * waited
        assert choices(front, "timeout") == 1
        said = [*HELLO, {"role": "assistant", "content": "Hi"}]
        assert answered(front, messages=said) == ("p", "tiny"), "no turn of the user"
        router.released.set()
        times = front.upstreams.all[0].first_tokens
        while times.median is None:
            assert time.monotonic() < began + 60, "a late router is heard out"
            time.sleep(POLL_SECONDS)
        waits = RouterBound(0.06, 600).find_seconds(front.upstreams.all[0])
        assert waits > 2 * 0.06, "the next ones are waited for"
        # What waits for the machine itself must not run out of time.
        for _ in range(MOST_TIMES):
            times.add(600.0)
        said.append({"role": "user", "content": "A refund, please."})
        assert answered(front, messages=said) == ("p", "one")
        moved = last(front).member
        assert moved is not None
        assert (moved.kept, moved.doubt, moved.router_ms is None) == (False, None, False)
        front.gateway.context.routing.apply(routed({"p": panel("payments")}, "p"))
        assert answered(front, messages=said) == ("p", "one"), "who has a member is not moved"


def test_a_router_that_said_nothing_is_asked_again_until_somebody_has_answered(
    engine: Live, front_over: Front, other_adapter: Path
) -> None:
    front = front_over(engine.url, **PATIENT)
    front.gateway.context.routing.apply(routed({"p": panel("returns", router="router")}, "p"))
    refused = ask(front, "s", max_tokens=-1)
    assert refused.status_code == 400, "the call for which the router was asked came to nothing"
    assert answered(front, "answered") == ("p", "tiny")
    assert choices(front, "failed") == 2
    load(engine, router=other_adapter)
    assert front.wait_for(lambda: "router" in front.upstreams.all[0].served)
    assert answered(front) == ("p", "one")
    assert answered(front, "answered") == ("p", "tiny"), "whom the base has answered keeps it"
    assert (choices(front, "failed"), choices(front, "member")) == (2, 1)


def test_no_streamed_call_fails_while_members_and_routers_come_and_go(
    engine: Live, front_over: Front, adapter: Path
) -> None:
    load(engine, router=adapter)
    front = front_over(engine.url, **PATIENT)
    front.gateway.context.routing.apply(routed({"p": panel("returns", router="router")}, "p"))
    stop = threading.Event()
    asked = {**GREEDY, "model": "agent", "stream": True, "max_tokens": 12}

    def talk(client: int) -> set[str]:
        members, calls = set(), 0
        while not (stop.is_set() and calls):
            headers = {"x-kintsugi-session": f"c{client}-{calls // 3}"}
            answer = httpx2.post(f"{front.url}{CHAT}", json=asked, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.text.endswith("data: [DONE]\n\n"), answer.text
            assert answer.headers["x-kintsugi-adapter"] == "p"
            members.add(answer.headers["x-kintsugi-member"])
            calls += 1
        return members

    with ThreadPoolExecutor(8) as clients:
        talking = [clients.submit(talk, number) for number in range(8)]
        for lost in ("one", "router"):
            before = len(front.ended())
            assert front.wait_for(lambda seen=before: len(front.ended()) > seen + 8)  # type: ignore[misc]
            unload(engine, lost)
            before = len(front.ended())
            assert front.wait_for(lambda seen=before: len(front.ended()) > seen + 8)  # type: ignore[misc]
            load(engine, **{lost: adapter})
        stop.set()
        assert set().union(*(one.result() for one in talking)) == {"one", "tiny"}
    assert {started.policy for started in front.started()} == {"p"}
    assert front.gateway.context.routing.usage().in_flight == {}


def test_a_call_that_is_sent_again_names_the_same_member(engine: Live, front_over: Front) -> None:
    front = front_over(engine.url, **PATIENT)
    front.gateway.context.routing.apply(routed({"p": panel("payments")}, "p"))
    headers = {"idempotency-key": "k"}
    body = {**GREEDY, "model": "agent"}
    first, again = (
        httpx2.post(f"{front.url}{CHAT}", json=body, headers=headers, timeout=60) for _ in range(2)
    )
    assert again.headers["x-kintsugi-replayed"] == "yes"
    for name in ("x-kintsugi-adapter", "x-kintsugi-member", "x-kintsugi-session"):
        assert again.headers[name] == first.headers[name]
    assert first.headers["x-kintsugi-member"] == "two"


def test_a_shadow_that_is_a_panel_answers_with_a_member_of_its_own(
    engine: Live, front_over: Front
) -> None:
    front = front_over(engine.url, **PATIENT)
    routing = front.gateway.context.routing
    routing.apply(routed({"p": panel("payments")}, None, shadow="p"))
    assert ask(front).headers["x-kintsugi-adapter"] == "tiny"
    assert front.wait_for(lambda: len(front.ended()) == 2)
    (shadow,) = [started for started in front.started() if started.purpose == "probe"]
    assert (shadow.policy, shadow.member and shadow.member.adapter) == ("p", "two")
    assert choices(front, "member") == 0, "it counts for no client"
    assert routing.usage().open_sessions == {"two": 1}
    assert post(front.url, "/v1/sessions/s/end").is_success
    assert routing.usage().open_sessions == {}


@pytest.mark.usefixtures("clean")
def test_a_closed_session_names_the_member_of_its_last_answer(engine: Live, home: Path) -> None:
    home.mkdir()
    with fronting(home, [engine.url], **PATIENT) as front:
        front.gateway.context.routing.apply(routed({"p": panel("returns")}, "p"))
        assert answered(front) == ("p", "one")
        front.gateway.context.routing.apply(routed({}, "two", position=2, taken_back=True))
        assert ask(front, "plain").headers["x-kintsugi-adapter"] == "two"
        chosen = next(started.member for started in front.started() if started.session == "s")
        with App(settings()) as app:
            close_sessions(app, utc_now() + timedelta(hours=1))
            ends = enumerate(app.log.end(ROLLOUTS.name))
            decoded = [
                decode(record).data
                for partition, _ in ends
                for record in app.log.read(ROLLOUTS.name, partition, 0)
            ]
    closed = {data.session: data for data in decoded if isinstance(data, RolloutEnded)}
    assert (closed["s"].policy, closed["s"].member) == ("p", chosen)
    assert (closed["plain"].policy, closed["plain"].member) == ("two", None)


def test_the_routes_of_a_home_keep_panels_and_those_of_an_older_one_have_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "routes.json"
    known = routed({"p": panel("returns", None, router="r")}, "p", shadow="one")
    route_follower.write(path, known)
    assert route_follower.read(path) == known
    older = json.loads(path.read_text())
    for written in older["adapters"].values():
        del written["panel"]
    path.write_text(json.dumps(older))
    read = route_follower.read(path)
    assert read is not None
    assert [adapter.composition for adapter in read.adapters.values()] == [None] * 3
