"""Kinds of task in which the customer books flights."""

from collections.abc import Sequence
from dataclasses import dataclass

from envs.airline import phrases
from envs.airline.case import (
    METHODS,
    Case,
    departure,
    describe_flight,
    format_cabin,
    format_count,
    format_name,
    info,
    search,
)
from envs.airline.database import LAST_DAY
from envs.airline.policy import BUSINESS, CABINS, ECONOMY
from envs.airline.tools import BAG_PRICE, CERTIFICATE, INSURANCE_PRICE
from envs.database import Record
from envs.task import Answer
from envs.tau2.case import Plan, action
from envs.tau2.customer import UnfitCustomer
from events.messages import Action


@dataclass(frozen=True, slots=True)
class Itinerary:
    """The flights, passengers, cabin, bags and insurance of a booking, without its payment."""

    flights: Sequence[Record]
    """Offers of flights, in the order in which they are flown."""
    cabin: str
    people: Sequence[Record]
    bags: int = 0
    paid_bags: int = 0
    insured: bool = False

    @property
    def price(self) -> int:
        """Price of the whole booking in dollars: fares, insurance and bags."""
        fares = sum(flight["prices"][self.cabin] for flight in self.flights)
        each = fares + INSURANCE_PRICE * self.insured
        return int(each * len(self.people) + BAG_PRICE * self.paid_bags)

    def describe(self, case: Case) -> str:
        """Return cabin, passengers, bags and insurance in the customer's words."""
        others = [f"{format_name(person)} (born {person['dob']})" for person in self.people[1:]]
        return case.say(
            phrases.DETAILS,
            cabin=format_cabin(self.cabin),
            people=" and ".join(["me", *others]),
            bags=format_count(self.bags, "checked bag"),
            insured="with" if self.insured else "without",
        )

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The customer's answers to separate questions about insurance and about bags."""
        wanted = "I want" if self.insured else "I do not want"
        return (
            _about("insurance", f"{wanted} travel insurance."),
            _about("bag|luggage", f"We have {format_count(self.bags, 'checked bag')} in all."),
        )

    def build_action(self, case: Case, *payments: tuple[Record, int]) -> Action:
        """Return the call that books it, with pairs of payment method and dollars."""
        there = self.flights[0]
        back = len(self.flights) > 1 and self.flights[-1]["destination"] == there["origin"]
        return action(
            "book_reservation",
            user_id=case.user["user_id"],
            origin=there["origin"],
            destination=self.flights[0 if back else -1]["destination"],
            flight_type="round_trip" if back else "one_way",
            cabin=self.cabin,
            flights=[info(flight) for flight in self.flights],
            passengers=[dict(person) for person in self.people],
            payment_methods=[
                {"payment_id": method["id"], "amount": amount} for method, amount in payments
            ],
            total_baggages=self.bags,
            nonfree_baggages=self.paid_bags,
            insurance="yes" if self.insured else "no",
        )


def one_way(case: Case) -> Plan:
    """Plan a task: the customer books one flight and has only free bags."""
    booking = _draw_itinerary(case, paid_bags=0)
    method = case.payer(booking.price)
    return _one_way(case, booking, (method, booking.price), pays=METHODS[method["source"]])


def with_bags(case: Case) -> Plan:
    """Plan a task: the customer books one flight with one or two bags more than are free."""
    booking = _draw_itinerary(case, paid_bags=case.chance.randrange(1, 3))
    method = case.payer(booking.price)
    return _one_way(case, booking, (method, booking.price), pays=METHODS[method["source"]])


def split_payment(case: Case) -> Plan:
    """Plan a task: the customer pays one flight with a certificate, and the rest by card."""
    booking = _draw_itinerary(case, paid_bags=0)
    certificates = case.methods(CERTIFICATE)
    if not certificates or certificates[0]["amount"] >= booking.price:
        raise UnfitCustomer
    amount = int(certificates[0]["amount"])
    return _one_way(
        case,
        booking,
        (certificates[0], amount),
        (case.credit_card, booking.price - amount),
        pays="all of my travel certificate, and my credit card for the rest",
    )


def round_trip(case: Case) -> Plan:
    """Plan a task: the customer books flights there and back and pays with one payment method."""
    out = _draw_itinerary(case, paid_bags=0)
    there = out.flights[0]
    for day in case.days(int(there["date"][-2:]) + 1, LAST_DAY):
        offers = case.offers(there["destination"], there["origin"], day, out.cabin, len(out.people))
        if offers:
            break
    else:
        raise UnfitCustomer
    back = case.chance.choice(offers)
    both = Itinerary([there, back], out.cabin, out.people, out.bags, 0, out.insured)
    method = case.payer(both.price)
    return Plan(
        case.say(
            phrases.ROUND_TRIP,
            origin=there["origin"],
            destination=there["destination"],
            there=describe_flight(there),
            back=describe_flight(back),
            details=both.describe(case),
            pays=METHODS[method["source"]],
        ),
        (search(there), search(back), both.build_action(case, (method, both.price))),
        answers=both.answers,
    )


