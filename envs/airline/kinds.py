"""The kinds of task: each capability with its demand and the function that draws its tasks.

Such a function takes a case and raises UnfitCustomer if the case's customer does not fit; then the
next customer is tried. Every kind changes something or demands an output, so an idle agent fails.
"""

from collections.abc import Mapping
from typing import Final

from envs.airline import bookings, changes, decisions
from envs.airline.case import Case
from envs.task import Kind
from envs.tau2.case import Plan

KINDS: Final[Mapping[str, Kind[Case, Plan]]] = {
    "cancel": Kind("Cancel a reservation that may be cancelled.", changes.cancellation),
    "add_bags": Kind("Add bags, of which the membership pays some.", changes.more_bags),
    "change_cabin": Kind("Change the cabin on the same flights.", changes.other_cabin),
    "change_passenger": Kind("Replace one passenger, keep the others.", changes.other_passenger),
    "change_flight": Kind("Move one flight to another day.", changes.other_flight),
    "book": Kind("Book one flight.", bookings.one_way),
    "book_round_trip": Kind("Book flights there and back.", bookings.round_trip),
    "book_bags": Kind("Book with more bags than are free.", bookings.with_bags),
    "book_cheapest": Kind("Compare two days and book the cheapest flight.", bookings.cheapest),
    "book_one_stop": Kind("Find and book the cheapest connection.", bookings.one_stop),
    "split_payment": Kind("Pay with a certificate and a card.", bookings.split_payment),
    "second_choice": Kind("Another flight where the first is full.", bookings.second_choice),
    "two_requests": Kind("A cancellation, and bags elsewhere.", changes.two_requests),
    "upgrade_then_change": Kind(
        "Change the cabin so that flights can.", changes.upgrade_then_change
    ),
    "price_condition": Kind("Compare a price with a limit, then act.", changes.price_condition),
    "find_reservation": Kind("Find a reservation by its journey.", changes.find_reservation),
    "cancel_all": Kind("Cancel those that may be cancelled, no other.", changes.cancel_all),
    "cancelled_flight": Kind("Compensate a cancelled flight.", decisions.compensate_cancellation),
    "delayed_flight": Kind("Change, then compensate a delay.", decisions.compensate_delay),
    "refused_compensation": Kind(
        "Refuse a certificate by rule, and cancel.", decisions.refuse_compensation
    ),
    "refused_insurance": Kind(
        "Refuse a later insurance, and add a bag instead.", decisions.refuse_insurance
    ),
    "refused_cancellation": Kind(
        "Refuse to cancel by rule, and answer instead.", decisions.refuse_cancellation
    ),
    "refused_change": Kind("Refuse by cabin, and answer instead.", decisions.refuse_change),
    "refused_passenger": Kind(
        "Refuse another passenger, and answer instead.", decisions.refuse_passenger
    ),
    "hand_over": Kind("Leave to a person what rules forbid.", decisions.hand_over),
    "question_bags": Kind("Tell what a reservation costs with more bags.", decisions.price_of_bags),
    "question_total": Kind("Add up what several reservations cost.", decisions.price_of_all),
}
