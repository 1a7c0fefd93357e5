"""A panel behind a trained router, on both engines: it chooses as the same adapter does in this
process, and its members answer."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.engine.chat import Chat, as_chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.engine.routing import ask, find_label_tokens, read_all_scores, render_prompts
from daemon.roles.route_follower import in_force
from daemon.serving.panels import Composition, compose
from daemon.solver.job import ADAPTER
from daemon.solver.routing.job import run
from daemon.solver.sampling.opening import read_opening
from events.jobs import JobSpec, PanelRouter, RouterOption, TaskPool
from events.rollouts import MemberChoice
from ops.isolated import InstallError
from ops.random_adapters import Adapters
from ops.vllm.server import Vllm
from producers.gateway.routing.label_router import build_prompts, list_label_tokens, read_scores
from tests.conftest import missing
from tests.daemon.gateway.conftest import fronting, post
from tests.daemon.gateway.test_panels import choices
from tests.daemon.gateway.test_routing import ask as ask_agent
from tests.daemon.serving.homes import ADA, Home, Restartable
from tests.daemon.serving.test_cycle_panels import produced
from tests.daemon.solver.routing.test_router_job import FIRST, FRESH, SHOP, build_spec, draw

pytestmark = pytest.mark.learning

SKILLS: Final = ("fallback", "cancel")
NO_SKILL: Final = "question"
BOUND: Final = 1e-3
"""Nats between the scores of an engine and those of this process, in float32."""
ANSWER: Final[dict[str, Any]] = {"temperature": 0, "max_tokens": 8}


@pytest.fixture
def mended_vllm() -> Iterator[Vllm]:
    """A vLLM whose base is itself beside adapters, as a panel needs it."""
    # Short, for sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="kintsugi-vllm-") as folder:
        flags = ("--max-model-len=512",)
        server = Vllm(CHECKPOINT, "reference", Path(folder), flags=flags, mended=True)
        try:
            server.start()
        except InstallError as error:
            missing(str(error))
        yield server
        server.stop()


@pytest.fixture(
    params=["embedded", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(900)])]
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


def build_router_spec() -> JobSpec:
    """Two skills, and tasks of no skill."""
    spec = build_spec(8, *(draw({kind: 1.0}, FIRST, 32) for kind in (SKILLS[0], NO_SKILL)))
    words = {**{skill: SHOP.capabilities[skill] for skill in SKILLS}, None: "none of these"}
    labels = ("A", "B", "C")
    tokens = find_label_tokens(CHECKPOINT, labels)
    options = tuple(
        RouterOption(skill=skill, label=label, token=token, description=text)
        for (skill, text), label, token in zip(words.items(), labels, tokens, strict=True)
    )
    second = TaskPool(name=SKILLS[1], skill=SKILLS[1], tasks=draw({SKILLS[1]: 1.0}, FIRST, 32))
    pools = (spec.pools[0], second, spec.pools[1])
    return spec.model_copy(update={"router": PanelRouter(options=options), "pools": pools})


def test_a_trained_router_chooses_at_an_engine_as_in_process_and_its_members_answer(
    home: Home, adapters: Adapters, reference: tuple[Policy, Chat], tmp_path: Path
) -> None:
    spec = build_router_spec()
    outcome = run(spec, tmp_path / "job")
    assert outcome.outcome == "trained", outcome.reason
    router = produced(home, spec, tmp_path / "job" / ADAPTER)
    members = {skill: home.push(adapters[name]) for skill, name in zip(SKILLS, ("strong", "v1"))}
    panel = compose(home.app, home.fleet, Composition(members, router=router), ADA)
    home.publisher.promote(panel.adapter, ADA, override=True)
    assert home.loaded() == [sorted([router, *members.values()])]

    assert panel.panel is not None
    chooser = panel.panel.router
    tasks = [task for kind in (*SKILLS, NO_SKILL) for task in draw({kind: 1.0}, FRESH, 4)]
    views = [read_opening(SHOP, SHOP.task(task)) for task in tasks]
    conversations = [[as_chat(message) for message in view or ()] for view in views]
    base, chat = reference
    policy = base.with_adapter(tmp_path / "job" / ADAPTER, router)
    prompts = [build_prompts(chooser, messages) for messages in conversations]
    scores = read_all_scores(policy, chooser, [render_prompts(chat, both) for both in prompts])
    expected = ask(policy, chat, chooser, conversations)
    assert {answer.skill for answer in expected} == {*SKILLS, None}
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
            member = panel.panel.find_adapter(answer.skill)
            model = member or "reference"
            assert through.headers["x-kintsugi-adapter"] == panel.adapter
            assert through.headers["x-kintsugi-member"] == model
            direct = post(url, model=model, messages=messages, **ANSWER).json()
            texts = [body["choices"][0]["message"]["content"] for body in (through.json(), direct)]
            assert texts[0] == texts[1]
            chosen = front.started()[-1].member
            assert chosen is not None
            assert chosen == MemberChoice(
                skill=answer.skill, adapter=member, doubt=answer.doubt, router_ms=chosen.router_ms
            )

        lost = members[SKILLS[0]]
        first = {"session": "s0", "messages": conversations[0], **ANSWER}
        engine.replica.unload(lost)
        assert ask_agent(front, **first).headers["x-kintsugi-member"] == "reference"
        assert choices(front, "absent") == 1
        assert home.tick().loaded == [lost]
        returned = lambda: ask_agent(front, **first).headers["x-kintsugi-member"] == lost  # noqa: E731
        assert front.wait_for(returned), "it is still the session's"
        engine.replica.unload(router)
        unrouted = ask_agent(front, **{**first, "session": "new"})
        assert unrouted.headers["x-kintsugi-member"] == "reference"
        assert choices(front, "failed") == 1