def cheapest(case: Case) -> Plan:
    """Plan a task: the customer books the cheapest direct flight on either of two days."""
    cabin, people = case.chance.choice(CABINS), case.party(most=2)
    for origin, destination in case.routes():
        days = sorted(case.days()[:2])
        offers = [
            flight
            for day in days
            for flight in case.offers(origin, destination, day, cabin, len(people))
        ]
        offers.sort(key=lambda flight: int(flight["prices"][cabin]))
        if len(offers) > 2 and offers[0]["prices"][cabin] < offers[1]["prices"][cabin]:
            break
    else:
        raise UnfitCustomer
    booking = Itinerary(offers[:1], cabin, people)
    searched = (search({**offers[0], "date": day}) for day in days)
    return Plan(
        case.say(
            phrases.CHEAPEST,
            origin=origin,
            destination=destination,
            first=days[0],
            second=days[1],
            details=booking.describe(case),
        ),
        (*searched, booking.build_action(case, (case.credit_card, booking.price))),
        answers=booking.answers,
    )


def one_stop(case: Case) -> Plan:
    """Plan a task: the customer books the cheapest one-stop connection where none is direct."""
    direct = set(case.routes())
    airports = sorted({origin for origin, _ in direct})
    pairs = [(a, b) for a in airports for b in airports if a != b and (a, b) not in direct]
    for origin, destination in case.shuffle(pairs):
        day = case.days()[0]
        connections = [
            (sum(item["prices"][ECONOMY] for item in legs), legs)
            for legs in case.tools.search_onestop_flight(origin, destination, day)
            if all(item["available_seats"][ECONOMY] for item in legs)
        ]
        connections.sort(key=lambda item: item[0])
        if len(connections) > 1 and connections[0][0] < connections[1][0]:
            break
    else:
        raise UnfitCustomer
    booking = Itinerary(connections[0][1], ECONOMY, case.party(most=1))
    searched = {"origin": origin, "destination": destination, "date": day}
    method = case.payer(booking.price)
    return Plan(
        case.say(
            phrases.ONE_STOP,
            origin=origin,
            destination=destination,
            day=day,
            details=booking.describe(case),
            pays=METHODS[method["source"]],
        ),
        (
            action("search_direct_flight", **searched),
            action("search_onestop_flight", **searched),
            booking.build_action(case, (method, booking.price)),
        ),
        answers=booking.answers,
    )


def second_choice(case: Case) -> Plan:
    """Plan a task: the customer books a flight, or another one if its business class is full."""
    people, full = case.party(most=2), case.chance.random() < 0.6
    for offers in case.trips(ECONOMY, 0):
        seats = [flight["available_seats"][BUSINESS] >= len(people) for flight in offers]
        if len(offers) == 2 and seats in ([not full, True], [True, not full]):
            break
    else:
        raise UnfitCustomer
    if full:
        offers.sort(key=lambda flight: int(flight["available_seats"][BUSINESS]) >= len(people))
    booking = Itinerary(offers[1:] if full else offers[:1], BUSINESS, people)
    return Plan(
        case.say(
            phrases.SECOND_CHOICE,
            origin=offers[0]["origin"],
            destination=offers[0]["destination"],
            flight=describe_flight(offers[0]),
            details=booking.describe(case),
            other=departure(offers[1])[:5],
        ),
        (search(offers[0]), booking.build_action(case, (case.credit_card, booking.price))),
        answers=booking.answers,
    )


def _draw_itinerary(case: Case, paid_bags: int) -> Itinerary:
    cabin, people = case.chance.choice(CABINS), case.party()
    offers = next(case.trips(cabin, len(people)))
    free = case.free_bags(cabin, len(people))
    bags = free + paid_bags if paid_bags else case.chance.randrange(0, free + 1)
    return Itinerary(
        [case.chance.choice(offers)], cabin, people, bags, paid_bags, case.chance.random() < 0.4
    )


def _one_way(case: Case, booking: Itinerary, *payments: tuple[Record, int], pays: str) -> Plan:
    flight = booking.flights[0]
    return Plan(
        case.say(
            phrases.ONE_WAY,
            origin=flight["origin"],
            destination=flight["destination"],
            flight=describe_flight(flight),
            details=booking.describe(case),
            pays=pays,
        ),
        (search(flight), booking.build_action(case, *payments)),
        answers=booking.answers,
    )


def _about(topic: str, says: str) -> Answer:
    """Return a customer's answer to questions about `topic` that do not also ask for consent."""
    asked = rf"(?s)^(?!.*(\bconfirm|\bproceed|yes/no|go ahead)).*({topic})[^.?]*\?"
    return Answer(asks=asked, says=says)
