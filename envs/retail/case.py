"""A customer of a retail database: the material that kinds of task are made of."""

from collections.abc import Mapping, Sequence
from typing import Final

from envs.database import Record
from envs.retail.tools import GIFT_CARD
from envs.tau2.case import CustomerCase, action
from events.messages import Action

METHODS: Final[Mapping[str, str]] = {
    GIFT_CARD: "my gift card",
    "credit_card": "my credit card",
    "paypal": "my PayPal account",
}
"""Payment method -> how a customer names it; a customer has at most one of each source."""


class Case(CustomerCase):
    """One customer, and the chance that draws what they want."""

    def orders(self, status: str) -> list[Record]:
        """Return the customer's orders with this status, shuffled."""
        own = (self.database["orders"][order_id] for order_id in self.user["orders"])
        return self.shuffle(order for order in own if order["status"] == status)

    def order(self, status: str) -> Record:
        """Return one of them. Raise IndexError if there is none."""
        return self.orders(status)[0]

    def draw_rest(self) -> float:
        """Return the dollars by which a record's sum and the request's differ. The answer is this
        difference, which a recital of the record would not tell."""
        return (self.chance.randrange(200, 2_000) * 10 + self.chance.randrange(1, 10)) / 100

    def variants(self, item: Record, available: bool = True) -> list[Record]:
        """Return other items of the same product that can (or cannot) be had, shuffled."""
        variants = self.database["products"][item["product_id"]]["variants"].values()
        return self.shuffle(
            variant
            for variant in variants
            if variant["item_id"] != item["item_id"] and variant["available"] == available
        )

    def method(self, source: str) -> Record | None:
        """Return the customer's payment method of this source."""
        methods = self.user["payment_methods"].values()
        return next((method for method in methods if method["source"] == source), None)

    def methods(self, amount: float) -> list[Record]:
        """Return the payment methods that can pay this amount, shuffled."""
        return self.shuffle(
            method
            for method in self.user["payment_methods"].values()
            if method["source"] != GIFT_CARD or method["balance"] >= amount
        )

    def method_of(self, order: Record) -> Record:
        """Return the payment method that paid the order."""
        methods: Mapping[str, Record] = self.user["payment_methods"]
        return methods[order["payment_history"][0]["payment_method_id"]]

    def find_orders_with(self, product_id: str) -> list[Record]:
        """Return the customer's orders that have an item of this product."""
        own = (self.database["orders"][order_id] for order_id in self.user["orders"])
        return [
            order
            for order in own
            if any(item["product_id"] == product_id for item in order["items"])
        ]


def total(order: Record) -> float:
    """Return what the order cost when it was placed."""
    return float(order["payment_history"][0]["amount"])


def difference(item: Record, variant: Record) -> float:
    """Return what the variant costs more."""
    return float(round(variant["price"] - item["price"], 2))


def subtract(whole: float, *parts: float) -> Action:
    """Return the calculation of a difference in dollars."""
    return action("calculate", expression=" - ".join(f"{value:.2f}" for value in (whole, *parts)))


def get_order(order: Record) -> Action:
    """Return the look-up of an order."""
    return action("get_order_details", order_id=order["order_id"])


def get_user(case: Case) -> Action:
    """Return the look-up of the customer."""
    return action("get_user_details", user_id=case.user["user_id"])


def get_product(item: Record) -> Action:
    """Return the look-up of an item's product."""
    return action("get_product_details", product_id=item["product_id"])


def describe_items(items: Sequence[Record]) -> str:
    """Return the items of an order in a customer's words: no order has a product twice."""
    return " and ".join(f"the {item['name'].lower()}" for item in items)


def describe_variant(variant: Record) -> str:
    """Return a variant by its options."""
    return ", ".join(f"{option} {value}" for option, value in variant["options"].items())


def money(amount: float) -> str:
    """Return an amount of dollars with its cents."""
    return f"{amount:.2f}"
