"""The sixteen tools of retail customer service, with tau2-bench's names, arguments and answers.

Guarantee: outputs, errors, their order and the resulting state are the original's. This includes
its quirks; a comment marks each quirk that looks like a mistake. No tool enforces the policy
(policy.py) beyond an order's status.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, Field

from envs.database import Record
from envs.tau2.toolset import Tau2Toolset
from envs.tools import read, write

GIFT_CARD: Final = "gift_card"
PENDING: Final = "pending"
DELIVERED: Final = "delivered"
CANCELLED: Final = "cancelled"
ITEMS_MODIFIED: Final = "pending (item modified)"
RETURN_REQUESTED: Final = "return requested"
EXCHANGE_REQUESTED: Final = "exchange requested"
REASONS: Final = frozenset({"no longer needed", "ordered by mistake"})

OrderId = Annotated[str, Field(description="The order's id; it begins with '#', as in '#W...'.")]
UserId = Annotated[str, Field(description="The user's id, such as 'ada_berg_81234'.")]
ItemIds = Annotated[
    list[str], Field(description="Item ids of the order; an id that occurs twice is named twice.")
]
NewItemIds = Annotated[
    list[str],
    Field(description="What replaces each item, at the same place: item ids of the same product."),
]
PaymentMethodId = Annotated[
    str, Field(description="A payment method of the user's, such as 'gift_card_81234567'.")
]
Address1 = Annotated[str, Field(description="Street and number.")]
Address2 = Annotated[str, Field(description="Flat or suite; '' if there is none.")]
City = Annotated[str, Field(description="The city.")]
State = Annotated[str, Field(description="The state's two letters.")]
Country = Annotated[str, Field(description="The country, such as 'USA'.")]
Zip = Annotated[str, Field(description="The zip code.")]


class UserAddress(BaseModel):
    """An address; the original's name, which pydantic's error texts contain."""

    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class RetailTools(Tau2Toolset):
    """Tools over orders, users and products."""

    @read
    def find_user_id_by_email(
        self, email: Annotated[str, Field(description="The user's e-mail address.")]
    ) -> str:
        """Find a user by e-mail address, in capitals or not."""
        for user_id, user in self.database["users"].items():
            if user["email"].lower() == email.lower():
                return str(user_id)
        raise ValueError("User not found")

    @read
    def find_user_id_by_name_zip(
        self,
        first_name: Annotated[str, Field(description="Given name.")],
        last_name: Annotated[str, Field(description="Family name.")],
        zip: Zip,
    ) -> str:
        """Find a user by name and zip code: for users who cannot be found by e-mail."""
        for user_id, user in self.database["users"].items():
            name = user["name"]
            if (
                name["first_name"].lower() == first_name.lower()
                and name["last_name"].lower() == last_name.lower()
                and user["address"]["zip"] == zip
            ):
                return str(user_id)
        raise ValueError("User not found")

    @read
    def get_user_details(self, user_id: UserId) -> Record:
        """Show a user: name, address, e-mail, payment methods and order ids."""
        return self._user(user_id)

    @read
    def get_order_details(self, order_id: OrderId) -> Record:
        """Show an order: items, status, address, payments and what was done to it."""
        return self._order(order_id)

    @read
    def get_product_details(
        self,
        product_id: Annotated[str, Field(description="A product's id, which is no item's id.")],
    ) -> Record:
        """Show a product and all its items with options, price and availability."""
        return self._product(product_id)

    @read
    def get_item_details(
        self, item_id: Annotated[str, Field(description="An item's id, which is no product's id.")]
    ) -> Record:
        """Show one item of a product: options, price and availability."""
        for product in self.database["products"].values():
            if item_id in product["variants"]:
                return product["variants"][item_id]
        raise ValueError("Item not found")

    @read
    def list_all_product_types(self) -> str:
        """List every product's name with its product id."""
        products = self.database["products"].values()
        listed = {product["name"]: product["product_id"] for product in products}
        return json.dumps(listed, sort_keys=True)

    @write
    def cancel_pending_order(
        self,
        order_id: OrderId,
        reason: Annotated[
            str, Field(description="'no longer needed' or 'ordered by mistake', nothing else.")
        ],
    ) -> Record:
        """Cancel an order that is still pending, and refund it.

        A gift card is refunded at once, anything else within a week. Name the order and the reason
        to the user and get a yes first.
        """
        order = self._order(order_id)
        if order["status"] != PENDING:
            raise ValueError("Non-pending order cannot be cancelled")
        if reason not in REASONS:
            raise ValueError("Invalid reason")
        # The original refunds every entry of the history, even an earlier refund.
        refunds = [
            self._entry("refund", entry["amount"], entry["payment_method_id"])
            for entry in order["payment_history"]
        ]
        for refund in refunds:
            self._move(order["user_id"], refund["payment_method_id"], refund["amount"])
        order = self.database.edit("orders", order_id)
        order["status"] = CANCELLED
        order["cancel_reason"] = reason
        order["payment_history"].extend(refunds)
        return order

    @write
    def exchange_delivered_order_items(
        self,
        order_id: OrderId,
        item_ids: ItemIds,
        new_item_ids: NewItemIds,
        payment_method_id: PaymentMethodId,
    ) -> Record:
        """Ask for other items of the same products in place of delivered ones.

        Only once per order, so collect every item. Name all of it to the user and get a yes first.
        """
        order = self._order(order_id)
        if order["status"] != DELIVERED:
            raise ValueError("Non-delivered order cannot be exchanged")
        self._check_items(order, item_ids, "Number of {} not found.")
        if len(item_ids) != len(new_item_ids):
            raise ValueError("The number of items to be exchanged should match.")
        difference: float = 0
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = _item(order, item_id)
            difference += self._replacement(item, new_item_id)["price"] - item["price"]
        difference = round(difference, 2)
        if self._lacks(order["user_id"], payment_method_id, difference):
            raise ValueError("Insufficient gift card balance to pay for the price difference")
        order = self.database.edit("orders", order_id)
        order["status"] = EXCHANGE_REQUESTED
        # Both lists are sorted separately, so the pairs of old and new item are lost.
        order["exchange_items"] = sorted(item_ids)
        order["exchange_new_items"] = sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return order

    @write
    def return_delivered_order_items(
        self, order_id: OrderId, item_ids: ItemIds, payment_method_id: PaymentMethodId
    ) -> Record:
        """Ask to give back items of a delivered order.

        Only once per order. The money goes to the payment method of the order or to a gift card.
        Name all of it to the user and get a yes first.
        """
        order = self._order(order_id)
        if order["status"] != DELIVERED:
            raise ValueError("Non-delivered order cannot be returned")
        method = self._payment_method(order["user_id"], payment_method_id)
        paid_with = order["payment_history"][0]["payment_method_id"]
        if method["source"] != GIFT_CARD and payment_method_id != paid_with:
            raise ValueError("Payment method should be the original payment method")
        self._check_items(order, item_ids, "Some item not found")
        order = self.database.edit("orders", order_id)
        order["status"] = RETURN_REQUESTED
        order["return_items"] = sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return order

    @write
    def modify_pending_order_items(
        self,
        order_id: OrderId,
        item_ids: ItemIds,
        new_item_ids: NewItemIds,
        payment_method_id: PaymentMethodId,
    ) -> Record:
        """Put other items of the same products in place of items of a pending order.

        Only once per order, so collect every item; afterwards the order cannot be cancelled. Name
        all of it to the user and get a yes first.
        """
        order = self._order(order_id)
        if order["status"] != PENDING:
            raise ValueError("Non-pending order cannot be modified")
        self._check_items(order, item_ids, "{} not found")
        if len(item_ids) != len(new_item_ids):
            raise ValueError("The number of items to be exchanged should match")
        difference: float = 0
        variant: Record = None
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            if item_id == new_item_id:
                raise ValueError("The new item id should be different from the old item id")
            item = _item(order, item_id)
            variant = self._replacement(item, new_item_id)
            difference += variant["price"] - item["price"]
        if self._lacks(order["user_id"], payment_method_id, difference):
            raise ValueError("Insufficient gift card balance to pay for the new item")
        self._move(order["user_id"], payment_method_id, -difference)
        order = self.database.edit("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        # Unlike an exchange's, this difference is not rounded, and 0 is entered too.
        entry = self._entry(kind, float(abs(difference)), payment_method_id)
        order["payment_history"].append(entry)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = _item(order, item_id)
            item["item_id"] = new_item_id
            # Price and options of the last replacement, for all of them: the original's mistake.
            item["price"] = variant["price"]
            item["options"] = dict(variant["options"])
        order["status"] = ITEMS_MODIFIED
        return order

    @write
    def modify_pending_order_payment(
        self, order_id: OrderId, payment_method_id: PaymentMethodId
    ) -> Record:
        """Pay a pending order with another payment method.

        A gift card must hold the whole amount. Name all of it to the user and get a yes first.
        """
        order = self._order(order_id)
        if not _is_pending(order):
            raise ValueError("Non-pending order cannot be modified")
        user_id, history = order["user_id"], order["payment_history"]
        self._payment_method(user_id, payment_method_id)
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ValueError("There should be exactly one payment for a pending order")
        amount, paid_with = history[0]["amount"], history[0]["payment_method_id"]
        if paid_with == payment_method_id:
            raise ValueError("The new payment method should be different from the current one")
        if self._lacks(user_id, payment_method_id, amount):
            raise ValueError("Insufficient gift card balance to pay for the order")
        order = self.database.edit("orders", order_id)
        order["payment_history"].append(self._entry("payment", amount, payment_method_id))
        order["payment_history"].append(self._entry("refund", amount, paid_with))
        self._move(user_id, payment_method_id, -amount)
        self._move(user_id, paid_with, amount)
        return order

    @write
    def modify_pending_order_address(
        self,
        order_id: OrderId,
        address1: Address1,
        address2: Address2,
        city: City,
        state: State,
        country: Country,
        zip: Zip,
    ) -> Record:
        """Send a pending order to another address. Name it to the user and get a yes first."""
        order = self._order(order_id)
        if not _is_pending(order):
            raise ValueError("Non-pending order cannot be modified")
        address = _address(address1, address2, city, state, country, zip)
        order = self.database.edit("orders", order_id)
        order["address"] = address
        return order

    @write
    def modify_user_address(
        self,
        user_id: UserId,
        address1: Address1,
        address2: Address2,
        city: City,
        state: State,
        country: Country,
        zip: Zip,
    ) -> Record:
        """Change a user's own address, orders apart. Name it to the user and get a yes first."""
        self._user(user_id)
        address = _address(address1, address2, city, state, country, zip)
        user = self.database.edit("users", user_id)
        user["address"] = address
        return user

    def _order(self, order_id: str) -> Record:
        return self._find("orders", order_id, "Order not found")

    def _user(self, user_id: str) -> Record:
        return self._find("users", user_id, "User not found")

    def _product(self, product_id: str) -> Record:
        return self._find("products", product_id, "Product not found")

    def _payment_method(self, user_id: str, payment_method_id: str) -> Record:
        methods = self._user(user_id)["payment_methods"]
        if payment_method_id not in methods:
            raise ValueError("Payment method not found")
        return methods[payment_method_id]

    def _check_items(self, order: Record, item_ids: Sequence[str], refusal: str) -> None:
        """Raise ValueError unless the order has each item as often as `item_ids` names it."""
        owned = [item["item_id"] for item in order["items"]]
        for item_id in item_ids:
            if item_ids.count(item_id) > owned.count(item_id):
                raise ValueError(refusal.format(item_id))

    def _replacement(self, item: Record, new_item_id: str) -> Record:
        variants = self._product(item["product_id"])["variants"]
        if new_item_id not in variants:
            raise ValueError("Variant not found")
        if not variants[new_item_id]["available"]:
            raise ValueError(f"New item {new_item_id} not found or available")
        return variants[new_item_id]

    def _lacks(self, user_id: str, payment_method_id: str, amount: float) -> bool:
        """Return whether the payment method is a gift card with less than `amount` dollars."""
        method = self._payment_method(user_id, payment_method_id)
        return bool(method["source"] == GIFT_CARD and method["balance"] < amount)

    def _move(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Add `amount` dollars to a gift card. For other payment methods do nothing."""
        if self._payment_method(user_id, payment_method_id)["source"] == GIFT_CARD:
            user = self.database.edit("users", user_id)
            card = user["payment_methods"][payment_method_id]
            card["balance"] = round(card["balance"] + amount, 2)

    def _entry(self, kind: str, amount: float, payment_method_id: str) -> Record:
        return {
            "transaction_type": kind,
            "amount": amount,
            "payment_method_id": payment_method_id,
        }


def _item(order: Record, item_id: str) -> Record:
    return next(item for item in order["items"] if item["item_id"] == item_id)


def _is_pending(order: Record) -> bool:
    """Return whether an order is pending, with or without a change of its items."""
    return PENDING in order["status"]


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Record:
    """Return the address as JSON. Raise pydantic's ValidationError for a part that is no string."""
    address = UserAddress(
        address1=address1, address2=address2, city=city, state=state, country=country, zip=zip
    )
    return address.model_dump()
