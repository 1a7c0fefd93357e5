"""One customer of shop and their possible wishes, from which the kinds of task build tasks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from envs.database import Tables
from envs.shop import phrases
from envs.shop.phrases import Phrases
from envs.shop.vocabulary import COLOURS, STREETS
from events.messages import Action

STATUS: Final[Mapping[str, str]] = {
    "cancel": "pending",
    "return": "delivered",
    "exchange": "delivered",
    "payment": "pending",
    "address": "pending",
}
"""Wish of a customer -> the status that the order must have."""

_WRITES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "cancel": ("cancel_order", {"order_id": "order"}),
    "return": ("return_item", {"order_id": "order", "item": "item", "payment_id": "payment"}),
    "exchange": ("exchange_item", {"order_id": "order", "item": "item", "colour": "colour"}),
    "payment": ("modify_payment", {"order_id": "order", "payment_id": "payment"}),
    "address": ("modify_address", {"order_id": "order", "street": "street"}),
}
"""Wish -> the tool that fulfils it, and argument -> the name of its value."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that a customer wants for one order."""

    words: str
    reads: tuple[Action, ...]
    """Look-ups between the look-up of the order and the write."""
    write: Action

    @property
    def value(self) -> str:
        """The last argument of the write, which is the new value that the customer wants."""
        return str(list(self.write.arguments.values())[-1])

    @property
    def calls(self) -> tuple[Action, ...]:
        """The gold calls, if the order's id is known."""
        return (get_order(self.write.arguments["order_id"]), *self.reads, self.write)


def get_order(order_id: str) -> Action:
    """Return the call that looks up an order."""
    return Action(name="get_order", arguments={"order_id": order_id})


class Case:
    """One customer of a database, and the random generator that draws the customer's wishes."""

    def __init__(
        self, tables: Tables, user: Mapping[str, Any], chance: Random, words: Random | None = None
    ) -> None:
        """Make a case whose wishes `chance` draws. With `words`, only the phrases differ."""
        self.tables = tables
        self.user = user
        self.chance = chance
        self.words = words
        self.get_user = Action(name="get_user", arguments={"user_id": user["user_id"]})

    def orders(self, status: str | None = None) -> list[Any]:
        """Return the customer's orders, shuffled; with `status`, only those with this status."""
        own = (self.tables["orders"][order_id] for order_id in self.user["orders"])
        return self.shuffle(order for order in own if status in (None, order["status"]))

    def order(self, status: str | None = None) -> Any:
        """Return a random order of the customer; with `status`, one with this status."""
        return self.orders(status)[0]

    def shuffle(self, values: Iterable[Any]) -> list[Any]:
        """Return the values in random order."""
        copy = list(values)
        self.chance.shuffle(copy)
        return copy

    def pick(self, values: Sequence[Any]) -> Any:
        """Return a random one of the values."""
        return self.chance.choice(values)

    def item(self, order: Any) -> str:
        """Return a random item of an order."""
        return str(self.pick(list(order["items"])))

    def phrase(self, templates: Phrases) -> str:
        """Return a random phrase. `chance` draws even if `words` decides, to stay in step."""
        drawn = self.chance.choice(templates)
        return drawn if self.words is None else self.words.choice(templates)

    def say(self, templates: Phrases, **values: str) -> str:
        """Return a random phrase with its values filled in and a capital first letter."""
        text = self.phrase(templates).format_map(values)
        return text[0].upper() + text[1:]

    def in_stock(self, item: str, order: Any) -> str:
        """Return a random colour for which an item of the order can be exchanged."""
        return str(self.pick([c for c in COLOURS if self._exchangeable(item, order, c)]))

    def out_of_stock(self, item: str, order: Any) -> str:
        """Return a random other colour for which an item of the order cannot be exchanged."""
        colours = [c for c in COLOURS if c != order["items"][item]]
        return str(self.pick([c for c in colours if not self._exchangeable(item, order, c)]))

    def _exchangeable(self, item: str, order: Any, colour: str) -> bool:
        stock = self.tables["products"][item]["stock"]
        return colour != order["items"][item] and bool(stock.get(colour))

    def wish(
        self, verb: str, order: Any, which: Phrases = phrases.NUMBERED, **overrides: str
    ) -> Wish:
        """Return a wish about an order. `overrides` fixes values that are otherwise random. Raise
        KeyError if `verb` is not in `STATUS`."""
        item = overrides.get("item") or self.item(order)
        values = {"order": order["order_id"], "item": item}
        values |= self._new(verb, item, order) | overrides
        values["which"] = self.phrase(which).format_map(values)
        tool, taken = _WRITES[verb]
        looked = (Action(name="get_product", arguments={"product": item}),)
        return Wish(
            words=self.phrase(phrases.WISHES[verb]).format_map(values),
            reads=looked if verb == "exchange" else (),
            write=Action(
                name=tool, arguments={name: values[value] for name, value in taken.items()}
            ),
        )

    def _new(self, verb: str, item: str, order: Any) -> dict[str, str]:
        match verb:
            case "return":
                return {"payment": order["payment_id"]}
            case "exchange":
                return {"colour": self.in_stock(item, order)}
            case "payment":
                return {"payment": self._other_payment(order)}
            case "address":
                return {"street": str(self.pick([s for s in STREETS if s != order["street"]]))}
            case _:
                return {}

    def _other_payment(self, order: Any) -> str:
        owner = self.tables["users"][order["user_id"]]
        own = (*owner["cards"], owner["gift_card"])
        return str(self.pick([payment for payment in own if payment != order["payment_id"]]))

    def feasible(self, *verbs: str, which: Phrases = phrases.NUMBERED) -> Wish:
        """Return a wish, with one of the verbs, that the order's status allows."""
        verb = self.pick(verbs or tuple(STATUS))
        return self.wish(verb, self.order(STATUS[verb]), which)

    def hopeless(self) -> Wish:
        """Return a wish that the order's status forbids."""
        verb = self.pick(tuple(STATUS))
        order = next(order for order in self.orders() if order["status"] != STATUS[verb])
        return self.wish(verb, order)
