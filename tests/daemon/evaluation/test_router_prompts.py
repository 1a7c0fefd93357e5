"""What the router of a panel is asked, on each of its three ways: pinned token for token."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.adapters.directory import WEIGHTS, verify
from daemon.engine.chat import Chat, as_chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.evaluation.players import Adapter, PlayerWithMembers
from daemon.evaluation.trial import Plan, play
from daemon.methods.skills.endpoint_router import EndpointRouter
from daemon.methods.skills.engine_router import render_router_prompts
from daemon.solver.sampling.opening import read_opening
from envs.endpoint import Endpoint
from envs.evaluation import episode_seed
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.canonical import exact_json
from events.jobs import EndpointUser, PanelRouter
from events.messages import Message
from events.rollouts import MemberChoice
from events.serving import Panel, PanelMember
from ops.random_adapters import Maker
from tests.daemon.engine.heads import save_head
from tests.daemon.evaluation.test_panel_trial import FORCED, build_panel, build_plan
from tests.daemon.evaluation.test_trial_users import play_exactly
from tests.envs.model_server import ModelServer, Reply, said

MESSAGES: Final = (
    Message(role="system", content="You help customers of a shop."),
    Message(role="user", content="cancel order 7 please"),
)
TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": "cancel_order", "parameters": {"type": "object"}}}
]
PROMPTS: Final = {
    "labels": [(89, "4c8585d36bfc2016"), (89, "9707cfcbdab702c5")],
    "head": [(41, "8387a4d71485a8c2")],
}
"""Form -> number of tokens, and the beginning of the sha256 of their ids, of each prompt."""
BODIES: Final[dict[str, list[dict[str, Any]]]] = {
    "labels": [
        {
            "chat_template_kwargs": {"enable_thinking": False},
            "messages": [
                {
                    "role": "system",
                    "content": f"Choose who answers next. Reply with one label.\n{options}",
                },
                {"role": "user", "content": "user: cancel order 7 please\n\nLabel?"},
            ],
        }
        for options in ("A: None\nB: first\nC: second", "A: first\nB: second\nC: None")
    ],
    "head": [
        {
            "messages": [
                {"role": "system", "content": "You help customers of a shop."},
                {"role": "user", "content": "cancel order 7 please"},
            ],
            "tools": TOOLS,
        }
    ],
}
"""Form -> what tells the requests to an endpoint from others, in the order of their JSON."""


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    folder = Maker(CHECKPOINT).write(tmp_path_factory.mktemp("made") / "member", 0.3)
    return describe("member", folder)


@pytest.fixture(scope="module")
def panels(
    member: Adapter, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, PlayerWithMembers]:
    """Form -> a panel whose router has it and chooses the first member."""
    labels = build_panel(member, "labels", (-FORCED, 0, 0))
    tokens = [option.token for option in labels.router.options]
    head = describe(
        "head", save_head(CHECKPOINT, tmp_path_factory.mktemp("heads") / "head", tokens)
    )
    router = PanelRouter(form="head", adapter="head", options=labels.router.options)
    return {
        "labels": labels,
        "head": PlayerWithMembers(
            name="with head", members=labels.members, router=router, router_adapter=head
        ),
    }


def describe(name: str, folder: Path) -> Adapter:
    return Adapter(name=name, folder=str(folder), sha256=verify(folder).files[WEIGHTS])


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The prompts that chats render from here on, in order."""
    prompts: list[tuple[int, ...]] = []
    render = Chat.prompt

    def note(*arguments: Any, **variables: Any) -> tuple[int, ...]:
        prompts.append(render(*arguments, **variables))
        return prompts[-1]

    monkeypatch.setattr(Chat, "prompt", note)
    return prompts


def list_router_prompts(plan: Plan, router: PanelRouter) -> list[tuple[int, ...]]:
    """What a router reads of the openings of a plan's episodes."""
    shop, chat = Shop(), Chat(CHECKPOINT)
    prompts = []
    for name in plan.tasks:
        task = shop.task(name)
        opening = read_opening(shop, task, episode_seed(plan.seed, name, 0))
        assert opening is not None
        tools = shop.select_schemas(task, opening) if chat.shows_tools else ()
        prompts += render_router_prompts(chat, router, list(map(as_chat, opening)), tools)
    return prompts


@pytest.mark.parametrize("form", PROMPTS)
def test_a_router_reads_the_same_tokens_in_every_version(
    panels: Mapping[str, PlayerWithMembers], form: str
) -> None:
    prompts = render_router_prompts(
        Chat(CHECKPOINT), panels[form].router, list(map(as_chat, MESSAGES)), TOOLS
    )
    digests = [
        (len(ids), sha256(exact_json(list(ids)).encode()).hexdigest()[:16]) for ids in prompts
    ]
    assert digests == PROMPTS[form]


@pytest.mark.parametrize("form", PROMPTS)
def test_a_trial_asks_with_the_opening_of_each_episode(
    tmp_path: Path,
    panels: Mapping[str, PlayerWithMembers],
    rendered: list[tuple[int, ...]],
    form: str,
) -> None:
    plan = build_plan(panels[form])
    expected = list_router_prompts(plan, panels[form].router)
    rendered.clear()
    play(plan, tmp_path / "here")
    assert rendered[: len(expected)] == expected
    rendered.clear()
    with ModelServer(play_exactly(plan)) as server:
        user = EndpointUser(url=server.url, model="customer")
        play(plan.model_copy(update={"user": user}), tmp_path / "beside")
    assert set(expected) <= set(rendered), "also where a model behind an endpoint plays the users"


@pytest.mark.parametrize("form", PROMPTS)
def test_a_router_behind_an_endpoint_is_asked_as_by_a_gateway(
    panels: Mapping[str, PlayerWithMembers], form: str
) -> None:
    router = panels[form].router
    panel = Panel(
        members=(PanelMember(skill="first", adapter="member"), PanelMember(skill="second")),
        router=router,
    )

    def list_fields(task: TaskDefinition, messages: Sequence[Message]) -> dict[str, Any]:
        return {"tools": TOOLS}

    def score(body: dict[str, Any]) -> Reply:
        tops = [
            {"token": f"token_id:{token}", "logprob": -float(place), "bytes": None}
            for place, token in enumerate(body["logprob_token_ids"])
        ]
        content = [{**tops[0], "top_logprobs": tops}]
        choice = {"message": said("A"), "finish_reason": "stop", "logprobs": {"content": content}}
        return Reply(json.dumps({"choices": [choice]}).encode())

    async def choose(url: str) -> MemberChoice:
        async with Endpoint(url, "asked") as endpoint:
            endpoints = {None: endpoint, "head": endpoint, "member": endpoint}
            chooser = EndpointRouter(panel, endpoints, list_fields)
            return await chooser.choose(MESSAGES, Shop().task("shop/cancel/1"))

    with ModelServer(score) as server:
        choice = asyncio.run(choose(server.url))
    assert choice == MemberChoice(skill="first", adapter="member")
    rest = {
        "model": "asked", "max_tokens": 1, "temperature": 0, "logprobs": True,
        "logprob_token_ids": [option.token for option in router.options],
        "return_tokens_as_token_ids": True,
    }  # fmt: skip
    assert sorted(server.requests, key=exact_json) == [body | rest for body in BODIES[form]]
