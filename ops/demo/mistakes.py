"""What the demo's agent does wrong: each mistake turns a task's perfect calls into others.

A mistake is chosen before the conversation is played, so the demo can count how many of them the
diagnosis found. The diagnosis is told nothing: it reads the same records as any other.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from random import Random
from typing import Any, Final

from envs.shop.case import Case
from envs.shop.policy import DONE, REFUSED, output
from envs.shop.tables import make_tables
from envs.shop.tools import ShopTools
from envs.shop.vocabulary import ZIPS
from envs.task import TaskDefinition
from events.messages import Action


class Mistake(StrEnum):
    """What the agent may do wrong, in words for the demo's table."""

    FORGETS = "forgets the second wish"
    WRONG_ITEM = "picks another item or colour"
    WRONG_ARGUMENT = "writes another payment or street"
    SILENT = "does not answer the question"
    WRONG_TOOL = "returns instead of exchanging"
    WRONG_ORDER = "works on another order"
    REFUSES = "refuses what it could do"
    LOOPS = "calls the same tool again and again"
    ASKS = "ends on a question"
    EXTRA = "cancels what nobody asked for"
    LOST = "does not find the customer"


CATEGORY: Final[Mapping[Mistake, str]] = {
    Mistake.FORGETS: "missing_write_action",
    Mistake.WRONG_ITEM: "wrong_item_selection",
    Mistake.WRONG_ARGUMENT: "incorrect_arguments",
    Mistake.SILENT: "information_error",
    Mistake.WRONG_TOOL: "wrong_tool",
    Mistake.WRONG_ORDER: "wrong_entity",
    Mistake.REFUSES: "over_cautious",
    Mistake.LOOPS: "tool_loop",
    Mistake.ASKS: "premature_termination",
    Mistake.EXTRA: "policy_violation",
    Mistake.LOST: "user_id_failure",
}
"""The category that names each mistake."""

RATES: Final[Mapping[Mistake, float]] = {
    Mistake.FORGETS: 0.45,
    Mistake.WRONG_ITEM: 0.30,
    Mistake.WRONG_ARGUMENT: 0.20,
    Mistake.SILENT: 0.50,
    Mistake.WRONG_TOOL: 0.15,
    Mistake.WRONG_ORDER: 0.10,
    Mistake.REFUSES: 0.10,
    Mistake.LOOPS: 0.06,
    Mistake.ASKS: 0.06,
    Mistake.EXTRA: 0.08,
    Mistake.LOST: 0.04,
}
"""How often each is made in a weak kind, where it can be made."""


class Scene:
    """A task, as one who wants to go wrong in it sees it."""

    def __init__(self, task: TaskDefinition, chance: Random) -> None:
        self.task = task
        self.chance = chance
        self.tables = make_tables(task.seed)
        self.gold = task.criteria.gold_actions or ()
        kinds = ShopTools.tools()
        self.writes = [
            place for place, action in enumerate(self.gold) if kinds[action.name].kind == "write"
        ]
        self.user = next(
            user
            for user in self.tables["users"].values()
            if user["name"] == self.gold[0].arguments["name"]
        )

    def orders(self, status: str) -> list[Any]:
        """The customer's orders with this status that the perfect calls do not touch."""
        named = {action.arguments.get("order_id") for action in self.gold}
        case = Case(self.tables, self.user, self.chance)
        return [order for order in case.orders(status) if order["order_id"] not in named]

    def order(self, action: Action) -> Any:
        """The order that a call is about."""
        return self.tables["orders"][action.arguments["order_id"]]

    def replaced(self, place: int, action: Action) -> TaskDefinition:
        """The task as if another call were right in this place."""
        return self.altered((*self.gold[:place], action, *self.gold[place + 1 :]))

    def altered(
        self, actions: tuple[Action, ...], outputs: tuple[str, ...] | None = None
    ) -> TaskDefinition:
        """The task as if these calls were right, and these words."""
        said = self.task.criteria.outputs if outputs is None else outputs
        update = {"gold_actions": actions, "outputs": said}
        criteria = self.task.criteria.model_copy(update=update)
        return self.task.model_copy(update={"criteria": criteria})

    def different(self, values: list[str], *known: str) -> str | None:
        """One of the values that is none of the known; None where there is no other."""
        others = [value for value in values if value not in known]
        return self.chance.choice(others) if others else None


def mistaken(task: TaskDefinition, mistake: Mistake, chance: Random) -> TaskDefinition | None:
    """The task as an agent that makes this mistake takes it; None where it cannot be made."""
    return _MADE[mistake](Scene(task, chance))


def slipped(task: TaskDefinition, chance: Random) -> TaskDefinition:
    """The task as an agent takes it that mistypes the zip code first: an error, and no failure."""
    scene = Scene(task, chance)
    return scene.altered((_mistyped(scene), *scene.gold))


def _mistyped(scene: Scene) -> Action:
    known = scene.gold[0].arguments
    wrong = scene.different(list(ZIPS), known["zip"])
    return Action(name="find_user", arguments=known | {"zip": wrong})


