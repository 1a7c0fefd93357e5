"""Aliases over a real vLLM: an answer by route is vLLM's own, but for the name of its model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from events.jobs import PanelRouter
from events.serving import Panel, RouteShare
from producers.gateway.routing.routes import GatewayRoute, GatewayRoutes
from tests.daemon.gateway.conftest import Fronted, fronting, post
from tests.daemon.gateway.panels import MEMBERS, panel, routed
from tests.daemon.gateway.test_messages import HELLO, MESSAGES
from tests.daemon.gateway.test_routing import named
from tests.daemon.gateway.test_vllm_messages import events, joined, without_chance

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ASKED = {**HELLO, "temperature": 0, "max_tokens": 8}


@pytest.fixture
def front_vllm(vllm: str, tmp_path: Path) -> Iterator[Fronted]:
    with fronting(tmp_path, [vllm], patience=300, router_ms=60_000) as found:
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


@pytest.mark.parametrize("forced", [True, False])
def test_a_panels_router_reads_the_log_probabilities_of_a_real_vllm(
    vllm: str, front_vllm: Fronted, forced: bool
) -> None:
    """The model writes one token whatever it reads. As a label it stands for another option in each
    order, so without a calibration the orders disagree."""
    (written,) = post(vllm, **ASKED, return_token_ids=True).json()["choices"]
    options = tuple(
        option.model_copy(update={"token": written["token_ids"][0]}) if place == 0 else option
        for place, option in enumerate(panel("returns").router.options)
    )
    calibration = panel("returns").router.calibration if forced else ()
    router = PanelRouter(options=options, calibration=calibration)
    routes = routed({"p": Panel(members=MEMBERS, router=router)}, "p")
    front_vllm.gateway.context.routing.apply(routes)
    through = post(front_vllm.url, **{**ASKED, "model": "agent"})
    assert (through.headers["x-kintsugi-adapter"], through.headers["x-kintsugi-member"]) == (
        "p",
        "tiny",
    )
    member = front_vllm.started()[-1].member
    assert member is not None
    skill, doubt = ("returns", "absent") if forced else (None, "disagreement")
    assert (member.skill, member.doubt) == (skill, doubt), "no engine holds the members"
    assert (member.router_ms or 0) > 0
