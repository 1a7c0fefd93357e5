"""The database of one task, drawn from a seed: three customers, seven orders, eight products.

Two customers have three orders, at least one pending and one delivered; the third has one. A
customer pays with one of two cards and has a gift card. No product is in two orders of one
customer, so an item tells the order. At least two of a product's three colours are in stock.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from envs.database import Tables
from envs.shop.vocabulary import (
    COLOURS,
    NAMES,
    ORDERS,
    PAYMENTS,
    PRODUCTS,
    STATUSES,
    STREETS,
    USERS,
    ZIPS,
)

ORDERS_OF_CUSTOMERS: Final = (3, 3, 1)
ITEMS: Final = 2
"""Number of items in an order."""
OFFERED: Final = 8
"""Number of products in a database."""
VARIANTS: Final = 3
"""Number of colours of a product."""


def make_tables(seed: int) -> Tables:
    """Return the tables `users`, `orders` and `products` for this seed. Pure."""
    chance = Random(f"shop tables {seed}")
    products = {name: _product(name, chance) for name in chance.sample(PRODUCTS, OFFERED)}
    users = {user["user_id"]: user for user in _users(chance)}
    orders = {
        order["order_id"]: order
        for user in users.values()
        for order in _orders(user, products, chance)
    }
    return {"users": users, "orders": orders, "products": products}


def _product(name: str, chance: Random) -> dict[str, Any]:
    stock = {colour: chance.randrange(1, 9) for colour in chance.sample(COLOURS, VARIANTS)}
    if chance.random() < 0.6:
        stock[chance.choice(list(stock))] = 0
    return {"product": name, "stock": stock}


def _users(chance: Random) -> Iterator[dict[str, Any]]:
    count = len(ORDERS_OF_CUSTOMERS)
    names, zips = chance.sample(NAMES, count), chance.sample(ZIPS, count)
    ids = chance.sample(USERS, count)
    orders = chance.sample(ORDERS, sum(ORDERS_OF_CUSTOMERS))
    payments = chance.sample(PAYMENTS, 3 * count)
    for place, size in enumerate(ORDERS_OF_CUSTOMERS):
        first = sum(ORDERS_OF_CUSTOMERS[:place])
        yield {
            "user_id": ids[place],
            "name": names[place],
            "zip": zips[place],
            "orders": orders[first : first + size],
            "cards": payments[3 * place : 3 * place + 2],
            "gift_card": payments[3 * place + 2],
        }


def _orders(
    user: dict[str, Any], products: dict[str, Any], chance: Random
) -> Iterator[dict[str, Any]]:
    count = len(user["orders"])
    bought = chance.sample(list(products), ITEMS * count)
    streets = chance.sample(STREETS, count)
    statuses = _statuses(count, chance)
    for place, order_id in enumerate(user["orders"]):
        items = bought[ITEMS * place : ITEMS * (place + 1)]
        yield {
            "order_id": order_id,
            "user_id": user["user_id"],
            "status": statuses[place],
            "items": {item: chance.choice(list(products[item]["stock"])) for item in items},
            "payment_id": chance.choice(user["cards"]),
            "street": streets[place],
            "refunds": {},
        }


def _statuses(count: int, chance: Random) -> Sequence[str]:
    if count == 1:
        return [chance.choice(("pending", "delivered"))]
    return chance.sample(("pending", "delivered", chance.choice(STATUSES)), count)
