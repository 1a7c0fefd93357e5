"""The tools of shop: short answers, one word per value, and names that no benchmark's retail uses.
A tool refuses impossible calls: an unknown order or item, a sold-out colour, a wrong status. The
agent must check by the policy for whom it acts and where a refund goes."""

from typing import Annotated, Any

from pydantic import Field

from envs.tools import ToolError, Toolset, generic, read, write

OrderId = Annotated[str, Field(description="Id of the order, such as O12.")]
Item = Annotated[str, Field(description="Name of the product in the order, such as mug.")]
PaymentId = Annotated[str, Field(description="Id of a payment method, such as P12.")]


class ShopTools(Toolset):
    """Ten tools over the tables `users`, `orders` and `products`."""

    @read
    def find_user(
        self,
        name: Annotated[str, Field(description="First name of the customer.")],
        zip: Annotated[str, Field(description="Zip code of the customer.")],
    ) -> Any:
        """Authenticate a customer by name and zip code."""
        for user in self.database["users"].values():
            if user["name"].lower() == name.lower() and user["zip"] == zip:
                return {"user_id": user["user_id"]}
        raise ToolError("no such user")

    @read
    def get_user(
        self, user_id: Annotated[str, Field(description="Id of the customer, such as U12.")]
    ) -> Any:
        """A customer's orders, cards and gift card."""
        user = self._record("users", user_id)
        return {name: user[name] for name in ("orders", "cards", "gift_card")}

    @read
    def get_order(self, order_id: OrderId) -> Any:
        """An order: whose it is, its status, its items with their colours, payment and street."""
        order = dict(self._record("orders", order_id))
        if not order["refunds"]:
            del order["refunds"]
        return order

    @read
    def get_product(
        self, product: Annotated[str, Field(description="Name of the product, such as mug.")]
    ) -> Any:
        """The colours in which a product is in stock."""
        stock = self._record("products", product)["stock"]
        return {"product": product, "colours": [name for name, count in stock.items() if count]}

    @write
    def cancel_order(self, order_id: OrderId) -> Any:
        """Cancel a pending order."""
        self._order(order_id, "pending")
        self.database.edit("orders", order_id)["status"] = "cancelled"
        return {"status": "cancelled"}

    @write
    def return_item(self, order_id: OrderId, item: Item, payment_id: PaymentId) -> Any:
        """Take back an item of a delivered order and refund it."""
        order = self._order(order_id, "delivered")
        self._check_item(order, item)
        self._payable(order, payment_id)
        self.database.edit("orders", order_id)["refunds"][item] = payment_id
        return {"refund": payment_id}

    @write
    def exchange_item(
        self,
        order_id: OrderId,
        item: Item,
        colour: Annotated[str, Field(description="The colour that the customer gets.")],
    ) -> Any:
        """Exchange an item of a delivered order for the same product in another colour."""
        order = self._order(order_id, "delivered")
        self._check_item(order, item)
        old, stock = order["items"][item], self._record("products", item)["stock"]
        if colour == old:
            raise ToolError(f"{item} is {colour}")
        if not stock.get(colour):
            raise ToolError(f"no {colour} {item} in stock")
        shelf = self.database.edit("products", item)["stock"]
        shelf[colour] -= 1
        shelf[old] += 1
        self.database.edit("orders", order_id)["items"][item] = colour
        return {"colour": colour}

    @write
    def modify_payment(self, order_id: OrderId, payment_id: PaymentId) -> Any:
        """Charge a pending order to another payment method of the customer."""
        order = self._order(order_id, "pending")
        self._payable(order, payment_id)
        return self._modify(order, "payment_id", payment_id)

    @write
    def modify_address(
        self,
        order_id: OrderId,
        street: Annotated[str, Field(description="The street to send it to.", min_length=1)],
    ) -> Any:
        """Send a pending order to another street."""
        return self._modify(self._order(order_id, "pending"), "street", street)

    @generic
    def transfer_to_human(self, order_id: OrderId) -> Any:
        """Hand the customer over to a person, with the order that it is about."""
        return {"transferred": order_id}

    def _record(self, table: str, key: str) -> Any:
        record = self.database[table].get(key)
        if record is None:
            raise ToolError(f"no such {table.removesuffix('s')}")
        return record

    def _order(self, order_id: str, status: str) -> Any:
        order = self._record("orders", order_id)
        if order["status"] != status:
            raise ToolError(f"order {order_id} is {order['status']}")
        return order

    def _check_item(self, order: Any, item: str) -> None:
        if item not in order["items"]:
            raise ToolError(f"no {item} in order {order['order_id']}")
        if item in order["refunds"]:
            raise ToolError(f"{item} is returned")

    def _payable(self, order: Any, payment_id: str) -> None:
        user = self.database["users"][order["user_id"]]
        if payment_id not in (*user["cards"], user["gift_card"]):
            raise ToolError("no such payment")

    def _modify(self, order: Any, field: str, value: str) -> Any:
        if order[field] == value:
            raise ToolError(f"order {order['order_id']} has {value}")
        self.database.edit("orders", order["order_id"])[field] = value
        return {field: value}
