"""A conversation served through the gateway and the same one simulated have equal prompts.

The embedded engine's model has one answer, a thought and a call; a scripted server stands for an
engine with a reasoning parser, which answers with the thought apart.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx2
import pytest
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.solver.sampling.local import Attempt, InProcess
from daemon.solver.sampling.remote import Pace, TokenAgent
from envs.endpoint import Endpoint, Sampling
from envs.episode import Episode, Party
from envs.players import LocalPlayer, ModelAgent, Player
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from ops.reciting_model import reciting, with_token
from producers.conversation import parse_messages
from tests.daemon.engine.chat_kinds import QWEN3, make_chat
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.engine.served_prompts import Json, keep, serve
from tests.daemon.gateway.conftest import fronting
from tests.envs.model_server import Answering, ModelServer, oracle, said

SHOP = Shop()
THOUGHT_AND_CALL = (
    "<think>\nLook it up.\n</think>\n\n"
    '<tool_call>\n{"name": "get_user", "arguments": {"user_id": "U0"}}\n</tool_call>'
)
ROLELESS = """{% for m in messages %}<|im_start|>{{
'assistant' if m.role == 'assistant' else 'user' }}
{{ m.content or '' }}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor -%}
<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Has neither a system nor a tool role."""
TEMPLATES = {"within a chain": QWEN3, "no roles": ROLELESS, "the reference policy's": None}


def converse(url: str, task: TaskDefinition) -> Iterator[Json]:
    """Have a conversation as an agent's program does that keeps what it is answered; yield each
    answer of the server."""
    episode, user = Episode(SHOP, task), SHOP.user(task)
    sent: list[Json] = []
    tools = list(SHOP.schemas(task))
    known = 0
    while episode.turn is not None:
        if episode.turn is Party.USER:
            episode.receive(user.reply(episode.view(Party.USER)))
            continue
        view = episode.view(Party.AGENT)
        sent += [keep(message) for message in view[known:] if message.role != "assistant"]
        body = {"model": "tiny", "messages": sent, "tools": tools, "max_tokens": 64}
        answer = httpx2.post(
            f"{url}/v1/chat/completions", json=body | {"return_token_ids": True}, timeout=60
        )
        assert answer.status_code == 200, answer.text
        document: Json = answer.json()
        yield document
        known = len(view)
        sent.append(document["choices"][0]["message"])
        episode.receive(parse_messages([sent[-1]])[0])


async def play(task: TaskDefinition, agent: Player) -> Episode:
    """Play an episode with an agent behind an endpoint."""
    episode = Episode(SHOP, task)
    players = {Party.AGENT: agent, Party.USER: LocalPlayer(SHOP.user(task))}
    while episode.turn is not None:
        episode.receive(await players[episode.turn].reply(episode.view(episode.turn)))
    return episode


async def play_with_tokens(live: Live, task: TaskDefinition) -> list[tuple[int, ...]]:
    """Return the prompts of an episode that a job samples from a server."""
    sampling = Sampling(max_tokens=64, extra={"return_token_ids": True, "logprobs": True})
    async with Endpoint(f"{live.url}/v1", "tiny") as endpoint:
        offer = partial(SHOP.select_schemas, task)
        agent = TokenAgent(endpoint, Pace(None), offer, 0, sampling)
        await play(task, agent)
    return [turn.prompt_ids for turn in agent.turns]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_job_reads_the_prompts_that_the_embedded_engine_serves(
    template: str, tmp_path: Path, shop_tokens: PreTrainedTokenizerFast
) -> None:
    tokens = with_token(shop_tokens, THOUGHT_AND_CALL)
    if source := TEMPLATES[template]:
        tokens.chat_template = source
    folder = reciting(tmp_path / "tiny", tokens, THOUGHT_AND_CALL, max_position_embeddings=4096)
    policy, chat = Policy.load(folder, "tiny"), Chat(folder)
    task = SHOP.generate("cancel", 3)
    player = InProcess(Engine(policy, 1), chat, max_tokens=64)
    (rollout,) = player.play(SHOP, [Attempt(task, "g", 0, "r")], policy)
    simulated = [turn.prompt_ids for turn in rollout.trajectory.turns]
    with listening(policy, chat) as live, fronting(tmp_path, [live.url]) as front:
        served = [tuple(answer["prompt_token_ids"]) for answer in converse(front.url, task)]
        sampled = asyncio.run(play_with_tokens(live, task))
    assert len(served) > 3
    assert simulated == served == sampled
    thoughts = [chat.text(prompt).count("Look it up.") for prompt in served]
    assert thoughts == list(range(len(served)))


def think(answering: Answering, field: str) -> Answering:
    """Answer with reasoning in a field; the gateway's proof is answered as well."""

    def answer(body: Json) -> Json:
        if not is_of_shop(body):
            return said("Hi")
        message = answering(body)
        assert isinstance(message, dict)
        return message | {field: f"Thought {len(body['messages'])}."}

    return answer


def is_of_shop(request: Json) -> bool:
    return any(message["role"] == "system" for message in request.get("messages", ()))


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> list[Chat]:
    kinds = ("qwen3", "gemma", "reference")
    return [make_chat(kind, tmp_path_factory.mktemp(kind)) for kind in kinds]


def read(chat: Chat, requests: Sequence[Json]) -> list[tuple[int, ...] | None]:
    """Return the prompts that an engine makes of requests."""
    return [serve(chat, request["messages"], request["tools"]) for request in requests]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_an_episode_sends_an_endpoint_the_prompts_of_a_live_client(
    field: str, tmp_path: Path, chats: list[Chat]
) -> None:
    task = SHOP.generate("cancel", 3)
    offer = partial(SHOP.select_schemas, task)

    async def simulate(url: str) -> Episode:
        async with Endpoint(url, "tiny") as endpoint:
            return await play(task, ModelAgent(endpoint, offer, seed=0))

    with ModelServer(think(oracle(SHOP, [task]), field)) as server:
        episode = asyncio.run(simulate(server.url))
        simulated = list(server.requests)
        server.requests.clear()
        with fronting(tmp_path, [server.url.removesuffix("/v1")], proven=False) as front:
            for _ in converse(front.url, task):
                pass
        served = list(filter(is_of_shop, server.requests))
    assert sum(bool(message.tool_calls) for message in episode.messages) > 1
    for chat in chats:
        assert read(chat, simulated) == read(chat, served)
    own = [message for message in simulated[-1]["messages"] if message["role"] == "assistant"]
    assert all(field in message for message in own if message["content"] != SHOP.greeting)
