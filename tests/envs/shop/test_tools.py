"""The tools of shop: what they change, what they refuse, and what diagnosis is told of them."""

from itertools import pairwise
from typing import Any

import pytest

from envs.catalog import CATALOGS
from envs.database import Database
from envs.shop.tools import ShopTools
from envs.shop.vocabulary import POOLS
from envs.tools import ToolResult


@pytest.fixture
def tools() -> ShopTools:
    users: list[dict[str, Any]] = [
        {"user_id": "U11", "name": "Ada", "zip": "10007", "orders": ["O11", "O12"],
         "cards": ["P11", "P12"], "gift_card": "P13"},
        {"user_id": "U12", "name": "Ben", "zip": "11364", "orders": [],
         "cards": ["P21", "P22"], "gift_card": "P23"},
    ]  # fmt: skip
    order = {"user_id": "U11", "payment_id": "P11", "street": "Strand", "refunds": {}}
    orders: list[dict[str, Any]] = [
        {"order_id": "O11", "status": "pending", "items": {"mug": "red", "lamp": "blue"}} | order,
        {"order_id": "O12", "status": "delivered", "items": {"tent": "red", "vase": "grey"}}
        | order,
    ]
    stock = {
        "mug": {"red": 1, "blue": 2, "pink": 0},
        "tent": {"red": 0, "blue": 1, "pink": 0},
    }
    tables: dict[str, dict[str, Any]] = {
        "users": {user["user_id"]: user for user in users},
        "orders": {order["order_id"]: order for order in orders},
        "products": {name: {"product": name, "stock": colours} for name, colours in stock.items()},
    }
    return ShopTools(Database(tables))


def call(tools: ShopTools, tool: str, /, **arguments: str) -> ToolResult:
    return tools.call(tool, arguments)


def test_a_customer_is_found_by_name_and_zip_together(tools: ShopTools) -> None:
    assert call(tools, "find_user", name="ada", zip="10007").content == '{"user_id": "U11"}'
    assert call(tools, "find_user", name="Ada", zip="11364").content == "Error: no such user"


def test_a_customer_has_orders_and_payments(tools: ShopTools) -> None:
    assert call(tools, "get_user", user_id="U11").content == (
        '{"orders": ["O11", "O12"], "cards": ["P11", "P12"], "gift_card": "P13"}'
    )


def test_a_product_has_the_colours_that_are_in_stock(tools: ShopTools) -> None:
    assert call(tools, "get_product", product="mug").content == (
        '{"product": "mug", "colours": ["red", "blue"]}'
    )


def test_an_order_shows_its_refunds_once_there_are_some(tools: ShopTools) -> None:
    assert "refunds" not in call(tools, "get_order", order_id="O12").content
    call(tools, "return_item", order_id="O12", item="tent", payment_id="P13")
    assert '"refunds": {"tent": "P13"}' in call(tools, "get_order", order_id="O12").content


@pytest.mark.parametrize(
    ("name", "arguments", "changed"),
    [
        ("cancel_order", {"order_id": "O11"}, {("O11", "status"): "cancelled"}),
        (
            "return_item",
            {"order_id": "O12", "item": "vase", "payment_id": "P11"},
            {("O12", "refunds", "vase"): "P11"},
        ),
        (
            "exchange_item",
            {"order_id": "O12", "item": "tent", "colour": "blue"},
            {
                ("O12", "items", "tent"): "blue",
                ("tent", "stock", "blue"): 0,
                ("tent", "stock", "red"): 1,
            },
        ),
        (
            "modify_payment",
            {"order_id": "O11", "payment_id": "P13"},
            {("O11", "payment_id"): "P13"},
        ),
        (
            "modify_address",
            {"order_id": "O11", "street": "Newgate"},
            {("O11", "street"): "Newgate"},
        ),
    ],
)
def test_a_write_changes_what_it_says_and_nothing_else(
    tools: ShopTools, name: str, arguments: dict[str, str], changed: dict[tuple[str, ...], Any]
) -> None:
    before = tools.database.fork()
    assert not tools.call(name, arguments).error
    difference = before.difference(tools.database)
    assert {found.path[1:]: found.actual for found in difference} == changed


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("get_user", {"user_id": "U99"}, "no such user"),
        ("get_order", {"order_id": "O99"}, "no such order"),
        ("get_product", {"product": "boat"}, "no such product"),
        ("cancel_order", {"order_id": "O12"}, "order O12 is delivered"),
        ("cancel_order", {"order_id": "O99"}, "no such order"),
        (
            "return_item",
            {"order_id": "O11", "item": "mug", "payment_id": "P11"},
            "order O11 is pending",
        ),
        (
            "return_item",
            {"order_id": "O12", "item": "mug", "payment_id": "P11"},
            "no mug in order O12",
        ),
        (
            "return_item",
            {"order_id": "O12", "item": "tent", "payment_id": "P21"},
            "no such payment",
        ),
        (
            "exchange_item",
            {"order_id": "O12", "item": "tent", "colour": "pink"},
            "no pink tent in stock",
        ),
        (
            "exchange_item",
            {"order_id": "O12", "item": "tent", "colour": "grey"},
            "no grey tent in stock",
        ),
        ("exchange_item", {"order_id": "O12", "item": "tent", "colour": "red"}, "tent is red"),
        ("modify_payment", {"order_id": "O11", "payment_id": "P11"}, "order O11 has P11"),
        ("modify_payment", {"order_id": "O11", "payment_id": "P22"}, "no such payment"),
        ("modify_payment", {"order_id": "O12", "payment_id": "P12"}, "order O12 is delivered"),
        ("modify_address", {"order_id": "O11", "street": "Strand"}, "order O11 has Strand"),
    ],
)
def test_a_tool_refuses_what_cannot_be_and_changes_nothing(
    tools: ShopTools, name: str, arguments: dict[str, str], error: str
) -> None:
    before = tools.database.fork()
    result = tools.call(name, arguments)
    assert result.content == f"Error: {error}"
    assert (result.error, result.malformed, result.defect) == (True, False, None)
    assert before.same(tools.database)


def test_an_item_is_returned_once(tools: ShopTools) -> None:
    arguments = {"order_id": "O12", "item": "tent", "payment_id": "P11"}
    assert not tools.call("return_item", arguments).error
    assert tools.call("return_item", arguments).content == "Error: tent is returned"


def test_the_catalog_says_of_the_tools_what_they_declare() -> None:
    declared = CATALOGS["shop"]
    kinds = {name: tool.kind for name, tool in ShopTools.tools().items()}
    assert declared.writes == {name for name, kind in kinds.items() if kind == "write"}
    assert declared.reads == {name for name, kind in kinds.items() if kind == "read"}
    assert declared.generic == {name for name, kind in kinds.items() if kind == "generic"}
    arguments = {name for tool in ShopTools.tools().values() for name in tool.parameters}
    assert {*declared.record_arguments, *declared.selection_arguments} <= arguments


def test_every_entity_is_one_word_of_one_pool_and_begins_no_other() -> None:
    words = sorted(word for pool in POOLS.values() for word in pool)
    assert all(word.isalnum() and word.isascii() for word in words)
    assert not [pair for pair in pairwise(words) if pair[1].startswith(pair[0])]
    sizes = {name: len(pool) for name, pool in POOLS.items()}
    assert sizes == {
        "name": 39, "zip": 60, "user": 60, "order": 80, "payment": 50, "product": 20,
        "colour": 8, "street": 30, "status": 4,
    }  # fmt: skip
