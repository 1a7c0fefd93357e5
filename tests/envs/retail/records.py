"""A retail database that fits on a page: one customer, three products, an order of each status."""

from typing import Any

from envs.database import Database
from envs.retail.database import canonical
from envs.retail.tools import RetailTools

Json = dict[str, Any]

MUG, LID, BOWL = "10000001", "10000002", "10000003"
RED, BLUE, GREEN, GONE = "20000001", "20000002", "20000003", "20000004"
"""Mugs at 10.1, 12.35, 7.05; the last is out of stock."""
SMALL, LARGE = "20000011", "20000012"
"""Lids at 3.3 and 5.6."""
CARD, GIFT, EMPTY = "credit_card_1", "gift_card_1", "gift_card_2"
PENDING, DELIVERED, PROCESSED, GIFTED = "#P", "#D", "#S", "#G"


def variant(item_id: str, colour: str, price: float, available: bool = True) -> Json:
    """One item that can be bought."""
    options = {"colour": colour}
    return {"item_id": item_id, "options": options, "available": available, "price": price}


def product(product_id: str, name: str, *variants: Json) -> Json:
    """A product and its items."""
    by_id = {one["item_id"]: one for one in variants}
    return {"name": name, "product_id": product_id, "variants": by_id}


PRODUCTS = {
    MUG: product(
        MUG,
        "Mug",
        variant(RED, "red", 10.1),
        variant(BLUE, "blue", 12.35),
        variant(GREEN, "green", 7.05),
        variant(GONE, "gone", 9.0, available=False),
    ),
    LID: product(LID, "Lid", variant(SMALL, "small", 3.3), variant(LARGE, "large", 5.6)),
}

ADDRESS = {
    "address1": "1 Dyer Steps",
    "address2": "",
    "city": "Duluth",
    "country": "USA",
    "state": "MN",
    "zip": "55801",
}


def item(product_id: str, item_id: str) -> Json:
    """An item as an order holds it."""
    found = PRODUCTS[product_id]
    bought = found["variants"][item_id]
    return {
        "name": found["name"],
        "product_id": product_id,
        "item_id": item_id,
        "price": bought["price"],
        "options": dict(bought["options"]),
    }


def order(order_id: str, status: str, method: str, *items: Json) -> Json:
    """An order that was paid at once."""
    total = round(sum(one["price"] for one in items), 2)
    payment = {"transaction_type": "payment", "amount": total, "payment_method_id": method}
    return {
        "order_id": order_id,
        "user_id": "ada_berg_1",
        "address": dict(ADDRESS),
        "items": list(items),
        "status": status,
        "fulfillments": [],
        "payment_history": [payment],
    }


def database() -> Database:
    """The database, new."""
    orders = [
        order(PENDING, "pending", CARD, item(MUG, RED), item(MUG, RED), item(LID, SMALL)),
        order(DELIVERED, "delivered", CARD, item(MUG, RED), item(LID, SMALL)),
        order(PROCESSED, "processed", CARD, item(MUG, RED)),
        order(GIFTED, "pending", GIFT, item(MUG, RED)),
    ]
    user = {
        "user_id": "ada_berg_1",
        "name": {"first_name": "Ada", "last_name": "Berg"},
        "address": dict(ADDRESS),
        "email": "Ada.Berg@example.org",
        "payment_methods": {
            CARD: {"source": "credit_card", "id": CARD, "brand": "visa", "last_four": "1234"},
            GIFT: {"source": "gift_card", "id": GIFT, "balance": 20},
            EMPTY: {"source": "gift_card", "id": EMPTY, "balance": 1.0},
        },
        "orders": [one["order_id"] for one in orders],
    }
    return Database(
        canonical(
            {
                "products": PRODUCTS,
                "users": {"ada_berg_1": user},
                "orders": {one["order_id"]: one for one in orders},
            }
        )
    )


def tools() -> RetailTools:
    """The tools over a new database."""
    return RetailTools(database())
