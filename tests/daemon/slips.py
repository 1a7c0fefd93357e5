"""An agent of shop that looks for an order which is not there, and gives up: its failures hold a
call that a tool refused."""

import asyncio
from collections.abc import Sequence

from consumers.diagnosis.labels import label_rollout
from daemon.core.app import App
from envs.agents import Agent
from envs.evaluation import Attempt, Setup, make_environment_user, play
from envs.players import LocalPlayer
from envs.shop.environment import Shop
from envs.task import TaskDefinition, find_split
from events.codec import encode
from events.envelope import Envelope, derive_id, utc_now
from events.log import now_ms
from events.messages import Message, ToolCall
from events.privacy.sealing import Key
from events.rollouts import RolloutContent
from producers.simulation import Provenance, append_rollouts, build_rollout_event

SHOP = Shop()


class Slipping:
    """The oracle, but that `get_order` is called for another order, and a refusal ends it."""

    def __init__(self, oracle: Agent) -> None:
        self._oracle = oracle

    def reply(self, messages: Sequence[Message]) -> Message:
        if messages[-1].error:
            return Message(role="assistant", content="Sorry, not possible.")
        message = self._oracle.reply(messages)
        calls = tuple(
            ToolCall(name=call.name, arguments={"order_id": "O0"}, id=call.id)
            if call.name == "get_order"
            else call
            for call in message.tool_calls
        )
        return message.model_copy(update={"tool_calls": calls})


def attempt_slip(task: TaskDefinition) -> Attempt:
    setup = Setup(
        SHOP,
        lambda given, _seed: LocalPlayer(Slipping(SHOP.oracle(given))),
        make_environment_user(SHOP),
    )
    return asyncio.run(play(setup, task, 0))


def draw_sources(kind: str, count: int, split: str = "train") -> list[TaskDefinition]:
    """Tasks of traffic whose lessons may be drawn, or are kept for tests."""
    tasks = (SHOP.generate(kind, 2**24 + number) for number in range(100 * count))
    chosen = (task for task in tasks if find_split(task.id) == split)
    return [next(chosen) for _ in range(count)]


def record_slips(app: App, tasks: Sequence[TaskDefinition], alias: str = "agent") -> None:
    provenance = Provenance(alias, "base", "base", "live")
    append_rollouts(
        app.spool,
        app.blobs,
        [
            build_rollout_event(
                attempt_slip(task), SHOP, provenance, derive_id("slip", alias, task.id)
            )
            for task in tasks
        ],
    )


def record_persons_slips(
    app: App, tasks: Sequence[TaskDefinition], owner: Key, mark: str, alias: str = "agent"
) -> None:
    """The same as sessions of a person, who says a word that is theirs."""
    provenance = Provenance(alias, "base", "base", "live")
    for task in tasks:
        name = derive_id("slip", owner.person, alias, task.id)
        data = build_rollout_event(attempt_slip(task), SHOP, provenance, name)
        assert data.content is not None
        messages = list(data.content.messages)
        place = next(n for n, message in enumerate(messages) if message.role == "user")
        text = f"{messages[place].text} I live in {mark}."
        messages[place] = messages[place].model_copy(update={"content": text})
        data = data.model_copy(update={"content": RolloutContent(messages=tuple(messages))})
        data = data.model_copy(update={"labels": label_rollout(data).labels})
        envelope = Envelope(name, data.TYPE, data.VERSION, data.key(), utc_now())
        app.append([encode(envelope, data, now_ms(), owner=owner).entry])
    app.settle()
