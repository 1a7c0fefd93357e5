"""Retail's tools: every answer, every refusal and which comes first, and what a change leaves."""

import json
import re
from typing import Any

import pytest

from envs.retail.tools import RetailTools
from tests.envs.retail.records import (
    ADDRESS,
    BLUE,
    CARD,
    DELIVERED,
    EMPTY,
    GIFT,
    GIFTED,
    GONE,
    GREEN,
    LARGE,
    PENDING,
    PROCESSED,
    RED,
    SMALL,
    Json,
    tools,
)

MODIFY, EXCHANGE = "modify_pending_order_items", "exchange_delivered_order_items"
RETURN, PAY = "return_delivered_order_items", "modify_pending_order_payment"
ELSEWHERE = {**ADDRESS, "city": "Boise", "state": "ID", "zip": "83702"}


def replacing(order_id: str, old: Any, new: Any, method: str = CARD) -> Json:
    """The arguments of an exchange or a change of items."""
    return {
        "order_id": order_id,
        "item_ids": old,
        "new_item_ids": new,
        "payment_method_id": method,
    }


def done(shop: RetailTools, name: str, arguments: Json) -> Json:
    """The record that a call answers with, which must succeed."""
    result = shop.call(name, arguments)
    assert not result.error, result.content
    record: Json = json.loads(result.content)
    return record


def balance(shop: RetailTools, card: str = GIFT) -> float:
    """What a gift card holds."""
    return float(shop.database["users"]["ada_berg_1"]["payment_methods"][card]["balance"])


def test_a_user_is_found_whatever_the_capitals() -> None:
    shop = tools()
    for call in (
        ("find_user_id_by_email", {"email": "ADA.berg@example.org"}),
        (
            "find_user_id_by_name_zip",
            {"first_name": "ADA", "last_name": "berg", "zip": ADDRESS["zip"]},
        ),
    ):
        assert shop.call(*call).content == "ada_berg_1"


def test_an_order_shows_all_its_fields() -> None:
    shown = done(tools(), "get_order_details", {"order_id": PENDING})
    assert list(shown)[-7:] == [
        "cancel_reason",
        "exchange_items",
        "exchange_new_items",
        "exchange_payment_method_id",
        "exchange_price_difference",
        "return_items",
        "return_payment_method_id",
    ]
    assert shown["cancel_reason"] is None


