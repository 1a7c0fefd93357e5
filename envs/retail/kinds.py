"""The kinds of task: functions that draw a customer's wish and a perfect agent's calls for it.

Such a function takes a case and raises UnfitCustomer if the case's customer does not fit; then the
next customer is tried. Every kind changes something or demands an output, so an idle agent fails.
"""

from collections.abc import Mapping
from typing import Final

from envs.database import Record
from envs.retail import database, phrases
from envs.retail.case import (
    METHODS,
    Case,
    describe_items,
    describe_variant,
    difference,
    get_order,
    get_product,
    get_user,
    money,
    subtract,
    total,
)
from envs.retail.tools import DELIVERED, GIFT_CARD, PENDING
from envs.task import Answer, Kind, Source
from envs.tau2.case import Plan, action
from envs.tau2.customer import UnfitCustomer
from events.messages import Action

_REASONS: Final = {
    "no longer needed": "I no longer need it",
    "ordered by mistake": "I ordered it by mistake",
}


def _cancel(case: Case) -> Plan:
    order, reason = case.order(PENDING), case.chance.choice(list(_REASONS))
    return Plan(
        case.say(phrases.CANCEL, order=order["order_id"], because=_REASONS[reason]),
        (get_order(order), _cancel_order(order, reason)),
        answers=_because(reason),
    )


def _return(case: Case) -> Plan:
    order = case.order(DELIVERED)
    items = order["items"][: case.chance.randrange(1, len(order["items"]) + 1)]
    method = case.chance.choice([case.method_of(order), case.method(GIFT_CARD)])
    return Plan(
        case.say(
            phrases.RETURN,
            items=describe_items(items),
            order=order["order_id"],
            method=METHODS[method["source"]],
        ),
        (get_order(order), get_user(case), _return_items(order, items, method)),
    )


def _exchange(case: Case) -> Plan:
    order = case.order(DELIVERED)
    return _replacement(case, order, phrases.EXCHANGE, "exchange_delivered_order_items")


def _modify_items(case: Case) -> Plan:
    order = case.order(PENDING)
    return _replacement(case, order, phrases.MODIFY_ITEMS, "modify_pending_order_items")


def _replacement(case: Case, order: Record, request: phrases.Phrases, tool: str) -> Plan:
    item = case.chance.choice(order["items"])
    variant = case.variants(item)[0]
    method = case.methods(difference(item, variant))[0]
    return Plan(
        case.say(
            request,
            item=describe_items([item]),
            order=order["order_id"],
            variant=describe_variant(variant),
            method=METHODS[method["source"]],
        ),
        (
            get_order(order),
            get_product(item),
            get_user(case),
            _replace_item(tool, order, item, variant, method),
        ),
        answers=(_ALL_ITEMS,),
    )


def _modify_payment(case: Case) -> Plan:
    order = case.order(PENDING)
    others = [m for m in case.methods(total(order)) if m != case.method_of(order)]
    if not others:
        raise UnfitCustomer
    return Plan(
        case.say(
            phrases.MODIFY_PAYMENT, order=order["order_id"], method=METHODS[others[0]["source"]]
        ),
        (get_order(order), get_user(case), _pay_order(order, others[0])),
    )


def _modify_address(case: Case) -> Plan:
    order, address = case.order(PENDING), database.address(case.chance)
    return Plan(
        case.say(phrases.MODIFY_ADDRESS, order=order["order_id"], address=_format_address(address)),
        (
            get_order(order),
            action("modify_pending_order_address", order_id=order["order_id"], **address),
        ),
    )


def _user_address(case: Case) -> Plan:
    address = database.address(case.chance)
    return Plan(
        case.say(phrases.USER_ADDRESS, address=_format_address(address)),
        (
            get_user(case),
            action("modify_user_address", user_id=case.user["user_id"], **address),
        ),
    )


def _two_requests(case: Case) -> Plan:
    first, second = _cancel(case), _return(case)
    return Plan(
        case.say(phrases.TWO_REQUESTS, first=first.request, second=second.request),
        first.calls + second.calls,
        answers=first.answers,
    )


def _status_condition(case: Case) -> Plan:
    order = case.order(case.chance.choice((PENDING, DELIVERED)))
    reason = "no longer needed"
    act = (
        _cancel_order(order, reason)
        if order["status"] == PENDING
        else _return_items(order, order["items"], case.method_of(order))
    )
    return Plan(
        case.say(phrases.STATUS_CONDITION, order=order["order_id"]),
        (get_order(order), act),
        answers=_because(reason),
    )


