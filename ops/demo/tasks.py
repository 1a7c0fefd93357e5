"""What the demo's customers ask for, and the calls that would do it."""

import random
from dataclasses import dataclass
from typing import Final

from events.messages import Action
from ops.demo.shop import REASONS, Customer, Item, Order, Shop, make_address

KINDS: Final = ("cancel", "address", "return", "exchange")
TWO_REQUESTS: Final = 0.5
"""Share of tasks with a second request: what an agent forgets most."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing a customer wants."""

    kind: str
    words: str
    gold: Action
    order: Order
    item: Item | None = None
    answer: str | None = None
    """What the agent must say."""


@dataclass(frozen=True, slots=True)
class Task:
    """A customer and one or two requests."""

    id: str
    customer: Customer
    requests: tuple[Request, ...]

    @property
    def capability(self) -> str:
        """Its kind, as the environment labels it."""
        return "+".join(request.kind for request in self.requests)

    @property
    def instruction(self) -> str:
        """The customer's words."""
        return " Also, ".join(request.words for request in self.requests)


def make_tasks(shop: Shop, seed: int, count: int) -> list[Task]:
    """Tasks of all kinds over all customers."""
    random_ = random.Random(f"tasks {seed}")
    people = list(shop.customers.values())
    tasks = []
    for number in range(count):
        customer = random_.choice(people)
        kinds = random_.choices(KINDS, k=2 if random_.random() < TWO_REQUESTS else 1)
        pending, delivered = _shuffled(customer, shop, random_)
        requests = tuple(
            _request(kind, (pending if kind in KINDS[:2] else delivered).pop(), shop, random_)
            for kind in kinds
        )
        tasks.append(Task(f"t{number:04d}", customer, requests))
    return tasks


def _shuffled(
    customer: Customer, shop: Shop, random_: random.Random
) -> tuple[list[Order], list[Order]]:
    orders = [shop.orders[order] for order in customer.orders]
    random_.shuffle(orders)
    pending = [order for order in orders if order.status == "pending"]
    return pending, [order for order in orders if order.status == "delivered"]


def _request(kind: str, order: Order, shop: Shop, random_: random.Random) -> Request:
    item = shop.items[random_.choice(order.items)]
    match kind:
        case "cancel":
            reason = random_.choice(REASONS)
            because = "I no longer need it" if reason == REASONS[0] else "I ordered it by mistake"
            gold = Action(name="cancel_order", arguments={"order_id": order.id, "reason": reason})
            return Request(kind, f"please cancel order {order.id}, {because}.", gold, order)
        case "address":
            address = make_address(random_)
            gold = Action(
                name="change_address", arguments={"order_id": order.id, "address": address}
            )
            return Request(kind, f"please send order {order.id} to {address}.", gold, order)
        case "return":
            gold = Action(
                name="return_items", arguments={"order_id": order.id, "item_ids": [item.id]}
            )
            words = (
                f"I want to return the {item.product} of order {order.id}; "
                "tell me how much I get back."
            )
            return Request(kind, words, gold, order, item, f"{item.price:.2f}")
        case "exchange":
            wanted = random_.choice(shop.variants(item))
            arguments = {"order_id": order.id, "item_id": item.id, "new_item_id": wanted.id}
            gold = Action(name="exchange_item", arguments=arguments)
            words = (
                f"please exchange the {item.product} ({item.option}) of order {order.id} "
                f"for the one in {wanted.option}."
            )
            return Request(kind, words, gold, order, item)
        case _:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