REFUSALS = [
    ("find_user_id_by_email", {"email": "nobody@example.org"}, "User not found"),
    ("find_user_id_by_email", {"email": None}, "'NoneType' object has no attribute 'lower'"),
    (
        "find_user_id_by_name_zip",
        {"first_name": "Ada", "last_name": "Berg", "zip": "1"},
        "User not found",
    ),
    ("get_user_details", {"user_id": None}, "User not found"),
    ("get_order_details", {"order_id": "#X"}, "Order not found"),
    ("get_product_details", {"product_id": RED}, "Product not found"),
    ("get_item_details", {"item_id": "1"}, "Item not found"),
    ("cancel_pending_order", {"order_id": "#X", "reason": "bored"}, "Order not found"),
    (
        "cancel_pending_order",
        {"order_id": PROCESSED, "reason": "bored"},
        "Non-pending order cannot be cancelled",
    ),
    ("cancel_pending_order", {"order_id": PENDING, "reason": "bored"}, "Invalid reason"),
    # An exchange looks at the status, the items, their number, each item, the payment, its balance.
    (EXCHANGE, replacing("#X", ["1"], []), "Order not found"),
    (EXCHANGE, replacing(PENDING, ["1"], []), "Non-delivered order cannot be exchanged"),
    (EXCHANGE, replacing(DELIVERED, ["1"], [], "none"), "Number of 1 not found."),
    (EXCHANGE, replacing(DELIVERED, [RED, RED], [], "none"), f"Number of {RED} not found."),
    (EXCHANGE, replacing(DELIVERED, RED, RED), "Number of 2 not found."),
    (
        EXCHANGE,
        replacing(DELIVERED, [RED], [], "none"),
        "The number of items to be exchanged should match.",
    ),
    (EXCHANGE, replacing(DELIVERED, [RED], [SMALL], "none"), "Variant not found"),
    (
        EXCHANGE,
        replacing(DELIVERED, [RED, SMALL], [GONE, "1"], "none"),
        f"New item {GONE} not found or available",
    ),
    (EXCHANGE, replacing(DELIVERED, [RED], [BLUE], "none"), "Payment method not found"),
    (
        EXCHANGE,
        replacing(DELIVERED, [RED], [BLUE], EMPTY),
        "Insufficient gift card balance to pay for the price difference",
    ),
    (EXCHANGE, replacing(DELIVERED, [RED], None), "object of type 'NoneType' has no len()"),
    (EXCHANGE, replacing(DELIVERED, 5, [BLUE]), "'int' object is not iterable"),
    # A change of items looks at the same in the same order, and whether it is a change.
    (MODIFY, replacing("#X", ["1"], []), "Order not found"),
    (MODIFY, replacing(DELIVERED, ["1"], []), "Non-pending order cannot be modified"),
    (MODIFY, replacing(PENDING, [RED, RED, RED], [], "none"), f"{RED} not found"),
    (
        MODIFY,
        replacing(PENDING, [RED], [], "none"),
        "The number of items to be exchanged should match",
    ),
    (
        MODIFY,
        replacing(PENDING, [RED, SMALL], [RED, "1"], "none"),
        "The new item id should be different from the old item id",
    ),
    (MODIFY, replacing(PENDING, [RED], ["1"], "none"), "Variant not found"),
    (
        MODIFY,
        replacing(PENDING, [RED], [GONE], "none"),
        f"New item {GONE} not found or available",
    ),
    (MODIFY, replacing(PENDING, [RED], [BLUE], "none"), "Payment method not found"),
    (
        MODIFY,
        replacing(PENDING, [RED], [BLUE], EMPTY),
        "Insufficient gift card balance to pay for the new item",
    ),
    # A return looks at the status, the payment, whether it may be, and then the items.
    (
        RETURN,
        {"order_id": PENDING, "item_ids": [], "payment_method_id": "none"},
        "Non-delivered order cannot be returned",
    ),
    (
        RETURN,
        {"order_id": DELIVERED, "item_ids": ["1"], "payment_method_id": "none"},
        "Payment method not found",
    ),
    (
        RETURN,
        {"order_id": DELIVERED, "item_ids": [RED, RED], "payment_method_id": CARD},
        "Some item not found",
    ),
    # A payment looks at the status, the method, the history, whether it is a change, the balance.
    (
        PAY,
        {"order_id": DELIVERED, "payment_method_id": "none"},
        "Non-pending order cannot be modified",
    ),
    (PAY, {"order_id": PENDING, "payment_method_id": "none"}, "Payment method not found"),
    (
        PAY,
        {"order_id": PENDING, "payment_method_id": CARD},
        "The new payment method should be different from the current one",
    ),
    (
        PAY,
        {"order_id": PENDING, "payment_method_id": EMPTY},
        "Insufficient gift card balance to pay for the order",
    ),
    (
        "modify_pending_order_address",
        {"order_id": PROCESSED, **ELSEWHERE, "zip": 5},
        "Non-pending order cannot be modified",
    ),
    ("modify_user_address", {"user_id": "x", **ELSEWHERE, "zip": 5}, "User not found"),
]


@pytest.mark.parametrize(("name", "arguments", "text"), REFUSALS)
def test_a_refusal_has_its_text_and_changes_nothing(name: str, arguments: Json, text: str) -> None:
    shop = tools()
    before = shop.database.digest()
    result = shop.call(name, arguments)
    assert (result.content, result.error, result.malformed) == (f"Error: {text}", True, False)
    assert shop.database.digest() == before


def test_a_refund_may_not_go_to_another_card() -> None:
    shop = tools()
    shop.database.edit("orders", DELIVERED)["payment_history"][0]["payment_method_id"] = GIFT
    arguments = {"order_id": DELIVERED, "item_ids": ["1"], "payment_method_id": CARD}
    assert shop.call(RETURN, arguments).content == (
        "Error: Payment method should be the original payment method"
    )


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("modify_pending_order_address", {"order_id": PENDING}),
        ("modify_user_address", {"user_id": "ada_berg_1"}),
    ],
)
def test_an_address_of_the_wrong_type_has_pydantics_text(name: str, whose: Json) -> None:
    shop = tools()
    content = shop.call(name, {**whose, **ELSEWHERE, "zip": 5}).content
    assert re.fullmatch(
        r"Error: 1 validation error for UserAddress\nzip\n  Input should be a valid string "
        r"\[type=string_type, input_value=5, input_type=int\]\n"
        r"    For further information visit https://errors.pydantic.dev/[\d.]+/v/string_type",
        content,
    )


def test_an_address_is_changed_where_it_was_asked_for_only() -> None:
    shop = tools()
    order = done(shop, "modify_pending_order_address", {"order_id": PENDING, **ELSEWHERE})
    assert order["address"] == ELSEWHERE
    assert shop.database["users"]["ada_berg_1"]["address"] == ADDRESS
    done(shop, "modify_user_address", {"user_id": "ada_berg_1", **ELSEWHERE})
    assert shop.database["orders"][GIFTED]["address"] == ADDRESS


