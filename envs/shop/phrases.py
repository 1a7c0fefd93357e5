"""Customers' sentences in shop, in several wordings. A wish is the part after "please" or "I want
to". It names its order by a phrase of its own, because some customers do not know the number. Kinds
that are more than one plain wish have sentences into which wishes are filled."""

from collections.abc import Mapping
from typing import Final

Phrases = tuple[str, ...]

OPENINGS: Final[Phrases] = (
    "Hello! {identity} {request}",
    "Hello. {request} {identity}",
    "Hi! {identity} {request}",
    "Hi. {request} {identity}",
)
IDENTITIES: Final[Phrases] = (
    "I am {name}, my zip is {zip}.",
    "My name is {name}, zip code {zip}.",
    "This is {name} and my zip is {zip}.",
    "It is {name}, my zip is {zip}.",
)
MOODS: Final[Phrases] = (
    "Please let me {wish}.",
    "I want to {wish}.",
    "I would like to {wish}.",
    "I need to {wish}.",
)
ASSENTS: Final[Phrases] = ("Yes.", "Yes, please.", "Yes, go ahead.")

NUMBERED: Final[Phrases] = ("the order {order}", "my order {order}")
DESCRIBED: Final[Phrases] = ("my order with the {item}", "the order with the {item}")

WISHES: Final[Mapping[str, Phrases]] = {
    "cancel": ("cancel {which}", "call off {which}", "withdraw {which}"),
    "return": (
        "return the {item} of {which}",
        "send back the {item} from {which}",
        "give back the {item} of {which}",
    ),
    "exchange": (
        "exchange the {item} of {which} for a {colour} one",
        "swap the {item} from {which} for a {colour} one",
        "change the {item} of {which} to a {colour} one",
    ),
    "payment": (
        "pay {which} with {payment}",
        "use {payment} for {which}",
        "change the payment of {which} to {payment}",
    ),
    "address": (
        "change the address of {which} to {street}",
        "have {which} sent to {street}",
        "move {which} to {street}",
    ),
}

TWO_WRITES: Final[Phrases] = (
    "Please pay order {order} with {payment} and send it to {street}.",
    "I want order {order} sent to {street} and paid with {payment}.",
    "Change the address of order {order} to {street} and its payment to {payment}.",
    "Please use {payment} for order {order}, and send it to {street} too.",
)
COND_STATUS: Final[Phrases] = (
    "Please cancel order {order}, or if it is delivered, return the {item}.",
    "If order {order} is still pending, cancel it. If it is delivered, return the {item}.",
    "I want to call off order {order}. If you delivered it, I send back the {item}.",
    "Cancel order {order} if it is pending, else give back the {item}.",
)
FALLBACK: Final[Phrases] = (
    "Please {wish}, or {other} if {colour} is not in stock.",
    "I want to {wish}. If {colour} is out of stock, take {other}.",
    "I would like to {wish}. No {colour}? Then {other}.",
)
REFUND: Final[Phrases] = (
    "Please {wish} and refund it to {payment}.",
    "I want to {wish}, with the money to {payment}.",
    "I would like to {wish} and get the refund to {payment}.",
)
COMPOUND: Final[Phrases] = (
    "Please {first}, and {second}.",
    "I want to {first} and {second}.",
    "Two things: {first}, and {second}.",
    "I have to {first}. Also {second}.",
)
SHORTLY: Final[Phrases] = ("order {order}", "{order}")
UNKNOWN_ORDER: Final[Phrases] = (
    "I do not know the number, but please {wish}.",
    "I want to {wish}. I have no number.",
    "Please {wish}. Sorry, I lost the number.",
)
ONE_ORDER: Final[Phrases] = (
    "I have just one order. Please {wish}.",
    "Please {wish}. It is the only one I have.",
    "I want to {wish}, the only one I have.",
)
SINGLE: Final[Phrases] = ("my order", "my only order")
SOME: Final[Phrases] = ("one of my orders", "an order")

QUESTIONS: Final[Mapping[str, Phrases]] = {
    "status": (
        "What is the status of order {order}?",
        "Can you tell me the status of order {order}?",
        "I want to know the status of my order {order}.",
    ),
    "payment_id": (
        "What is the payment of order {order}?",
        "Can you tell me the payment of my order {order}?",
        "I want to know the payment of order {order}.",
    ),
    "street": (
        "What is the address of order {order}?",
        "Can you tell me the address of my order {order}?",
        "I want to know the address of order {order}.",
    ),
}
THANKS: Final[Phrases] = ("Thank you, that is all.", "Good, that is all.", "Thank you.")
FOLLOWUPS: Final[Phrases] = (
    "Then please {wish}.",
    "Good. Please {wish}.",
    "Then I want to {wish}.",
)
THIS_ORDER: Final[Phrases] = ("this order", "that order")

ALL_BUT: Final[Phrases] = (
    "Please take back all of order {order} but the {item}.",
    "I want to return order {order}, but I keep the {item}.",
    "I keep the {item} of order {order}. Please return the other item.",
)
GIFT_CARD: Final[Mapping[str, Phrases]] = {
    "payment": (
        "Please pay order {order} with my gift card.",
        "I want to use my gift card for order {order}.",
        "Change the payment of order {order} to my gift card.",
    ),
    "return": (
        "Please {wish} and refund it to my gift card.",
        "I want to {wish}, with the money to my gift card.",
        "I would like to {wish} and get the refund to my gift card.",
    ),
}
CHANGED_MIND: Final[Phrases] = (
    "Please {wish}. No, sorry: {value}.",
    "I want to {wish}. Sorry, I mean {value}.",
    "I need to {wish}, no, {value}.",
)
LIKE_ORDER: Final[Mapping[str, Phrases]] = {
    "payment": (
        "Please pay order {order} like order {other}.",
        "Change the payment of order {order} to that of order {other}.",
        "Order {order} gets the same payment as order {other}.",
    ),
    "address": (
        "Please send order {order} to the same address as order {other}.",
        "Change the address of order {order} to that of order {other}.",
        "Order {order} goes to the same address as order {other}.",
    ),
}
HANDOVER: Final[Phrases] = (
    "Please {wish}. If it is not possible, I want a person.",
    "I want to {wish}, or talk to a person if it is not possible.",
    "If it is possible, {wish}. Else I want to talk to a person.",
)
