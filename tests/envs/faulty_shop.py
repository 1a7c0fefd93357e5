"""The shop, with users of whom a share commits a fault.

class Faulty(FaultyShop):
    rate = 0.2
    users_err = True        whether faults are looked for
"""

from random import Random
from typing import ClassVar, Final

from envs.shop.environment import Shop
from envs.task import TaskDefinition
from envs.users import User
from tests.envs.faulty_user import FAULTS, FaultyUser

KINDS: Final = tuple(fault for fault in FAULTS if fault != "tool")
"""Faults of users without tools."""


class FaultyShop(Shop):
    """The shop; whether a user errs, and how, follows from task and seed of the episode."""

    rate: ClassVar[float] = 0.0

    def make_user(self, task: TaskDefinition, seed: int) -> User:
        """Return a user that commits a fault where it can, or the exact one."""
        chance = Random(f"faulty {task.id} {seed}")
        if chance.random() >= self.rate:
            return self.user(task)
        return FaultyUser(self, task, chance.choice(KINDS), seed)


def write_definition(rate: float, *, users_err: bool) -> str:
    """Return the text of a file that defines such a shop."""
    return (
        "from tests.envs.faulty_shop import FaultyShop\n\n\n"
        "class Faulty(FaultyShop):\n"
        f"    rate = {rate!r}\n"
        f"    users_err = {users_err!r}\n"
    )
