"""A gateway that starts under load: who answered is known, or nobody answered.

The engines are scripted: they wait before they say what they serve, as an engine does that is busy.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents
from daemon.config.settings import load
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from envs.shop.environment import Shop
from events.envelope import utc_now
from events.serving import RouteShare
from ops.faults.gateway_engine import Engine
from producers.gateway.privacy.keys import ClientKey, hash_key
from producers.gateway.routing.routes import GatewayRoute, GatewayRoutes
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.conftest import Front, Fronted, fronting
from tests.daemon.gateway.test_rollouts import shown

__all__ = ["clean", "home", "kintsugi"]

CHAT = "/v1/chat/completions"
Json = dict[str, Any]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as started:
        yield started


@contextmanager
def withhold_models(engine: Engine) -> Iterator[None]:
    """Inside the block the engine lists no models, and a gateway waits a second for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("producers.gateway.routing.upstreams._CHECK_SECONDS", 1.0)
        engine.listed.clear()
        yield
    engine.listed.set()


def server(engine: Engine) -> str:
    return engine.url.removesuffix("/v1")


def task() -> str:
    return next(iter(Shop().tasks())).id


GRADER = ClientKey("grader", hash_key("k"), frozenset(("call", "trusted")))


def ask(front: Fronted, *said: str, session: str = "talk", **fields: Any) -> httpx2.Response:
    """A call of a session on a task; `said` is what user and agent said in turn."""
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(said)
    ]
    body: Json = {"model": "agent", "messages": turns, "script": {"mark": session}, **fields}
    headers = {"authorization": f"Bearer k~{session}", "x-kintsugi-task": task()}
    return httpx2.post(f"{front.url}{CHAT}", json=body, headers=headers, timeout=60)


def closed() -> list[Pair]:
    """Every session is made a rollout; the agents that there are then."""
    with App(load()) as app:
        close_sessions(app, utc_now() + timedelta(hours=1))
        with app.reading() as connection:
            return agents.present(connection)


def test_an_engine_that_has_not_said_what_it_serves_is_no_refusal_and_no_agent(
    home: Path, kintsugi: Kintsugi, engine: Engine
) -> None:
    """An alias is no model: passed on as one, every engine refuses it, and the client gives up."""
    home.mkdir()
    with ExitStack() as stack:
        with withhold_models(engine):
            front = stack.enter_context(
                fronting(home, [server(engine)], keys=[GRADER], proven=False)
            )
            early = ask(front, "Where is my order?", session="early")
            assert (early.status_code, early.headers["retry-after"]) == (503, "1")
            assert early.headers["x-kintsugi-recorded"] == "yes"
            lost = ask(front, "Is anybody there?", session="lost")
            assert lost.status_code == 503
        assert ask(front, "Where is my order?", session="early").status_code == 200
    assert closed() == [Pair("agent", "scripted")]
    closed_as = {one["messages"][0]["content"]: one for one in shown(kintsugi)}
    judged, lost_to_all = closed_as["Where is my order?"], closed_as["Is anybody there?"]
    assert (judged["base"], judged["policy"]) == ("scripted", "scripted")
    assert judged["success"] is False
    assert (lost_to_all["base"], lost_to_all["success"]) == ("unknown", None)
    kintsugi("diagnose")
    assert {one["base"] for one in kintsugi("patterns", "--json").json} == {"scripted"}


def test_a_session_whose_last_call_nobody_answered_is_of_who_answered_before(
    home: Path, kintsugi: Kintsugi, engine: Engine
) -> None:
    home.mkdir()
    with fronting(home, [server(engine)], keys=[GRADER]) as front:
        answer = ask(front, "Where is my order?")
        assert answer.status_code == 200
        said = answer.json()["choices"][0]["message"]["content"]
    with (
        withhold_models(engine),
        fronting(home, [server(engine)], keys=[GRADER], proven=False) as front,
    ):
        assert ask(front, "Where is my order?", said, "Well?").status_code == 503
    assert closed() == [Pair("agent", "scripted")]
    (rollout,) = shown(kintsugi)
    assert (rollout["base"], rollout["policy"]) == ("scripted", "scripted")
    assert [message["role"] for message in rollout["messages"]] == ["user", "assistant", "user"]


def test_a_call_names_the_base_of_the_engine_that_answers(
    home: Path, kintsugi: Kintsugi, engine: Engine
) -> None:
    """The engine that was asked first is gone: what was begun failed, and this is another call."""
    home.mkdir()
    with ExitStack() as stack:
        kill = stack.enter_context(ExitStack())
        other = kill.enter_context(Engine("other"))
        front = stack.enter_context(fronting(home, [server(engine), server(other)]))
        sessions = [f"s{number}" for number in range(20)]
        first = {
            session: front.upstreams.for_session(session)[0].url.startswith(server(other))
            for session in sessions
        }
        session = next(name for name, is_other in first.items() if is_other)
        kill.close()
        body = {"messages": [{"role": "user", "content": "Hello"}], "script": {"mark": session}}
        headers = {"x-kintsugi-session": session}
        answer = httpx2.post(f"{front.url}{CHAT}", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200
        started = {call.call: call for call in front.started()}
        ended = {call.call: call.outcome for call in front.ended()}
        assert answer.headers["x-kintsugi-adapter"] == "scripted"
        assert started[answer.headers["x-kintsugi-call"]].base == "scripted"
        outcomes = {started[call].base: outcome for call, outcome in ended.items()}
        assert outcomes == {"other": "failed", "scripted": "completed"}


def test_where_a_route_names_the_base_it_is_asked_for_before_the_engine_listed_it(
    home: Path, engine: Engine
) -> None:
    home.mkdir()
    with (
        withhold_models(engine),
        fronting(home, [server(engine)], keys=[GRADER], proven=False) as front,
    ):
        route = GatewayRoute("scripted", (RouteShare(adapter=None, share=1.0),))
        front.gateway.context.routing.apply(GatewayRoutes(1, {"agent": route}))
        answer = ask(front, "Where is my order?")
        assert answer.status_code == 200
        assert answer.headers["x-kintsugi-adapter"] == "scripted"
        assert [(call.base, call.policy) for call in front.started()] == [("scripted", "scripted")]
        assert answer.json()["model"] == "agent"


@pytest.mark.long
def test_a_model_that_no_engine_lists_is_a_base_of_its_own_where_it_answers(
    home: Path, kintsugi: Kintsugi
) -> None:
    """Some servers list nothing, and answer whatever they are asked for."""
    home.mkdir()
    with Engine("large-1") as engine:
        engine.listed.clear()
        with fronting(home, [server(engine)], keys=[GRADER], proven=False) as front:
            assert ask(front, "Hello", model="large-1").status_code == 200
            assert ask(front, "Hello", session="typo", model="large-l").status_code == 404
    assert closed() == [Pair("agent", "large-1")]


@pytest.mark.parametrize("model", ["", "large-l"])
def test_a_client_reads_what_an_engine_says_of_a_model_that_is_none(
    live: Live, front_over: Front, model: str
) -> None:
    """An empty name is no alias: an engine that refuses it is not lost."""
    front = front_over(live.url)
    body = {"model": model, "prompt": "Hello", "max_tokens": 1}
    answer = httpx2.post(f"{front.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"]["type"] == "NotFoundError"
    assert answer.headers["x-kintsugi-recorded"] == "yes"
