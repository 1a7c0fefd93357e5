"""One customer of an airline database, with helpers from which the kinds of task build tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from envs.airline.database import LAST_DAY, TODAY, date
from envs.airline.policy import BASIC, GONE, can_cancel, count_extra_bags, free_bags
from envs.airline.tools import (
    AVAILABLE,
    CANCELLED,
    CERTIFICATE,
    CREDIT_CARD,
    GIFT_CARD,
    AirlineTools,
)
from envs.database import Database, Record
from envs.task import Answer, Source
from envs.tau2.case import CustomerCase, action
from envs.tau2.customer import UnfitCustomer
from events.messages import Action

METHODS: Final[Mapping[str, str]] = {
    CREDIT_CARD: "my credit card",
    GIFT_CARD: "my gift card",
    CERTIFICATE: "my travel certificate",
}
"""Source of a payment method -> the customer's words for it; at most one method has each source."""


class Case(CustomerCase):
    """One customer, and the random generator that draws the customer's wishes."""

    def __init__(
        self, database: Database, user: Record, chance: Random, words: Random | None = None
    ) -> None:
        super().__init__(database, user, chance, words)
        self.tools = AirlineTools(database)
        """Tools for looking up only."""

    def own(self) -> list[Record]:
        """Return the customer's reservations, in the order of the user record."""
        return [self.database["reservations"][own] for own in self.user["reservations"]]

    def find(self, fits: Callable[[Record], bool]) -> Record | None:
        """Return a random reservation of the customer for which `fits` is true, or None."""
        return next((candidate for candidate in self.shuffle(self.own()) if fits(candidate)), None)

    def reservation(self, fits: Callable[[Record], bool]) -> Record:
        """Return a random reservation of the customer that fits. Raise UnfitCustomer if none
        does."""
        if (reservation := self.find(fits)) is None:
            raise UnfitCustomer
        return reservation

    def statuses(self, reservation: Record) -> list[str]:
        """Return the status of each flight of a reservation."""
        flights = reservation["flights"]
        return [self.tools.get_flight_status(f["flight_number"], f["date"]) for f in flights]

    def is_underway(self, reservation: Record) -> bool:
        """Return whether at least one flight of the reservation has left."""
        return not GONE.isdisjoint(self.statuses(reservation))

    def open(self, reservation: Record) -> bool:
        """Return whether no flight of the reservation has left or is cancelled."""
        return {*self.statuses(reservation)}.isdisjoint(GONE | {CANCELLED})

    def can_cancel(self, reservation: Record, insured_reason: bool = False) -> bool:
        """Return whether the policy allows to cancel the reservation. `insured_reason`: whether the
        customer's reason is one that an insurance covers."""
        return can_cancel(reservation, self.statuses(reservation), insured_reason)

    def methods(self, *sources: str) -> list[Record]:
        """Return the customer's payment methods of the given sources."""
        methods = self.user["payment_methods"].values()
        return [method for method in methods if method["source"] in sources]

    @property
    def credit_card(self) -> Record:
        """The customer's credit card."""
        return self.methods(CREDIT_CARD)[0]

    @property
    def gift_card(self) -> Record:
        """The customer's gift card."""
        return self.methods(GIFT_CARD)[0]

    def payer(self, amount: int) -> Record:
        """Return a random credit card or gift card that can pay `amount` dollars."""
        methods = self.methods(CREDIT_CARD, GIFT_CARD)
        return self.chance.choice([m for m in methods if m.get("amount", amount) >= amount])

    def count_extra_bags(self, cabin: str, passengers: int, bags: int) -> int:
        """Return how many of `bags` checked bags this customer must pay for."""
        return count_extra_bags(self.user["membership"], cabin, passengers, bags)

    def free_bags(self, cabin: str, passengers: int) -> int:
        """Return how many checked bags are free for all passengers together."""
        return passengers * free_bags(self.user["membership"], cabin)

    def party(self, most: int = 3) -> list[Record]:
        """Return the customer and a random number of saved passengers, `most` people at most."""
        me = {**self.user["name"], "dob": self.user["dob"]}
        return [me, *self.user["saved_passengers"]][: self.chance.randrange(1, most + 1)]

    def draw_rest(self) -> int:
        """Return a random sum in dollars by which the customer's budget exceeds the sum on record.
        The task asks for this difference, so reciting the record is no right answer."""
        return self.chance.randrange(2_000, 10_000)

    def days(self, first: int = TODAY + 1, last: int = LAST_DAY) -> list[str]:
        """Return the days of May from `first` to `last`, shuffled; by default all that are
        bookable."""
        return self.shuffle(map(date, range(first, last + 1)))

    def routes(self) -> list[tuple[str, str]]:
        """Return pairs of airports that have a direct flight, shuffled."""
        flights = self.database["flights"].values()
        return self.shuffle(
            sorted({(flight["origin"], flight["destination"]) for flight in flights})
        )

    def offers(
        self, origin: str, destination: str, day: str, cabin: str, seats: int
    ) -> list[Record]:
        """Return direct flights on `day` with at least `seats` free seats, by departure."""
        flights = self.tools.search_direct_flight(origin, destination, day)
        return sorted(
            (
                {**flight, "date": day}
                for flight in flights
                if flight["available_seats"][cabin] >= seats
            ),
            key=departure,
        )

    def trips(self, cabin: str, seats: int) -> Iterator[list[Record]]:
        """Yield the offers of each route and day that has some, in random order."""
        for origin, destination in self.routes():
            for day in self.days()[:4]:
                offers = self.offers(origin, destination, day, cabin, seats)
                if offers:
                    yield offers

    def replacements(self, reservation: Record, place: int, cabin: str) -> list[Record]:
        """Return flights on other days that can replace flight number `place` of a reservation,
        shuffled. The order of the reservation's flights stays right."""
        flights, seats = reservation["flights"], len(reservation["passengers"])
        own = flights[place]
        first = int(flights[place - 1]["date"][-2:]) + 1 if place else TODAY + 1
        last = int(flights[place + 1]["date"][-2:]) - 1 if place + 1 < len(flights) else LAST_DAY
        days = (day for day in self.days(max(first, TODAY + 1), last) if day != own["date"])
        choices = (self.offers(own["origin"], own["destination"], d, cabin, seats) for d in days)
        return self.shuffle(offer for offers in choices for offer in offers)

    def rebook(self, reservation: Record, cabin: str) -> list[Record] | None:
        """Return the flights in another cabin at today's price; None if one cannot be booked."""
        seats, changed = len(reservation["passengers"]), []
        for flight in reservation["flights"]:
            day = self.database["flights"][flight["flight_number"]]["dates"][flight["date"]]
            if day["status"] != AVAILABLE or day["available_seats"][cabin] < seats:
                return None
            changed.append({**flight, "price": day["prices"][cabin]})
        return changed


