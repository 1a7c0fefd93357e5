"""Two environments that the reference policy can play: each has some of shop's kinds of task.

    open_place(find_environment("changes"))

Customers, tools and policy are those of the shop. No kind is in both.
"""

from pathlib import Path
from typing import ClassVar

from envs.catalog import CATALOGS, ToolCatalog
from envs.shop.environment import Shop

_DEMANDS = Shop.capabilities


def _select(*kinds: str) -> dict[str, str]:
    return {kind: _DEMANDS[kind] for kind in kinds}


class _PartOfShop(Shop):
    @property
    def catalog(self) -> ToolCatalog:
        """That of the shop, by whatever name."""
        return CATALOGS[Shop.name]


class Changes(_PartOfShop):
    """Customers who change an order, with up to two writes."""

    name = "changes"
    capabilities: ClassVar = _select("two_writes", "fallback", "exchange", "payment")


class Questions(_PartOfShop):
    """Customers who ask, or whose wish depends on what is looked up."""

    name = "questions"
    capabilities: ClassVar = _select("question", "followup", "cond_status")


def find_environment(name: str) -> str:
    """Return the path by which a job opens the environment of this name."""
    return f"{Path(__file__).absolute()}:{name}"
