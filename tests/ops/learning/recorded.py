"""Traffic of an agent that is perfect but at some kinds of task, where it forgets a write."""

import asyncio
from collections.abc import Mapping, Sequence

from envs.evaluation import Attempt, Setup, make_environment_user, play
from envs.players import LocalPlayer, Player
from envs.shop.environment import Shop
from envs.shop.oracle import ShopOracle
from envs.task import TaskDefinition

WEAK: Mapping[str, int] = {"two_writes": 12, "fallback": 9}
"""Kind -> tasks, every third of which the agent serves well."""
STRONG: Mapping[str, int] = {"exchange": 20, "payment": 20, "address": 20, "cancel": 8, "return": 8}
"""Kind -> tasks. Of the first one's the agent fails the first."""


def traffic(shop: Shop) -> list[TaskDefinition]:
    """Tasks in the order in which they are played."""
    kinds = [*WEAK.items(), *STRONG.items()]
    return [shop.generate(kind, seed) for kind, count in kinds for seed in range(count)]


def attempts(shop: Shop, tasks: Sequence[TaskDefinition]) -> list[Attempt]:
    """One attempt at each."""

    def agent(task: TaskDefinition, seed: int) -> Player:
        return LocalPlayer(ShopOracle(_as_taken(task), shop.writes))

    setup = Setup(shop, agent, make_environment_user(shop))
    return [asyncio.run(play(setup, task, 0)) for task in tasks]


def _as_taken(task: TaskDefinition) -> TaskDefinition:
    """The task as the agent understands it: by its id, so that a label changes nothing."""
    _, kind, seed = task.id.split("/")
    wrong = int(seed) % 3 if kind in WEAK else kind == "exchange" and seed == "0"
    if not wrong:
        return task
    gold = task.criteria.gold_actions
    assert gold is not None
    criteria = task.criteria.model_copy(update={"gold_actions": gold[:-1]})
    return task.model_copy(update={"criteria": criteria})
