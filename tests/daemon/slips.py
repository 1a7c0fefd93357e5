"""An agent of shop that looks for an order which is not there, and gives up: its failures hold a
call that a tool refused."""

import asyncio
from collections.abc import Sequence

from daemon.core.app import App
from envs.agents import Agent
from envs.evaluation import Attempt, Setup, make_environment_user, play
from envs.lessons.making import find_split
from envs.players import LocalPlayer
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.envelope import derive_id
from events.messages import Message, ToolCall
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