def test_a_cancelled_order_is_paid_back_to_the_gift_card_at_once() -> None:
    shop = tools()
    order = done(shop, "cancel_pending_order", {"order_id": GIFTED, "reason": "no longer needed"})
    assert (order["status"], order["cancel_reason"]) == ("cancelled", "no longer needed")
    assert [entry["transaction_type"] for entry in order["payment_history"]] == [
        "payment",
        "refund",
    ]
    assert balance(shop) == 30.1


def test_cancelling_after_a_change_of_payment_pays_back_every_entry() -> None:
    shop = tools()
    done(shop, PAY, {"order_id": GIFTED, "payment_method_id": CARD})
    assert balance(shop) == 30.1
    order = done(shop, "cancel_pending_order", {"order_id": GIFTED, "reason": "no longer needed"})
    assert len(order["payment_history"]) == 6
    assert balance(shop) == 50.3


def test_a_change_of_payment_takes_from_one_card_and_gives_to_the_other() -> None:
    shop = tools()
    shop.database.edit("users", "ada_berg_1")["payment_methods"][EMPTY]["balance"] = 10.1
    order = done(shop, PAY, {"order_id": GIFTED, "payment_method_id": EMPTY})
    assert order["status"] == "pending"
    assert [
        (entry["transaction_type"], entry["payment_method_id"])
        for entry in order["payment_history"]
    ] == [("payment", GIFT), ("payment", EMPTY), ("refund", GIFT)]
    assert (balance(shop), balance(shop, EMPTY)) == (30.1, 0.0)
    again = shop.call(PAY, {"order_id": GIFTED, "payment_method_id": CARD}).content
    assert again == "Error: There should be exactly one payment for a pending order"


def test_changed_items_all_take_price_and_options_of_the_last_one() -> None:
    shop = tools()
    order = done(shop, MODIFY, replacing(PENDING, [RED, SMALL, RED], [BLUE, LARGE, GREEN]))
    assert [(one["item_id"], one["price"]) for one in order["items"]] == [
        (BLUE, 7.05),
        (GREEN, 7.05),
        (LARGE, 7.05),
    ]
    assert all(one["options"] == {"colour": "green"} for one in order["items"])
    assert order["status"] == "pending (item modified)"


def test_the_difference_of_a_change_is_not_rounded_but_the_balance_is() -> None:
    shop = tools()
    order = done(shop, MODIFY, replacing(GIFTED, [RED], [BLUE], GIFT))
    last = order["payment_history"][-1]
    assert (last["transaction_type"], last["amount"]) == ("payment", 12.35 - 10.1)
    assert balance(shop) == 17.75


def test_changing_no_item_is_entered_as_a_refund_of_nothing() -> None:
    order = done(tools(), MODIFY, replacing(PENDING, [], []))
    assert order["payment_history"][-1] == {
        "transaction_type": "refund",
        "amount": 0.0,
        "payment_method_id": CARD,
    }
    assert order["status"] == "pending (item modified)"


def test_a_changed_order_keeps_only_address_and_payment_open() -> None:
    shop = tools()
    done(shop, MODIFY, replacing(PENDING, [], []))
    for name, arguments, text in (
        (MODIFY, replacing(PENDING, [], []), "modified"),
        (
            "cancel_pending_order",
            {"order_id": PENDING, "reason": "ordered by mistake"},
            "cancelled",
        ),
    ):
        assert shop.call(name, arguments).content == f"Error: Non-pending order cannot be {text}"
    done(shop, "modify_pending_order_address", {"order_id": PENDING, **ELSEWHERE})


def test_an_exchange_only_asks_and_keeps_sorted_ids() -> None:
    shop = tools()
    order = done(shop, EXCHANGE, replacing(DELIVERED, [SMALL, RED], [LARGE, BLUE], GIFT))
    assert order["status"] == "exchange requested"
    assert order["exchange_items"] == [RED, SMALL]
    assert order["exchange_new_items"] == [BLUE, LARGE]
    assert order["exchange_price_difference"] == 4.55
    assert [one["item_id"] for one in order["items"]] == [RED, SMALL]
    assert balance(shop) == 20.0


def test_a_return_only_asks_and_keeps_sorted_ids() -> None:
    shop = tools()
    arguments = {"order_id": DELIVERED, "item_ids": [SMALL, RED], "payment_method_id": EMPTY}
    order = done(shop, RETURN, arguments)
    assert order["status"] == "return requested"
    assert (order["return_items"], order["return_payment_method_id"]) == ([RED, SMALL], EMPTY)
    assert balance(shop, EMPTY) == 1.0
