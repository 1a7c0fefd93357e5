"""The kinds of task: functions that draw a customer's wish and a perfect agent's calls for it.

For the plain kinds it is enough to copy values by type: request and look-up hold one order, payment
and street. The harder kinds combine plain ones, depend on a look-up, or must be refused. Two kinds
with opposite answers (`cancel` and `ineligible`) use the same words.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from envs.shop import phrases
from envs.shop.case import STATUS, Case, get_order
from envs.task import Kind, Source
from events.messages import Action


@dataclass(frozen=True, slots=True)
class Plan:
    """A customer's words, and a perfect agent's calls after the look-up of the customer."""

    request: str
    calls: tuple[Action, ...]
    refused: bool = False
    answer: str | None = None
    """The value that answers the customer's question."""
    source: Source | None = None
    """The record from which the answer is read."""
    reaction: str | None = None
    """The customer's words after the answer."""


def _plain(verb: str) -> Callable[[Case], Plan]:
    def plan(case: Case) -> Plan:
        wish = case.feasible(verb)
        return Plan(case.say(phrases.MOODS, wish=wish.words), wish.calls)

    return plan


def _ineligible(case: Case) -> Plan:
    wish = case.hopeless()
    return Plan(case.say(phrases.MOODS, wish=wish.words), wish.calls[:1], refused=True)


def _two_writes(case: Case) -> Plan:
    order = case.order("pending")
    payment, address = case.wish("payment", order), case.wish("address", order)
    request = case.say(
        phrases.TWO_WRITES,
        order=order["order_id"],
        payment=payment.value,
        street=address.value,
    )
    asked = sorted((payment, address), key=lambda wish: request.index(wish.value))
    return Plan(request, (get_order(order["order_id"]), *(wish.write for wish in asked)))


def _cond_status(case: Case) -> Plan:
    verb = "return" if case.chance.random() < 0.8 else "cancel"
    order = case.order(STATUS[verb])
    item = case.item(order)
    request = case.say(phrases.COND_STATUS, order=order["order_id"], item=item)
    return Plan(request, case.wish(verb, order, item=item).calls)


def _fallback(case: Case) -> Plan:
    order = case.order("delivered")
    item = case.item(order)
    colour, other = case.in_stock(item, order), case.out_of_stock(item, order)
    gold = case.wish("exchange", order, item=item, colour=colour)
    if case.chance.random() < 0.8:
        colour, other = other, colour
    asked = case.wish("exchange", order, item=item, colour=colour)
    request = case.say(phrases.FALLBACK, wish=asked.words, colour=colour, other=other)
    return Plan(request, gold.calls)


def _unavailable(case: Case) -> Plan:
    order = case.order("delivered")
    item = case.item(order)
    wish = case.wish("exchange", order, item=item, colour=case.out_of_stock(item, order))
    return Plan(case.say(phrases.MOODS, wish=wish.words), wish.calls[:-1], refused=True)


def _refund(case: Case) -> Plan:
    order = case.order("delivered")
    allowed = case.chance.random() < 0.5
    cards = [card for card in case.user["cards"] if card != order["payment_id"]]
    payment = case.user["gift_card"] if allowed else cards[0]
    wish = case.wish("return", order, payment=payment)
    request = case.say(phrases.REFUND, wish=wish.words, payment=payment)
    looked = (get_order(order["order_id"]), case.get_user)
    return Plan(request, (*looked, wish.write) if allowed else looked, refused=not allowed)


def _compound(case: Case) -> Plan:
    pending = case.feasible("cancel", "payment", "address", which=phrases.SHORTLY)
    delivered = case.feasible("return", which=phrases.SHORTLY)
    first, second = case.shuffle((pending, delivered))
    request = case.say(phrases.COMPOUND, first=first.words, second=second.words)
    return Plan(request, (*first.calls, *second.calls))


def _unknown_order(case: Case) -> Plan:
    """Plan a request without an order id, about one of the first two orders."""
    first_two = case.user["orders"][:2]
    order = next(
        order
        for order in case.orders()
        if order["order_id"] in first_two and order["status"] in ("pending", "delivered")
    )
    if order["status"] == "pending":
        wish = case.wish(case.pick(("cancel", "payment", "address")), order, phrases.DESCRIBED)
    else:
        wish = case.wish("return", order, phrases.SOME)
    request = case.say(phrases.UNKNOWN_ORDER, wish=wish.words)
    searched = map(get_order, first_two[: first_two.index(order["order_id"])])
    return Plan(request, (case.get_user, *searched, *wish.calls))


def _one_order(case: Case) -> Plan:
    order = case.order()
    verb = case.pick([verb for verb, status in STATUS.items() if status == order["status"]])
    wish = case.wish(verb, order, phrases.SINGLE)
    request = case.say(phrases.ONE_ORDER, wish=wish.words)
    return Plan(request, (case.get_user, *wish.calls))


def _question(case: Case) -> Plan:
    order = case.order()
    # The status is left out, because guesses among its few values are often right. A double share
    # of the payment keeps the kind as hard.
    asked = case.pick(("payment_id", "payment_id", "street"))
    request = case.say(phrases.QUESTIONS[asked], order=order["order_id"])
    thanks = case.say(phrases.THANKS)
    looked = (get_order(order["order_id"]),)
    source = Source.of(order, "order_id", asked)
    return Plan(request, looked, answer=order[asked], source=source, reaction=thanks)