def departure(flight: Record) -> str:
    """Return the scheduled departure time of a flight, as text."""
    return str(flight["scheduled_departure_time_est"])


def difference(reservation: Record, flights: Sequence[Record]) -> int:
    """Return how many dollars more a reservation costs with these flights than now."""
    fares = sum(flight["price"] for flight in flights) - sum(
        f["price"] for f in reservation["flights"]
    )
    return int(fares * len(reservation["passengers"]))


def sum_payments(reservation: Record) -> int:
    """Return the total of a reservation's payments in dollars."""
    return sum(payment["amount"] for payment in reservation["payment_history"])


def find_payments(reservation: Record) -> Source:
    """Return the source of an output about a reservation's payments."""
    return Source.of(reservation, "reservation_id", "payment_history")


def is_basic(reservation: Record) -> bool:
    """Return whether the reservation is in basic economy, so that its flights cannot be changed."""
    return bool(reservation["cabin"] == BASIC)


def subtract(whole: int, part: int) -> Action:
    """Return the `calculate` call for `whole` - `part`."""
    return action("calculate", expression=f"{whole} - {part}")


def get_reservation(reservation: Record) -> Action:
    """Return the call that looks up a reservation."""
    return action("get_reservation_details", reservation_id=reservation["reservation_id"])


def get_statuses(reservation: Record) -> tuple[Action, ...]:
    """Return the calls that look up a reservation and then the status of each of its flights."""
    flights = reservation["flights"]
    return (get_reservation(reservation), *(get_status(flight) for flight in flights))


def get_status(flight: Record) -> Action:
    """Return the call that looks up the status of a flight."""
    return action("get_flight_status", **info(flight))


def search(flight: Record) -> Action:
    """Return the call that searches the direct flights among which `flight` is."""
    return action(
        "search_direct_flight",
        origin=flight["origin"],
        destination=flight["destination"],
        date=flight["date"],
    )


def cancel(reservation: Record) -> Action:
    """Return the call that cancels a reservation."""
    return action("cancel_reservation", reservation_id=reservation["reservation_id"])


def update_flights(
    reservation: Record, cabin: str, flights: Sequence[Record], method: Record
) -> Action:
    """Return the call that sets a reservation's cabin and flights."""
    return action(
        "update_reservation_flights",
        reservation_id=reservation["reservation_id"],
        cabin=cabin,
        flights=[info(flight) for flight in flights],
        payment_id=method["id"],
    )


def info(flight: Record) -> dict[str, str]:
    """Return the number and date of a flight, which identify it."""
    return {"flight_number": flight["flight_number"], "date": flight["date"]}


def format_cabin(cabin: str) -> str:
    """Return the name of a cabin as a customer says it."""
    return cabin.replace("_", " ")


def describe_flight(flight: Record) -> str:
    """Describe a flight by its date and departure time, as a customer would."""
    return f"the flight of {flight['date']} that leaves at {departure(flight)[:5]}"


def format_count(number: int, thing: str) -> str:
    """Return a count with its noun, such as `no bags` or `1 bag`."""
    return f"{number or 'no'} {thing}{'' if number == 1 else 's'}"


def format_name(person: Record) -> str:
    """Return a person's full name."""
    return f"{person['first_name']} {person['last_name']}"


def because(reason: str) -> tuple[Answer, ...]:
    """Return the customer's answer to questions about the reason."""
    return (Answer(asks=r"\breason\b|\bwhy\b", says=reason),)
