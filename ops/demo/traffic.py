"""The demo's traffic: tasks of the environment shop, mostly plain, some of them harder.

The agent is careless in some of the harder kinds (`WEAK`) and seldom errs in the others. The
diagnosis is not told which.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from envs.shop.environment import Shop
from envs.shop.kinds import HARDER, PLAIN
from envs.task import TaskDefinition

WEAK: Final = ("two_writes", "cond_status", "fallback", "compound", "question", "gift_card")

SHARES: Final[Mapping[str, float]] = (
    dict.fromkeys(PLAIN, 0.10) | dict.fromkeys(HARDER, 0.01) | dict.fromkeys(WEAK, 0.05)
)
"""Kind -> its share of the traffic."""

CARE: Final = 0.35
"""Outside of the weak kinds a mistake is this many times as frequent as in them."""


def carelessness(task: TaskDefinition) -> float:
    """What the rates of the mistakes are multiplied with."""
    return 1.0 if task.capability in WEAK else CARE


def make_tasks(shop: Shop, seed: int, count: int) -> list[TaskDefinition]:
    """The first tasks of a seed's traffic."""
    return list(islice(shop.mixture(SHARES, seed=seed), count))