def _followup(case: Case) -> Plan:
    verb = case.pick(("cancel", "payment", "address", "return"))
    order = case.order(STATUS[verb])
    wish = case.wish(verb, order, phrases.THIS_ORDER)
    request = case.say(phrases.QUESTIONS["status"], order=order["order_id"])
    then = case.say(phrases.FOLLOWUPS, wish=wish.words)
    source = Source.of(order, "order_id", "status")
    return Plan(request, wish.calls, answer=order["status"], source=source, reaction=then)


def _all_but(case: Case) -> Plan:
    order = case.order("delivered")
    kept, returned = case.shuffle(order["items"])
    request = case.say(phrases.ALL_BUT, order=order["order_id"], item=kept)
    return Plan(request, case.wish("return", order, item=returned).calls)


def _gift_card(case: Case) -> Plan:
    verb = case.pick(tuple(phrases.GIFT_CARD))
    order = case.order(STATUS[verb])
    wish = case.wish(verb, order, payment=case.user["gift_card"])
    words = phrases.GIFT_CARD[verb]
    request = case.say(words, wish=wish.words, order=order["order_id"])
    looked = (get_order(order["order_id"]), case.get_user)
    return Plan(request, (*looked, wish.write))


def _change_of_mind(case: Case) -> Plan:
    verb = case.pick(("cancel", "payment", "address"))
    order = case.order(STATUS[verb])
    meant = case.wish(verb, order)
    slip = meant
    while slip.value == meant.value:
        other = case.order() if verb == "cancel" else order
        slip = case.wish(verb, other)
    request = case.say(phrases.CHANGED_MIND, wish=slip.words, value=meant.value)
    return Plan(request, meant.calls)


def _like_order(case: Case) -> Plan:
    order = case.order("pending")
    others = [o for o in case.orders() if o is not order]
    verb = case.pick(("payment", "address"))
    field = {"payment": "payment_id", "address": "street"}[verb]
    other = next((o for o in others if o[field] != order[field]), None)
    if other is None:  # both of the other orders are paid as this one
        verb, field, other = "address", "street", others[0]
    copied = {"payment": other["payment_id"], "street": other["street"]}
    request = case.say(phrases.LIKE_ORDER[verb], order=order["order_id"], other=other["order_id"])
    gold = case.wish(verb, order, **copied)
    looked = (get_order(order["order_id"]), get_order(other["order_id"]))
    return Plan(request, (*looked, gold.write))


def _other_owner(case: Case) -> Plan:
    owner = next(
        user
        for user in case.tables["users"].values()
        if user is not case.user and len(user["orders"]) > 1
    )
    wish = Case(case.tables, owner, case.chance, case.words).feasible()
    request = case.say(phrases.MOODS, wish=wish.words)
    return Plan(request, wish.calls[:1], refused=True)


def _handover(case: Case) -> Plan:
    if case.chance.random() < 0.25:
        wish = case.feasible()
        return Plan(case.say(phrases.HANDOVER, wish=wish.words), wish.calls)
    wish = case.hopeless()
    order_id = {"order_id": wish.write.arguments["order_id"]}
    transfer = Action(name="transfer_to_human", arguments=order_id)
    return Plan(case.say(phrases.HANDOVER, wish=wish.words), (wish.calls[0], transfer))


PLAIN: Final[Mapping[str, Kind[Case, Plan]]] = {
    "cancel": Kind("cancel a pending order", _plain("cancel")),
    "return": Kind("return an item of a delivered order", _plain("return")),
    "exchange": Kind("exchange an item for another colour", _plain("exchange")),
    "payment": Kind("charge a pending order to another payment", _plain("payment")),
    "address": Kind("send a pending order to another street", _plain("address")),
    "ineligible": Kind("refuse what the status of the order forbids", _ineligible),
}
HARDER: Final[Mapping[str, Kind[Case, Plan]]] = {
    "two_writes": Kind("make two changes to one order, each confirmed", _two_writes),
    "cond_status": Kind("cancel or return, whichever the status allows", _cond_status),
    "fallback": Kind("exchange for the second choice where the first is not in stock", _fallback),
    "unavailable": Kind("refuse an exchange for a colour that is not in stock", _unavailable),
    "refund": Kind("refund to the gift card, but not to another card", _refund),
    "compound": Kind("fulfil two wishes about two orders", _compound),
    "unknown_order": Kind("find the order that an item is in", _unknown_order),
    "one_order": Kind("find the only order of a customer who does not name it", _one_order),
    "question": Kind("answer a question about an order and change nothing", _question),
    "followup": Kind("answer a question, then fulfil the wish that follows", _followup),
    "all_but": Kind("return the item that the customer does not name", _all_but),
    "gift_card": Kind("look up the gift card that is to be used", _gift_card),
    "changed_mind": Kind("take the last word of a customer who corrects a slip", _change_of_mind),
    "like_order": Kind("copy the payment or street of another order", _like_order),
    "other_owner": Kind("refuse to change an order of somebody else", _other_owner),
    "handover": Kind("hand over to a person where the wish is not possible", _handover),
}
KINDS: Final[Mapping[str, Kind[Case, Plan]]] = {**PLAIN, **HARDER}
