"""Retail databases: their canonical form, and a generator of our own. A generated database has
thirty users, each with at least one pending and one delivered order.

Guarantee: a generated database is a function of its seed (in one version of this file) and
canonical. None of its ids is one of tau2-bench's: users have 5 digits (there 4), orders 6 (7),
items and products 8 (10), payment methods 8 (7).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product as combinations_of
from random import Random
from typing import Any, Final

from envs.database import Database, Record, Tables
from envs.retail.tools import CANCELLED, DELIVERED, GIFT_CARD, PENDING

USERS: Final = 30
PROCESSED: Final = "processed"
_KEPT: Final = 64
"""Number of generated databases that stay in memory, of some 200 kB each."""

_OPTIONAL: Final = (
    "cancel_reason",
    "exchange_items",
    "exchange_new_items",
    "exchange_payment_method_id",
    "exchange_price_difference",
    "return_items",
    "return_payment_method_id",
)
"""Fields of an order that are null until a cancellation, exchange or return sets them."""

_PRODUCTS: Final[Mapping[str, tuple[int, Mapping[str, Sequence[str]]]]] = {
    "Ceramic Mug": (14, {"glaze": ("sand", "moss", "ink"), "volume": ("250ml", "400ml")}),
    "Linen Apron": (32, {"colour": ("oat", "rust", "slate"), "pockets": ("one", "three")}),
    "Camp Lantern": (48, {"fuel": ("battery", "gas"), "brightness": ("low", "medium", "high")}),
    "Oak Stool": (85, {"height": ("45cm", "65cm", "75cm"), "finish": ("raw", "oiled")}),
    "Wool Blanket": (96, {"weave": ("plain", "herringbone"), "width": ("130cm", "150cm", "180cm")}),
    "Travel Kettle": (39, {"voltage": ("110V", "230V"), "lid": ("red", "green", "steel")}),
    "Chess Set": (57, {"board": ("folding", "solid"), "pieces": ("boxwood", "resin", "brass")}),
    "Rain Poncho": (27, {"length": ("short", "long"), "colour": ("yellow", "navy", "olive")}),
    "Herb Planter": (22, {"pots": ("three", "four", "six"), "tray": ("zinc", "cork")}),
    "Desk Easel": (64, {"wood": ("beech", "pine"), "angle": ("fixed", "two-step", "free")}),
    "Bread Tin": (19, {"size": ("500g", "750g", "1kg"), "coating": ("none", "enamel")}),
    "Star Atlas": (
        45,
        {"edition": ("northern", "southern", "whole sky"), "cover": ("soft", "hard")},
    ),
    "Felt Slippers": (34, {"size": ("S", "M", "L"), "sole": ("leather", "rubber")}),
    "Hand Reel": (73, {"line": ("50m", "100m", "200m"), "grip": ("cork", "foam")}),
}
"""Name -> the price around which the variants' prices lie, and the options."""

_FIRST_NAMES: Final = (
    "Ada",
    "Bruno",
    "Celia",
    "Dario",
    "Edith",
    "Felix",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kira",
    "Linus",
    "Mira",
    "Nils",
    "Orla",
    "Piet",
)
_LAST_NAMES: Final = (
    "Abel",
    "Berg",
    "Corvin",
    "Dahl",
    "Ekman",
    "Falk",
    "Grieg",
    "Holm",
    "Ivers",
    "Jansen",
    "Kepler",
    "Lund",
    "Moser",
    "Nygard",
)
_STREETS: Final = (
    "Alder Row",
    "Brook Walk",
    "Cooper Yard",
    "Dyer Steps",
    "Ferry Bank",
    "Gate Hill",
)
_PLACES: Final = (
    ("Albany", "NY", "12"),
    ("Boise", "ID", "83"),
    ("Duluth", "MN", "55"),
    ("Eugene", "OR", "97"),
    ("Mobile", "AL", "36"),
    ("Savannah", "GA", "31"),
)
"""City, state, and first digits of its zip codes."""

_STATUSES: Final = (PENDING, DELIVERED, PROCESSED, CANCELLED)


def canonical(tables: Mapping[str, Any]) -> Tables:
    """Return the tables with all fields of each order, and all money as floats. For another shape
    raise KeyError, TypeError, ValueError or AttributeError."""
    return {
        "products": {key: _product(record) for key, record in tables["products"].items()},
        "users": {key: _user(record) for key, record in tables["users"].items()},
        "orders": {key: _order(record) for key, record in tables["orders"].items()},
    }


def _product(record: Mapping[str, Any]) -> Record:
    variants = {
        key: {**variant, "price": float(variant["price"])}
        for key, variant in record["variants"].items()
    }
    return {**record, "variants": variants}


def _user(record: Mapping[str, Any]) -> Record:
    methods = {
        key: {**method, "balance": float(method["balance"])} if "balance" in method else method
        for key, method in record["payment_methods"].items()
    }
    return {**record, "payment_methods": methods}


def _order(record: Mapping[str, Any]) -> Record:
    items = [{**item, "price": float(item["price"])} for item in record["items"]]
    history = [{**entry, "amount": float(entry["amount"])} for entry in record["payment_history"]]
    return {
        **record,
        "items": items,
        "payment_history": history,
        **{field: record.get(field) for field in _OPTIONAL},
    }


@lru_cache(maxsize=_KEPT)
def build_database(seed: int) -> Database:
    """Return the generated database for this seed. Callers share it, so fork it first."""
    return Database(_Generator(seed).tables())


