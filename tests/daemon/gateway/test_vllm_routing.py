"""Aliases over a real vLLM: an answer by route is vLLM's own, but for the name of its model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from events.serving import RouteShare
from producers.gateway.routing.routes import GatewayRoute, GatewayRoutes
from tests.daemon.gateway.conftest import Fronted, fronting, post
from tests.daemon.gateway.test_messages import HELLO, MESSAGES
from tests.daemon.gateway.test_routing import named
from tests.daemon.gateway.test_vllm_messages import events, joined, without_chance

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ASKED = {**HELLO, "temperature": 0, "max_tokens": 8}


@pytest.fixture
def front_vllm(vllm: str, tmp_path: Path) -> Iterator[Fronted]:
    with fronting(tmp_path, [vllm], patience=300) as found:
        routed = GatewayRoutes(
            1, {"agent": GatewayRoute("tiny", (RouteShare(adapter=None, share=1.0),))}
        )
        found.gateway.context.routing.apply(routed)
        yield found


@pytest.mark.parametrize("path", ["/v1/chat/completions", MESSAGES])
def test_an_answer_is_vllms_under_the_alias(vllm: str, front_vllm: Fronted, path: str) -> None:
    direct = without_chance(post(vllm, path, **ASKED).json())
    through = without_chance(post(front_vllm.url, path, **{**ASKED, "model": "agent"}).json())
    changing = ("created",)
    assert {k: v for k, v in through.items() if k not in changing} == {
        k: v for k, v in named(direct, "agent").items() if k not in changing
    }


def test_a_stream_of_messages_is_vllms_under_the_alias(vllm: str, front_vllm: Fronted) -> None:
    direct = joined(events(vllm, {**ASKED, "stream": True}))
    through = joined(events(front_vllm.url, {**ASKED, "model": "agent", "stream": True}))
    expected: list[Any] = [
        [name, {**said[0], "message": named(said[0]["message"], "agent")}]
        if name == "message_start"
        else [name, *said]
        for name, *said in direct
    ]
    assert through == expected
    assert through[0][0] == "message_start"


def test_tokens_for_anthropics_clients_are_counted_under_the_alias(
    vllm: str, front_vllm: Fronted
) -> None:
    path = f"{MESSAGES}/count_tokens"
    direct = post(vllm, path, **HELLO)
    through = post(front_vllm.url, path, **{**HELLO, "model": "agent"})
    assert (through.status_code, through.json()) == (direct.status_code, direct.json())
    assert direct.json()["input_tokens"] > 0


def test_the_alias_stands_among_vllms_models(vllm: str, front_vllm: Fronted) -> None:
    direct, through = (
        httpx2.get(f"{url}/v1/models").json()["data"] for url in (vllm, front_vllm.url)
    )
    assert [one["id"] for one in through] == [*(one["id"] for one in direct), "agent"]
    assert (through[-1]["root"], through[-1]["parent"]) == ("tiny", "tiny")