def _changed(scene: Scene, place: int, **changes: str | None) -> TaskDefinition | None:
    """With other arguments of a write; None where one of them has no other value."""
    if None in changes.values():
        return None
    action = scene.gold[place]
    arguments = action.arguments | changes
    return scene.replaced(place, action.model_copy(update={"arguments": arguments}))


def _forgets(scene: Scene) -> TaskDefinition | None:
    return scene.altered(scene.gold[: scene.writes[-1]]) if len(scene.writes) > 1 else None


def _wrong_item(scene: Scene) -> TaskDefinition | None:
    for place in scene.writes:
        action = scene.gold[place]
        if action.name == "return_item":
            items = list(scene.order(action)["items"])
            return _changed(scene, place, item=scene.different(items, action.arguments["item"]))
        if action.name == "exchange_item":
            return _changed(scene, place, colour=_other_colour(scene, action))
    return None


def _other_colour(scene: Scene, action: Action) -> str | None:
    item = action.arguments["item"]
    stock = scene.tables["products"][item]["stock"]
    own = scene.order(action)["items"][item]
    in_stock = [colour for colour, count in stock.items() if count]
    return scene.different(in_stock, own, action.arguments["colour"])


def _wrong_argument(scene: Scene) -> TaskDefinition | None:
    for place in scene.writes:
        action = scene.gold[place]
        order = scene.order(action)
        if action.name in ("modify_payment", "return_item"):
            own = [*scene.user["cards"], scene.user["gift_card"]]
            known = {action.arguments["payment_id"]}
            if action.name == "modify_payment":
                known.add(order["payment_id"])
            return _changed(scene, place, payment_id=scene.different(own, *known))
        if action.name == "modify_address":
            streets = [other["street"] for other in scene.tables["orders"].values()]
            street = scene.different(streets, order["street"], action.arguments["street"])
            return _changed(scene, place, street=street)
    return None


def _silent(scene: Scene) -> TaskDefinition | None:
    if scene.writes or len(scene.task.criteria.outputs) < 2:
        return None
    return scene.altered(scene.gold, scene.task.criteria.outputs[-1:])


def _wrong_tool(scene: Scene) -> TaskDefinition | None:
    for place in scene.writes:
        action = scene.gold[place]
        if action.name == "exchange_item":
            arguments = {name: action.arguments[name] for name in ("order_id", "item")}
            arguments["payment_id"] = scene.order(action)["payment_id"]
            return scene.replaced(place, Action(name="return_item", arguments=arguments))
    return None


def _wrong_order(scene: Scene) -> TaskDefinition | None:
    for place in scene.writes:
        action = scene.gold[place]
        street = action.arguments.get("street")
        others = scene.orders(scene.order(action)["status"])
        other = next((order for order in others if order["street"] != street), None)
        if other and action.name in ("cancel_order", "modify_address"):
            return _changed(scene, place, order_id=other["order_id"])
        if other and action.name == "return_item":
            item = next(iter(other["items"]))
            return _changed(scene, place, order_id=other["order_id"], item=item)
    return None


def _refuses(scene: Scene) -> TaskDefinition | None:
    if not scene.writes:
        return None
    looked = scene.gold[: scene.writes[0]]
    if scene.chance.random() < 0.5:
        return scene.altered(looked, (output(REFUSED),))
    order_id = scene.gold[scene.writes[0]].arguments["order_id"]
    transfer = Action(name="transfer_to_human", arguments={"order_id": order_id})
    return scene.altered((*looked, transfer), (output(DONE),))


def _loops(scene: Scene) -> TaskDefinition | None:
    if not scene.writes:
        return None
    looked = next(action for action in scene.gold if action.name == "get_order")
    times = scene.chance.randrange(3, 6)
    return scene.altered((scene.gold[0], *[looked] * times), (output(REFUSED),))


def _asks(scene: Scene) -> TaskDefinition | None:
    return scene.altered(scene.gold[: scene.writes[0]]) if scene.writes else None


def _extra(scene: Scene) -> TaskDefinition | None:
    pending = scene.orders("pending")
    if not pending:
        return None
    cancel = Action(name="cancel_order", arguments={"order_id": pending[0]["order_id"]})
    return scene.altered((*scene.gold, cancel))


def _lost(scene: Scene) -> TaskDefinition | None:
    return scene.altered((_mistyped(scene),), (output(REFUSED),))


_MADE: Final[Mapping[Mistake, Callable[[Scene], TaskDefinition | None]]] = {
    Mistake.FORGETS: _forgets,
    Mistake.WRONG_ITEM: _wrong_item,
    Mistake.WRONG_ARGUMENT: _wrong_argument,
    Mistake.SILENT: _silent,
    Mistake.WRONG_TOOL: _wrong_tool,
    Mistake.WRONG_ORDER: _wrong_order,
    Mistake.REFUSES: _refuses,
    Mistake.LOOPS: _loops,
    Mistake.ASKS: _asks,
    Mistake.EXTRA: _extra,
    Mistake.LOST: _lost,
}
