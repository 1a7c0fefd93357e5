"""An adapter that plays users answers no client: a real gateway over an engine that holds it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from events.serving import RouteShare
from producers.gateway.routing.routes import Adapter, GatewayRoute, GatewayRoutes
from tests.daemon.engine.conftest import Live, adapter, listening, other_adapter
from tests.daemon.gateway.conftest import Front, Fronted, post
from tests.daemon.gateway.test_routing import CHAT, GREEDY, HELLO, load

__all__ = ["adapter", "other_adapter"]


@pytest.fixture
def engine(base: Policy, served_chat: Chat, adapter: Path, other_adapter: Path) -> Iterator[Live]:
    """An engine with the adapter `agent-1`, and `user-1`, which plays users."""
    with listening(base, served_chat) as live:
        load(live, **{"agent-1": adapter, "user-1": other_adapter})
        yield live


@pytest.fixture
def front(engine: Live, front_over: Front) -> Fronted:
    front = front_over(engine.url)
    known = {
        "agent-1": Adapter("agent", "tiny", True),
        "user-1": Adapter("agent", "tiny", False, plays_users=True),
    }
    route = GatewayRoute("tiny", (RouteShare(adapter="agent-1", share=1.0),))
    front.gateway.context.routing.apply(GatewayRoutes(1, {"agent": route}, known))
    return front


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, GREEDY),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 8, "temperature": 0}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 8}),
        ("/v1/messages/count_tokens", {"messages": HELLO}),
    ],
)
def test_no_client_can_name_it(
    front: Fronted, engine: Live, path: str, body: dict[str, Any]
) -> None:
    for name in ("user-1", "user-1~probation"):
        answer = post(front.url, path, **body, model=name)
        assert answer.status_code == 404
        assert "plays users, and answers no client; ask for agent" in answer.text
    assert post(front.url, CHAT, **GREEDY, model="agent-1").status_code == 200
    if path == CHAT:
        assert post(engine.url, path, **body, model="user-1").status_code == 200, "it is there"


def test_no_client_sees_it_among_the_models(front: Fronted, engine: Live) -> None:
    def list_models(url: str) -> set[str]:
        cards = httpx2.get(f"{url}/v1/models", timeout=20).json()["data"]
        return {card["id"] for card in cards}

    assert list_models(engine.url) == {"tiny", "agent-1", "user-1"}
    assert list_models(front.url) == {"tiny", "agent-1", "agent"}
