"""Kinds of task in which the customer changes or cancels a reservation."""

from collections.abc import Sequence
from typing import Final

from envs.airline import database, phrases
from envs.airline.case import (
    METHODS,
    Case,
    because,
    cancel,
    describe_flight,
    difference,
    format_cabin,
    format_count,
    format_name,
    get_reservation,
    get_statuses,
    is_basic,
    search,
    update_flights,
)
from envs.airline.policy import BUSINESS, CABINS, ECONOMY
from envs.airline.tools import BAG_PRICE, CANCELLED
from envs.database import Record
from envs.tau2.case import Plan, action
from envs.tau2.customer import UnfitCustomer
from events.messages import Action

PLANS: Final = "My plans have changed."
ILLNESS: Final = "I have fallen ill and cannot fly."
BY_AIRLINE: Final = "You have cancelled one of its flights."


def cancellation(case: Case) -> Plan:
    """Plan a task: the customer cancels a reservation that the policy allows to cancel."""
    reservation = case.reservation(
        lambda candidate: case.can_cancel(candidate, insured_reason=True)
    )
    return _plan_cancellation(case, reservation)


def more_bags(case: Case) -> Plan:
    """Plan a task: the customer adds checked bags to a reservation."""
    return _plan_more_bags(case, case.reservation(case.open))


def other_cabin(case: Case) -> Plan:
    """Plan a task: the customer changes the cabin and pays or gets the price difference."""
    reservation = case.reservation(case.open)
    cabins = case.shuffle(cabin for cabin in CABINS if cabin != reservation["cabin"])
    flights = case.rebook(reservation, cabins[0])
    if flights is None:
        raise UnfitCustomer
    method = case.payer(difference(reservation, flights))
    return Plan(
        case.say(
            phrases.CHANGE_CABIN,
            reservation=reservation["reservation_id"],
            cabin=format_cabin(cabins[0]),
            pays=METHODS[method["source"]],
        ),
        (*get_statuses(reservation), update_flights(reservation, cabins[0], flights, method)),
    )


def other_passenger(case: Case) -> Plan:
    """Plan a task: the customer replaces one passenger of a reservation by another person."""
    reservation = case.reservation(case.open)
    people = list(reservation["passengers"])
    place = case.chance.randrange(len(people))
    leaves, comes = people[place], database.person(case.chance)
    return Plan(
        case.say(
            phrases.CHANGE_PASSENGER,
            reservation=reservation["reservation_id"],
            leaves=format_name(leaves),
            comes=format_name(comes),
            born=comes["dob"],
        ),
        (
            get_reservation(reservation),
            action(
                "update_reservation_passengers",
                reservation_id=reservation["reservation_id"],
                passengers=[*people[:place], comes, *people[place + 1 :]],
            ),
        ),
    )


def other_flight(case: Case) -> Plan:
    """Plan a task: the customer moves a reservation's last flight to another day."""
    reservation = case.reservation(
        lambda candidate: case.open(candidate) and not is_basic(candidate)
    )
    cabin, place = reservation["cabin"], len(reservation["flights"]) - 1
    offers = case.replacements(reservation, place, cabin)
    if not offers:
        raise UnfitCustomer
    new = offers[0]
    flights = _with(reservation["flights"], place, {**new, "price": new["prices"][cabin]})
    method = case.payer(difference(reservation, flights))
    return Plan(
        case.say(
            phrases.CHANGE_FLIGHT,
            reservation=reservation["reservation_id"],
            origin=new["origin"],
            destination=new["destination"],
            flight=describe_flight(new),
            pays=METHODS[method["source"]],
        ),
        (
            get_reservation(reservation),
            search(new),
            update_flights(reservation, cabin, flights, method),
        ),
    )


def two_requests(case: Case) -> Plan:
    """Plan a task: the customer cancels one reservation and adds bags to another."""
    first = case.find(lambda candidate: case.can_cancel(candidate, insured_reason=True))
    second = case.find(lambda candidate: candidate is not first and case.open(candidate))
    if first is None or second is None:
        raise UnfitCustomer
    cancelled, added = _plan_cancellation(case, first), _plan_more_bags(case, second)
    return Plan(
        case.say(phrases.TWO_REQUESTS, first=cancelled.request, second=added.request),
        cancelled.calls + added.calls,
        answers=cancelled.answers + added.answers,
    )


