"""Our own retail databases: the original's shapes, none of its records."""

import re
from pathlib import Path

import pytest

from envs.database import Database
from envs.retail.database import USERS, build_database, canonical
from envs.retail.environment import Retail
from envs.retail.kinds import KINDS


def ids(database: Database) -> set[str]:
    """Every id of users, orders, products, items and payment methods."""
    items = {item for one in database["products"].values() for item in one["variants"]}
    methods = {method for one in database["users"].values() for method in one["payment_methods"]}
    return {key for name in database.names for key in database[name]} | items | methods


def test_a_database_is_a_function_of_its_seed() -> None:
    assert build_database(3).digest() == Database(_tables(build_database.__wrapped__(3))).digest()
    assert build_database(3).digest() != build_database(4).digest()


def _tables(database: Database) -> dict[str, dict[str, object]]:
    return {name: dict(database[name]) for name in database.names}


def test_a_generated_database_is_canonical() -> None:
    database = build_database(0)
    assert Database(canonical(_tables(database))).digest() == database.digest()


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


def test_ids_have_another_shape_than_the_originals() -> None:
    theirs = r"[a-z]+_[a-z]+_\d{4}|#W\d{7}|\d{10}|(gift_card|credit_card|paypal)_\d{7}"
    assert not [one for one in ids(build_database(0)) if re.fullmatch(theirs, one)]


@pytest.mark.benchmarks
def test_no_generated_record_is_one_of_the_originals(benchmarks: Path) -> None:
    real = Retail(benchmarks).benchmark.database
    names = {product["name"] for product in real["products"].values()}
    emails = {user["email"] for user in real["users"].values()}
    for seed in range(20):
        database = build_database(seed)
        assert ids(database).isdisjoint(ids(real))
        assert names.isdisjoint(one["name"] for one in database["products"].values())
        assert emails.isdisjoint(one["email"] for one in database["users"].values())


@pytest.mark.benchmarks
def test_records_have_the_originals_fields(benchmarks: Path) -> None:
    real, own = Retail(benchmarks).benchmark.database, build_database(0)
    for name in real.names:
        fields = {tuple(record) for record in real[name].values()}
        assert {tuple(record) for record in own[name].values()} == fields


@pytest.mark.benchmarks
def test_no_generated_request_names_a_real_record(benchmarks: Path) -> None:
    retail = Retail(benchmarks)
    real = ids(retail.benchmark.database)
    for capability in KINDS:
        task = retail.generate(capability, 0)
        words = re.findall(r"[#\w]+", task.model_dump_json())
        assert real.isdisjoint(words)