def _fallback_item(case: Case) -> Plan:
    order = case.order(DELIVERED)
    item = case.chance.choice(order["items"])
    wanted = case.variants(item, available=case.chance.random() < 0.3)
    others = [variant for variant in case.variants(item) if variant not in wanted[:1]]
    method = case.method_of(order)
    if not wanted or not others or method["source"] == GIFT_CARD:
        raise UnfitCustomer
    taken = wanted[0] if wanted[0]["available"] else others[0]
    return Plan(
        case.say(
            phrases.FALLBACK_ITEM,
            item=describe_items([item]),
            order=order["order_id"],
            wanted=describe_variant(wanted[0]),
            other=describe_variant(others[0]),
            method=METHODS[method["source"]],
            payer=METHODS[method["source"]].capitalize(),
        ),
        (
            get_order(order),
            get_product(item),
            get_user(case),
            _replace_item("exchange_delivered_order_items", order, item, taken, method),
        ),
        answers=(_ALL_ITEMS,),
    )


def _cheapest(case: Case) -> Plan:
    order = case.order(PENDING)
    item = case.chance.choice(order["items"])
    variants = sorted(case.variants(item), key=lambda variant: float(variant["price"]))
    method = case.method_of(order)
    if variants[0]["price"] >= min(variants[1]["price"], item["price"]):
        raise UnfitCustomer
    return Plan(
        case.say(phrases.CHEAPEST, order=order["order_id"], product=item["name"].lower()),
        (
            get_order(order),
            get_product(item),
            _replace_item("modify_pending_order_items", order, item, variants[0], method),
        ),
        answers=(_ALL_ITEMS,),
    )


def _balance_condition(case: Case) -> Plan:
    order, card = case.order(PENDING), case.method(GIFT_CARD)
    if card is None or case.method_of(order) == card:
        raise UnfitCustomer
    reason = "no longer needed"
    enough = card["balance"] >= total(order)
    return Plan(
        case.say(phrases.BALANCE_CONDITION, order=order["order_id"]),
        (
            get_order(order),
            get_user(case),
            _pay_order(order, card) if enough else _cancel_order(order, reason),
        ),
        answers=_because(reason),
    )


def _find_order(case: Case) -> Plan:
    order = case.order(PENDING)
    item = case.chance.choice(order["items"])
    if case.find_orders_with(item["product_id"]) != [order]:
        raise UnfitCustomer
    own = case.user["orders"]
    searched = own[: own.index(order["order_id"]) + 1]
    reason = case.chance.choice(list(_REASONS))
    return Plan(
        case.say(phrases.FIND_ORDER, items=describe_items([item]), because=_REASONS[reason]),
        (
            get_user(case),
            *(action("get_order_details", order_id=order_id) for order_id in searched),
            _cancel_order(order, reason),
        ),
        answers=_because(reason),
    )


def _all_pending(case: Case) -> Plan:
    pending = {order["order_id"]: order for order in case.orders(PENDING)}
    if len(pending) < 2:
        raise UnfitCustomer
    reason = case.chance.choice(list(_REASONS))
    looked_up = (action("get_order_details", order_id=own) for own in case.user["orders"])
    cancelled = (
        _cancel_order(pending[own], reason) for own in case.user["orders"] if own in pending
    )
    return Plan(
        case.say(phrases.ALL_PENDING, reason=reason),
        (get_user(case), *looked_up, *cancelled),
        answers=_because(reason),
    )


def _refuse_cancellation(case: Case) -> Plan:
    sent = case.orders(database.PROCESSED)
    if not sent:
        raise UnfitCustomer
    paid, rest = total(sent[0]), case.draw_rest()
    return Plan(
        case.say(
            phrases.REFUSED_CANCELLATION,
            order=sent[0]["order_id"],
            budget=money(paid + rest),
        ),
        (get_order(sent[0]), subtract(paid + rest, paid)),
        outputs=(money(rest),),
        sources=(Source.of(sent[0], "order_id", "payment_history"),),
    )


def _refuse_refund(case: Case) -> Plan:
    order = case.order(DELIVERED)
    others = [m for m in case.user["payment_methods"].values() if m != case.method_of(order)]
    item = case.chance.choice(order["items"])
    if others[0]["source"] == GIFT_CARD:
        raise UnfitCustomer
    price, rest = item["price"], case.draw_rest()
    return Plan(
        case.say(
            phrases.REFUSED_REFUND,
            item=describe_items([item]),
            order=order["order_id"],
            method=METHODS[others[0]["source"]],
            price=money(price + rest),
        ),
        (get_order(order), get_user(case), subtract(price + rest, price)),
        outputs=(money(rest),),
        sources=(_find_price(item),),
    )


