"""A panel behind a trained router, on both engines: it chooses as the same adapter does in this
process, and its members answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.engine.chat import Chat, as_chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.skills.engine_router import ask, read_all_scores, render_prompts
from daemon.methods.skills.panels import Composition, compose
from daemon.methods.skills.routing.job import run
from daemon.roles.route_follower import in_force
from daemon.solver.job import ADAPTER
from daemon.solver.sampling.opening import read_opening
from events.rollouts import MemberChoice
from ops.random_adapters import Adapters
from ops.vllm.server import Vllm
from producers.gateway.skills.label_router import build_prompts, list_label_tokens, read_scores
from tests.daemon.gateway.conftest import fronting, post
from tests.daemon.gateway.test_panels import choices
from tests.daemon.gateway.test_routing import ask as ask_agent
from tests.daemon.methods.skills.routing.test_router_job import (
    FIRST,
    FRESH,
    OTHERS,
    SHOP,
    SKILL,
    build_spec,
    draw,
)
from tests.daemon.serving.homes import ADA, Home, Restartable
from tests.daemon.serving.test_cycle_panels import record_adapter
from tests.daemon.vllms import serve_reference

pytestmark = pytest.mark.learning

STEPS: Final = 6
TASKS: Final = 32
"""Tasks of the skill, and as many others, that the router learns from."""
BOUND: Final = 1e-3
"""Nats between the scores of an engine and those of this process, in float32."""
ANSWER: Final[dict[str, Any]] = {"temperature": 0, "max_tokens": 8}


@pytest.fixture
def mended_vllm() -> Iterator[Vllm]:
    """A vLLM whose base is itself beside adapters, as a panel needs it."""
    with serve_reference(mended=True) as server:
        yield server


@pytest.fixture(
    params=[
        "embedded",
        pytest.param("vllm", marks=[pytest.mark.long, pytest.mark.vllm, pytest.mark.timeout(900)]),
    ]
)
def home(
    request: pytest.FixtureRequest, tmp_path: Path, reference: tuple[Policy, Chat]
) -> Iterator[Home]:
    """A home over either engine."""
    if request.param == "vllm":
        engines, urls = [], [request.getfixturevalue("mended_vllm").url]
    else:
        engines, urls = [Restartable(*reference)], []
    room = {"max_loras": 4, "max_cpu_loras": 8, "checkpoint": CHECKPOINT}
    home = Home(tmp_path / "home", engines, urls, upstream=room)
    yield home
    home.close()
    for engine in engines:
        engine.stop()


@pytest.mark.long
def test_a_trained_router_chooses_at_an_engine_as_in_process_and_its_members_answer(
    home: Home, adapters: Adapters, reference: tuple[Policy, Chat], tmp_path: Path
) -> None:
    spec = build_spec(STEPS, draw({SKILL: 1.0}, FIRST, TASKS), draw(OTHERS, FIRST, TASKS))
    outcome = run(spec, tmp_path / "job")
    assert outcome.outcome == "trained", outcome.reason
    router = record_adapter(home, spec, tmp_path / "job" / ADAPTER)
    member, other = home.push(adapters["strong"]), home.push(adapters["v1"])
    panel = compose(home.app, home.fleet, Composition({SKILL: member}, router=router), ADA)
    home.publisher.stage(other, ADA)
    home.publisher.promote(panel.adapter, ADA, override=True)
    assert home.loaded() == [sorted([router, member, other])]

    assert panel.composition is not None
    chooser = panel.composition.router
    tasks = [*draw({SKILL: 1.0}, FRESH, 4), *draw(OTHERS, FRESH, 4)]
    views = [read_opening(SHOP, SHOP.task(task)) for task in tasks]
    conversations = [[as_chat(message) for message in view or ()] for view in views]
    base, chat = reference
    policy = base.with_adapter(tmp_path / "job" / ADAPTER, router)
    prompts = [build_prompts(chooser, messages) for messages in conversations]
    scores = read_all_scores(policy, chooser, [render_prompts(chat, both) for both in prompts])
    expected = ask(policy, chat, chooser, conversations)
    assert [answer.skill for answer in expected] == [*4 * [SKILL], *4 * [None]]
    (engine,) = home.fleet.engines.values()
    for both, rows in zip(prompts, scores, strict=True):
        for order, prompt in enumerate(both):
            found = engine.replica.score_labels(router, prompt, list_label_tokens(chooser))
            assert read_scores(chooser, order, found) == pytest.approx(rows[order], abs=BOUND)

    url = home.urls[0].removesuffix("/v1")
    with fronting(tmp_path, [url], patience=300, router_ms=60_000) as front:
        front.gateway.context.routing.apply(in_force(home.table()))
        for number, (messages, answer) in enumerate(zip(conversations, expected, strict=True)):
            through = ask_agent(front, f"s{number}", messages=messages, **ANSWER)
            assert through.status_code == 200, through.text
            chosen = member if answer.skill else None
            model = chosen or "reference"
            assert through.headers["x-kintsugi-adapter"] == panel.adapter
            assert through.headers["x-kintsugi-member"] == model
            direct = post(url, model=model, messages=messages, **ANSWER).json()
            texts = [body["choices"][0]["message"]["content"] for body in (through.json(), direct)]
            assert texts[0] == texts[1]
            recorded = front.started()[-1].member
            assert recorded is not None
            took = recorded.router_ms
            assert recorded == MemberChoice(
                skill=answer.skill, adapter=chosen, doubt=answer.doubt, router_ms=took
            )

        first = {"session": "s0", "messages": conversations[0], **ANSWER}
        engine.replica.unload(member)
        assert ask_agent(front, **first).headers["x-kintsugi-member"] == "reference"
        assert choices(front, "absent") == 1
        assert home.tick().loaded == [member]
        returned = lambda: ask_agent(front, **first).headers["x-kintsugi-member"] == member  # noqa: E731
        assert front.wait_for(returned), "it is still the session's"
        engine.replica.unload(router)
        unrouted = ask_agent(front, **{**first, "session": "new"})
        assert unrouted.headers["x-kintsugi-member"] == "reference"
        assert choices(front, "failed") == 1
