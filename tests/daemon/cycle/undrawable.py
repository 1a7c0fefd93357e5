"""An environment that plays shop's tasks and draws none: whatever follows one of them is rejected,
for it is the same task again."""

from pathlib import Path
from typing import ClassVar, Final

from envs.shop.environment import Shop
from envs.task import TaskDefinition

ENVIRONMENT: Final = str(Path(__file__))


class Undrawable(Shop):
    """Shop, without fresh tasks and without other words."""

    capabilities: ClassVar = {"cancel": Shop.capabilities["cancel"]}

    def like(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """None."""
        return None

    def rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """None."""
        return None