def _question_refund(case: Case) -> Plan:
    order = case.order(DELIVERED)
    items = order["items"][:2]
    if len(items) < 2:
        raise UnfitCustomer
    prices, rest = [item["price"] for item in items], case.draw_rest()
    price = sum(prices) + rest
    return Plan(
        case.say(
            phrases.QUESTION_REFUND,
            items=describe_items(items),
            order=order["order_id"],
            price=money(price),
        ),
        (get_order(order), subtract(price, *prices)),
        outputs=(money(rest),),
        sources=tuple(map(_find_price, items)),
    )


def _question_price(case: Case) -> Plan:
    product = case.shuffle(case.database["products"].values())[0]
    stocked = [variant for variant in product["variants"].values() if variant["available"]]
    lowest, rest = min(variant["price"] for variant in stocked), case.draw_rest()
    return Plan(
        case.say(
            phrases.QUESTION_PRICE,
            product=product["name"].lower(),
            budget=money(lowest + rest),
        ),
        (
            action("list_all_product_types"),
            get_product(product),
            subtract(lowest + rest, lowest),
        ),
        outputs=(money(rest),),
        sources=(Source.of(product, "product_id", "variants"),),
    )


KINDS: Final[Mapping[str, Kind[Case, Plan]]] = {
    "cancel": Kind("Cancel a pending order.", _cancel),
    "return": Kind("Return items of a delivered order.", _return),
    "exchange": Kind("Exchange an item of a delivered order.", _exchange),
    "modify_items": Kind("Change an item of a pending order.", _modify_items),
    "modify_payment": Kind("Change how a pending order is paid.", _modify_payment),
    "modify_address": Kind("Change where a pending order is sent.", _modify_address),
    "user_address": Kind("Change the user's own address and no order's.", _user_address),
    "two_requests": Kind("A cancellation and a return in one conversation.", _two_requests),
    "status_condition": Kind("Cancel or return, as the order's status allows.", _status_condition),
    "fallback_item": Kind("A second choice where the first is out of stock.", _fallback_item),
    "cheapest": Kind("Find the cheapest item in stock and change to it.", _cheapest),
    "balance_condition": Kind("Compare a balance with a total, then act.", _balance_condition),
    "find_order": Kind("Find an order by what is in it.", _find_order),
    "all_pending": Kind("The same change on every order it applies to.", _all_pending),
    "refused_cancellation": Kind("Refuse by status, and answer instead.", _refuse_cancellation),
    "refused_refund": Kind("Refuse by rule, and answer instead.", _refuse_refund),
    "question_refund": Kind("Answer a question by calculating; change nothing.", _question_refund),
    "question_price": Kind("Answer a question from the catalogue.", _question_price),
}


_ALL_ITEMS: Final = Answer(
    asks=r"(list|items?) (is |are )?complete|all (of )?the items|any other items?",
    says="Yes, that is every item.",
)


def _because(reason: str) -> tuple[Answer, ...]:
    return (Answer(asks=r"\breason\b|\bwhy\b", says=f"{_REASONS[reason]}."),)


def _find_price(item: Record) -> Source:
    return Source.of(item, "item_id", "price")


def _cancel_order(order: Record, reason: str) -> Action:
    return action("cancel_pending_order", order_id=order["order_id"], reason=reason)


def _return_items(order: Record, items: list[Record], method: Record) -> Action:
    return action(
        "return_delivered_order_items",
        order_id=order["order_id"],
        item_ids=[item["item_id"] for item in items],
        payment_method_id=method["id"],
    )


def _replace_item(
    tool: str, order: Record, item: Record, variant: Record, method: Record
) -> Action:
    return action(
        tool,
        order_id=order["order_id"],
        item_ids=[item["item_id"]],
        new_item_ids=[variant["item_id"]],
        payment_method_id=method["id"],
    )


def _pay_order(order: Record, method: Record) -> Action:
    return action(
        "modify_pending_order_payment",
        order_id=order["order_id"],
        payment_method_id=method["id"],
    )


def _format_address(address: Record) -> str:
    second = f"{address['address2']}, " if address["address2"] else ""
    return (
        f"{address['address1']}, {second}{address['city']}, {address['state']} {address['zip']}, "
        f"{address['country']}"
    )
