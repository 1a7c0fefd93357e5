"""The demo's shop: a state, and tools that read and change it.

Every tool result in the demo's rollouts is computed here, and so is every verdict: an attempt
succeeded if it left the state that the gold calls leave. A placeholder: the environment `shop` will
take its place together with a model that plays the agent.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from events.messages import Action

WRITES: Final = ("cancel_order", "change_address", "exchange_item", "return_items")

TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "find_customer": ("email",),
    "get_order": ("order_id",),
    "list_variants": ("item_id",),
    "cancel_order": ("order_id", "reason"),
    "change_address": ("order_id", "address"),
    "exchange_item": ("order_id", "item_id", "new_item_id"),
    "return_items": ("order_id", "item_ids"),
    "transfer_to_human": ("summary",),
}
"""Name -> its parameters."""

REASONS: Final = ("no longer needed", "ordered by mistake")

_PRODUCTS: Final = {
    "desk lamp": ("black", "white", "brass"),
    "kettle": ("1 litre", "1.5 litres", "2 litres"),
    "backpack": ("green", "grey", "navy"),
    "keyboard": ("tactile", "linear", "silent"),
    "water bottle": ("small", "medium", "large"),
}
_FIRST: Final = ("ada", "ben", "chloe", "dario", "elif", "femi", "greta", "hugo", "ines", "jonas")
_LAST: Final = ("archer", "brandt", "costa", "dogan", "ekman", "fischer", "gomez", "haas")
_STREETS: Final = ("Elm Street", "Mill Lane", "Station Road", "High Street", "Park Avenue")


class Refused(Exception):
    """A tool does not do what it was asked; the text is its answer."""


@dataclass(frozen=True, slots=True)
class Item:
    """One variant of a product."""

    id: str
    product: str
    option: str
    price: float


@dataclass(frozen=True, slots=True)
class Order:
    """What a customer bought, and what became of it."""

    id: str
    customer: str
    status: str
    address: str
    items: tuple[str, ...]
    reason: str | None = None
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Customer:
    """Who may ask for something."""

    id: str
    name: str
    email: str
    orders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said."""

    text: str
    error: bool


class Shop:
    """Customers, items and orders; only orders change."""

    def __init__(
        self, customers: Mapping[str, Customer], items: Mapping[str, Item], orders: dict[str, Order]
    ) -> None:
        self.customers = customers
        self.items = items
        self.orders = orders

    def copy(self) -> "Shop":
        """The same state, to be changed apart; orders are immutable, so this is shallow."""
        return Shop(self.customers, self.items, dict(self.orders))

    def call(self, action: Action) -> Answer:
        """Run one tool."""
        tool = getattr(self, f"_{action.name}", None) if action.name in TOOLS else None
        if tool is None:
            return Answer(f"Error: there is no tool {action.name}", True)
        try:
            return Answer(json.dumps(tool(**action.arguments)), False)
        except Refused as refusal:
            return Answer(f"Error: {refusal}", True)

    def variants(self, item: Item) -> list[Item]:
        """The other variants of its product."""
        return [
            other
            for other in self.items.values()
            if other.product == item.product and other.id != item.id
        ]

    def _find_customer(self, email: str) -> Any:
        for customer in self.customers.values():
            if customer.email == email:
                return {
                    "customer_id": customer.id, "name": customer.name, "orders": customer.orders,
                }  # fmt: skip
        raise Refused(f"no customer has the email {email}")

    def _get_order(self, order_id: str) -> Any:
        order = self._order(order_id)
        return {
            "order_id": order.id,
            "status": order.status,
            "address": order.address,
            "items": [self._described(self.items[item]) for item in order.items],
        }

    def _list_variants(self, item_id: str) -> Any:
        if item_id not in self.items:
            raise Refused(f"there is no item {item_id}")
        return [self._described(other) for other in self.variants(self.items[item_id])]

    def _cancel_order(self, order_id: str, reason: str) -> Any:
        if reason not in REASONS:
            raise Refused(f"the reason must be one of: {', '.join(REASONS)}")
        order = self._order(order_id, "pending")
        return self._put(replace(order, status="cancelled", reason=reason))

    def _change_address(self, order_id: str, address: str) -> Any:
        return self._put(replace(self._order(order_id, "pending"), address=address))

    def _exchange_item(self, order_id: str, item_id: str, new_item_id: str) -> Any:
        order = self._order(order_id, "delivered")
        if item_id not in order.items:
            raise Refused(f"order {order_id} has no item {item_id}")
        if new_item_id not in {other.id for other in self.variants(self.items[item_id])}:
            raise Refused(f"item {new_item_id} is no variant of {item_id}")
        items = tuple(new_item_id if item == item_id else item for item in order.items)
        return self._put(replace(order, status="exchange requested", items=items))

    def _return_items(self, order_id: str, item_ids: list[str]) -> Any:
        order = self._order(order_id, "delivered")
        if not set(item_ids) <= set(order.items):
            raise Refused(f"order {order_id} does not hold all of these items")
        refund = sum(self.items[item].price for item in item_ids)
        self._put(replace(order, status="return requested", returned=tuple(sorted(item_ids))))
        return {"order_id": order.id, "status": "return requested", "refund": f"{refund:.2f}"}

    def _transfer_to_human(self, summary: str) -> Any:
        return {"transferred": True, "summary": summary}

    def _order(self, order_id: str, status: str | None = None) -> Order:
        order = self.orders.get(order_id)
        if order is None:
            raise Refused(f"there is no order {order_id}")
        if status is not None and order.status != status:
            raise Refused(f"order {order_id} is {order.status}, not {status}")
        return order

    def _put(self, order: Order) -> Any:
        self.orders[order.id] = order
        return {"order_id": order.id, "status": order.status}

    @staticmethod
    def _described(item: Item) -> dict[str, str]:
        return {
            "item_id": item.id, "name": item.product, "option": item.option,
            "price": f"{item.price:.2f}",
        }  # fmt: skip


def make_shop(seed: int, customers: int = 60) -> Shop:
    """A shop of customers with two pending and two delivered orders each."""
    random_ = random.Random(f"shop {seed}")
    items = [
        Item(f"I{100 + number}", product, option, random_.randrange(900, 9000) / 100)
        for number, (product, option) in enumerate(
            (product, option) for product, options in _PRODUCTS.items() for option in options
        )
    ]
    people: dict[str, Customer] = {}
    orders: dict[str, Order] = {}
    for number in range(customers):
        name = f"{random_.choice(_FIRST)} {random_.choice(_LAST)}"
        person = f"{name.replace(' ', '_')}_{1000 + number}"
        bought = [f"#O{40_000 + number * 4 + place}" for place in range(4)]
        for place, order in enumerate(bought):
            products = random_.sample(list(_PRODUCTS), 2)
            chosen = [random_.choice([i for i in items if i.product == p]).id for p in products]
            status = "pending" if place < 2 else "delivered"
            orders[order] = Order(order, person, status, make_address(random_), tuple(chosen))
        email = f"{name.replace(' ', '.')}{number}@example.com"
        people[person] = Customer(person, name.title(), email, tuple(bought))
    return Shop(people, {item.id: item for item in items}, orders)


def make_address(random_: random.Random) -> str:
    """A street and a number."""
    return f"{random_.randrange(2, 200)} {random_.choice(_STREETS)}"