def upgrade_then_change(case: Case) -> Plan:
    """Plan a task: the customer upgrades from basic economy and then changes the last flight."""
    reservation = case.reservation(
        lambda candidate: (
            case.open(candidate)
            and is_basic(candidate)
            and case.rebook(candidate, ECONOMY) is not None
        )
    )
    same = reservation["flights"]
    place = len(same) - 1
    offers = case.replacements(reservation, place, ECONOMY)
    if not offers:
        raise UnfitCustomer
    card, new = case.credit_card, offers[0]
    return Plan(
        case.say(
            phrases.UPGRADE_THEN_CHANGE,
            flight=describe_flight(new),
            origin=new["origin"],
            destination=new["destination"],
            reservation=reservation["reservation_id"],
        ),
        (
            *get_statuses(reservation),
            search(new),
            update_flights(reservation, ECONOMY, same, card),
            update_flights(reservation, ECONOMY, _with(same, place, new), card),
        ),
    )


def price_condition(case: Case) -> Plan:
    """Plan a task: the customer takes business class up to a price limit, and otherwise one bag."""
    reservation = case.reservation(
        lambda candidate: case.open(candidate) and candidate["cabin"] != BUSINESS
    )
    flights = case.rebook(reservation, BUSINESS)
    if flights is None:
        raise UnfitCustomer
    price, card = difference(reservation, flights), case.credit_card
    affordable = case.chance.random() < 0.5
    limit = price + (1 if affordable else -1) * case.chance.randrange(5, 60)
    if limit <= 0:
        raise UnfitCustomer
    return Plan(
        case.say(
            phrases.PRICE_CONDITION, reservation=reservation["reservation_id"], limit=str(limit)
        ),
        (
            *get_statuses(reservation),
            *map(search, flights),
            update_flights(reservation, BUSINESS, flights, card)
            if affordable
            else _bags(case, reservation, 1, card),
        ),
    )


def find_reservation(case: Case) -> Plan:
    """Plan a task: the customer adds bags to a reservation named by its journey, not by its id."""
    reservation = case.reservation(case.open)
    own = case.own()
    journeys = [(item["origin"], item["destination"], item["flights"][0]["date"]) for item in own]
    place = own.index(reservation)
    if journeys.count(journeys[place]) > 1:
        raise UnfitCustomer
    origin, destination, day = journeys[place]
    bags = case.chance.randrange(1, 4)
    return Plan(
        case.say(
            phrases.FIND_RESERVATION,
            origin=origin,
            destination=destination,
            day=day,
            bags=format_count(bags, "checked bag"),
        ),
        (
            *map(get_reservation, own[: place + 1]),
            _bags(case, reservation, bags, case.credit_card),
        ),
    )


def cancel_all(case: Case) -> Plan:
    """Plan a task: the customer cancels all reservations that the policy allows to cancel."""
    own = case.own()
    allowed = [reservation for reservation in own if case.can_cancel(reservation)]
    if len(allowed) in (0, len(own)) or any(case.is_underway(reservation) for reservation in own):
        raise UnfitCustomer
    return Plan(
        case.say(phrases.CANCEL_ALL, reason=PLANS),
        (
            *(call for reservation in own for call in get_statuses(reservation)),
            *map(cancel, allowed),
        ),
        answers=because(PLANS),
    )


def move_flight(case: Case, reservation: Record, place: int) -> Action:
    """Return the call that moves flight `place` to another day by credit card. Raise UnfitCustomer
    without offers."""
    cabin = reservation["cabin"]
    offers = case.replacements(reservation, place, cabin)
    if not offers:
        raise UnfitCustomer
    flights = _with(reservation["flights"], place, offers[0])
    return update_flights(reservation, cabin, flights, case.credit_card)


def _plan_cancellation(case: Case, reservation: Record) -> Plan:
    reason = PLANS if case.can_cancel(reservation) else ILLNESS
    if CANCELLED in case.statuses(reservation):
        reason = BY_AIRLINE
    return Plan(
        case.say(phrases.CANCEL, reservation=reservation["reservation_id"], reason=reason),
        (*get_statuses(reservation), cancel(reservation)),
        answers=because(reason),
    )


def _plan_more_bags(case: Case, reservation: Record) -> Plan:
    bags = case.chance.randrange(1, 4)
    method = case.payer(BAG_PRICE * bags)
    return Plan(
        case.say(
            phrases.ADD_BAGS,
            bags=format_count(bags, "checked bag"),
            reservation=reservation["reservation_id"],
            pays=METHODS[method["source"]],
        ),
        (get_reservation(reservation), _bags(case, reservation, bags, method)),
    )


def _bags(case: Case, reservation: Record, more: int, method: Record) -> Action:
    bags = reservation["total_baggages"] + more
    people = len(reservation["passengers"])
    return action(
        "update_reservation_baggages",
        reservation_id=reservation["reservation_id"],
        total_baggages=bags,
        nonfree_baggages=case.count_extra_bags(reservation["cabin"], people, bags),
        payment_id=method["id"],
    )


def _with(flights: Sequence[Record], place: int, new: Record) -> list[Record]:
    return [*flights[:place], new, *flights[place + 1 :]]
