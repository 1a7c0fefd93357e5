"""One customer of a retail database, with helpers from which the kinds of task build tasks."""

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
"""Source of a payment method -> the customer's words for it; at most one method has each source."""


class Case(CustomerCase):
    """One customer, and the random generator that draws the customer's wishes."""

    def orders(self, status: str) -> list[Record]:
        """Return the customer's orders with this status, shuffled."""
        own = (self.database["orders"][order_id] for order_id in self.user["orders"])
        return self.shuffle(order for order in own if order["status"] == status)

    def order(self, status: str) -> Record:
        """Return a random order with this status. Raise IndexError if there is none."""
        return self.orders(status)[0]

    def draw_rest(self) -> float:
        """Return a random sum in dollars by which the customer's budget exceeds the sum on record.
        The task asks for this difference, so reciting the record is no right answer."""
        return (self.chance.randrange(200, 2_000) * 10 + self.chance.randrange(1, 10)) / 100

    def variants(self, item: Record, available: bool = True) -> list[Record]:
        """Return other variants of an item's product, in stock (or sold out), shuffled."""
        variants = self.database["products"][item["product_id"]]["variants"].values()
        return self.shuffle(
            variant
            for variant in variants
            if variant["item_id"] != item["item_id"] and variant["available"] == available
        )

    def method(self, source: str) -> Record | None:
        """Return the customer's payment method from this source, or None."""
        methods = self.user["payment_methods"].values()
        return next((method for method in methods if method["source"] == source), None)

    def methods(self, amount: float) -> list[Record]:
        """Return the customer's payment methods that can pay `amount` dollars, shuffled."""
        return self.shuffle(
            method
            for method in self.user["payment_methods"].values()
            if method["source"] != GIFT_CARD or method["balance"] >= amount
        )

    def method_of(self, order: Record) -> Record:
        """Return the payment method with which the order was paid."""
        methods: Mapping[str, Record] = self.user["payment_methods"]
        return methods[order["payment_history"][0]["payment_method_id"]]

    def find_orders_with(self, product_id: str) -> list[Record]:
        """Return the customer's orders that contain an item of this product."""
        own = (self.database["orders"][order_id] for order_id in self.user["orders"])
        return [
            order
            for order in own
            if any(item["product_id"] == product_id for item in order["items"])
        ]


def total(order: Record) -> float:
    """Return the first payment of an order in dollars: its price when it was placed."""
    return float(order["payment_history"][0]["amount"])


def difference(item: Record, variant: Record) -> float:
    """Return how many dollars more a variant costs than an item."""
    return float(round(variant["price"] - item["price"], 2))


def subtract(whole: float, *parts: float) -> Action:
    """Return the `calculate` call for `whole` minus all `parts`, in dollars."""
    return action("calculate", expression=" - ".join(f"{value:.2f}" for value in (whole, *parts)))


def get_order(order: Record) -> Action:
    """Return the call that looks up an order."""
    return action("get_order_details", order_id=order["order_id"])


def get_user(case: Case) -> Action:
    """Return the call that looks up the case's customer."""
    return action("get_user_details", user_id=case.user["user_id"])


def get_product(item: Record) -> Action:
    """Return the call that looks up an item's product."""
    return action("get_product_details", product_id=item["product_id"])


def describe_items(items: Sequence[Record]) -> str:
    """Return an order's items as a customer names them. No order has a product twice."""
    return " and ".join(f"the {item['name'].lower()}" for item in items)


def describe_variant(variant: Record) -> str:
    """Return the options of a variant as text."""
    return ", ".join(f"{option} {value}" for option, value in variant["options"].items())


def money(amount: float) -> str:
    """Return an amount of dollars with two decimals."""
    return f"{amount:.2f}"