class _Generator:
    def __init__(self, seed: int) -> None:
        self.chance = Random(f"retail database {seed}")
        self.taken: set[int] = set()
        self.products: dict[str, Record] = {}
        self.users: dict[str, Record] = {}
        self.orders: dict[str, Record] = {}

    def tables(self) -> Tables:
        """Generate all tables: products first, then users, each with orders."""
        for name, (price, options) in _PRODUCTS.items():
            self.add_product(name, price, options)
        for _ in range(USERS):
            self.add_user()
        return canonical({"products": self.products, "users": self.users, "orders": self.orders})

    def number(self, digits: int) -> str:
        """Return a random number, as text, that no other record has."""
        while True:
            drawn = self.chance.randrange(10 ** (digits - 1), 10**digits)
            if drawn not in self.taken:
                self.taken.add(drawn)
                return str(drawn)

    def add_product(self, name: str, price: int, options: Mapping[str, Sequence[str]]) -> None:
        """Add a product with a variant per combination of options. A third of them is sold out."""
        product_id = self.number(8)
        kinds = [
            dict(zip(options, chosen, strict=True)) for chosen in combinations_of(*options.values())
        ]
        missing = set(self.chance.sample(range(len(kinds)), len(kinds) // 3))
        variants = {
            self.number(8): (kind, place not in missing) for place, kind in enumerate(kinds)
        }
        self.products[product_id] = {
            "name": name,
            "product_id": product_id,
            "variants": {
                item_id: {
                    "item_id": item_id,
                    "options": kind,
                    "available": available,
                    "price": self.price(price),
                }
                for item_id, (kind, available) in variants.items()
            },
        }

    def price(self, about: int) -> float:
        """Return a price within a fifth of `about`. Its last digit, of cents, is never 0."""
        cents = self.chance.randrange(about * 80, about * 120)
        return (cents - cents % 10 + self.chance.randrange(1, 10)) / 100

    def add_user(self) -> None:
        """Add a user with two payment methods, and orders."""
        first, last = self.chance.choice(_FIRST_NAMES), self.chance.choice(_LAST_NAMES)
        number = self.number(5)
        user_id = f"{first}_{last}_{number}".lower()
        email = f"{first}.{last}{self.chance.randrange(100, 1000)}@example.org".lower()
        methods = [self.gift_card(), self.chance.choice((self.credit_card, self.paypal))()]
        self.users[user_id] = {
            "user_id": user_id,
            "name": {"first_name": first, "last_name": last},
            "address": address(self.chance),
            "email": email,
            "payment_methods": {method["id"]: method for method in methods},
            "orders": [],
        }
        further = self.chance.choices(_STATUSES, k=self.chance.randrange(1, 4))
        for status in (PENDING, DELIVERED, *further):
            self.add_order(self.users[user_id], status)

    def gift_card(self) -> Record:
        balance = self.chance.choice(
            (self.chance.randrange(500, 5000), self.chance.randrange(20000, 60000))
        )
        return {"source": GIFT_CARD, "id": f"gift_card_{self.number(8)}", "balance": balance / 100}

    def credit_card(self) -> Record:
        return {
            "source": "credit_card",
            "id": f"credit_card_{self.number(8)}",
            "brand": self.chance.choice(("visa", "mastercard")),
            "last_four": str(self.chance.randrange(1000, 10000)),
        }

    def paypal(self) -> Record:
        return {"source": "paypal", "id": f"paypal_{self.number(8)}"}

    def add_order(self, user: Record, status: str) -> None:
        """Add an order of one to three different products, paid at once with one payment method."""
        order_id = f"#W{self.number(6)}"
        chosen = self.chance.sample(list(self.products.values()), self.chance.randrange(1, 4))
        items = [self.item(product) for product in chosen]
        total = round(sum(item["price"] for item in items), 2)
        method = self.chance.choice(list(user["payment_methods"]))
        payment = {"transaction_type": "payment", "amount": total, "payment_method_id": method}
        shipped = status in (PROCESSED, DELIVERED)
        user["orders"].append(order_id)
        self.orders[order_id] = {
            "order_id": order_id,
            "user_id": user["user_id"],
            "address": dict(user["address"]),
            "items": items,
            "status": status,
            "fulfillments": [self.parcel(items)] if shipped else [],
            "payment_history": [payment]
            + ([{**payment, "transaction_type": "refund"}] if status == CANCELLED else []),
        }

    def item(self, product: Record) -> Record:
        variant = self.chance.choice(list(product["variants"].values()))
        return {
            "name": product["name"],
            "product_id": product["product_id"],
            "item_id": variant["item_id"],
            "price": variant["price"],
            "options": dict(variant["options"]),
        }

    def parcel(self, items: Sequence[Record]) -> Record:
        return {
            "tracking_id": [self.number(9)],
            "item_ids": [item["item_id"] for item in items],
        }


def address(chance: Random) -> Record:
    """Return a random address; its zip code fits its city."""
    city, state, digits = chance.choice(_PLACES)
    return {
        "address1": f"{chance.randrange(1, 200)} {chance.choice(_STREETS)}",
        "address2": chance.choice(("", f"Flat {chance.randrange(1, 40)}")),
        "city": city,
        "country": "USA",
        "state": state,
        "zip": f"{digits}{chance.randrange(100, 1000)}",
    }
