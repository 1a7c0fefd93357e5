"""Our own retail databases: the original's shapes, none of its records."""

import pytest

from envs.retail.database import USERS, build_database


@pytest.mark.parametrize("seed", range(5))
def test_users_orders_and_products_fit_together(seed: int) -> None:
    database = build_database(seed)
    users, orders, products = (database[name] for name in ("users", "orders", "products"))
    assert len(users) == USERS
    assert {order_id for user in users.values() for order_id in user["orders"]} == set(orders)
    for order in orders.values():
        user = users[order["user_id"]]
        assert order["order_id"] in user["orders"]
        paid = order["payment_history"][0]
        assert paid["payment_method_id"] in user["payment_methods"]
        assert paid["amount"] == round(sum(item["price"] for item in order["items"]), 2)
        for item in order["items"]:
            variant = products[item["product_id"]]["variants"][item["item_id"]]
            assert (item["price"], item["options"]) == (variant["price"], variant["options"])
    for product in products.values():
        stocked = [variant["available"] for variant in product["variants"].values()]
        assert sum(stocked) >= 4
        assert not all(stocked)
