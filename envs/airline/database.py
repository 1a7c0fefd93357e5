"""Airline databases: their canonical form, and a generator of our own.

A generated database has sixty daily flights, 24 users and their 72 reservations. Seven airports are
connected by 15 routes. Each route is flown both ways, once before and once after three o'clock. The
other pairs of airports need a change of planes. Each level of membership has eight users. Together
they hold a reservation of every situation in every cabin (`_SITUATIONS`).

Guarantee: a generated database is canonical and depends only on its seed (in one version of this
file). None of its ids is one of tau2-bench's: flights are KTnnn (there HATnnn), users have 5 digits
(4), reservations 7 characters (6), payment methods 8 digits (7).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain, combinations
from random import Random
from typing import Any, Final, Literal

from pydantic import BaseModel

from envs.airline.policy import CABINS, MEMBERSHIPS, free_bags
from envs.airline.records import Flight, Reservation, User
from envs.airline.tools import (
    AIRPORTS,
    AVAILABLE,
    BAG_PRICE,
    CANCELLED,
    CREDIT_CARD,
    GIFT_CARD,
    INSURANCE_PRICE,
)
from envs.database import Database, Record, Tables

USERS_PER_MEMBERSHIP: Final = 8
RESERVATIONS_PER_USER: Final = 3
_KEPT: Final = 32
"""Number of generated databases that stay in memory, of some 1 MB each."""

TODAY: Final = 15
"""Today's day of May 2024. The time is three o'clock; flights scheduled earlier today have left."""
LAST_DAY: Final = 30
_FIRST_DAY: Final = 10
_TODAYS_HOUR: Final = 15

_AIRPORTS_SERVED: Final = 7
_ROUTES: Final = 15

Situation = Literal["recent", "old", "insured", "flown", "cancelled", "delayed"]
_SITUATIONS: Final[Sequence[Situation]] = (
    "recent",
    "old",
    "insured",
    "flown",
    "cancelled",
    "delayed",
)
"""recent: booked within the last day. flown: the first flight has landed. cancelled, delayed: the
status of the first flight. Only `insured` reservations have an insurance."""

_Departure = tuple[str, int]
"""The number of a flight, and a day of May."""

_FIRST_NAMES: Final = (
    "Anouk",
    "Bela",
    "Cosmo",
    "Dagny",
    "Emeka",
    "Freya",
    "Goran",
    "Hedda",
    "Ilse",
    "Jorge",
    "Kaito",
    "Lena",
    "Matti",
    "Nadia",
    "Oskar",
    "Petra",
    "Quinn",
    "Runa",
    "Soren",
    "Thea",
)
_LAST_NAMES: Final = (
    "Achterberg",
    "Bakke",
    "Castellan",
    "Drummond",
    "Eklund",
    "Fontaine",
    "Galloway",
    "Haugen",
    "Ibarra",
    "Jurado",
    "Kowalik",
    "Lindqvist",
    "Marchetti",
    "Novotny",
    "Okafor",
    "Pereira",
)
_STREETS: Final = ("Harbour Lane", "Mill Road", "Orchard Close", "Quarry Street", "Station Parade")
_PLACES: Final = (
    ("Tulsa", "OK", "74"),
    ("Fargo", "ND", "58"),
    ("Salem", "OR", "97"),
    ("Dayton", "OH", "45"),
    ("Macon", "GA", "31"),
)
"""City, state, and first digits of its zip codes."""

_FARES: Final = {"basic_economy": (50, 110), "economy": (120, 240), "business": (300, 600)}
"""Range of a flight's base price by cabin, in dollars. Each day's price is near the base price."""


def canonical(tables: Mapping[str, Any]) -> Tables:
    """Return the tables with each record's fields in the models' order and gift cards' amounts as
    floats. For another shape raise KeyError, AttributeError or ValidationError (a ValueError)."""
    return {
        "flights": _records(Flight, tables["flights"]),
        "users": _records(User, tables["users"]),
        "reservations": _records(Reservation, tables["reservations"]),
    }


def _records(model: type[BaseModel], records: Mapping[str, Any]) -> dict[str, Record]:
    return {key: model.model_validate(record).model_dump() for key, record in records.items()}


@lru_cache(maxsize=_KEPT)
def build_database(seed: int) -> Database:
    """Return the generated database for this seed. Callers share it, so fork it first."""
    return Database(_Generator(seed).tables())


def date(day: int) -> str:
    """Return a day of May 2024 as YYYY-MM-DD."""
    return f"2024-05-{day:02}"


@dataclass(frozen=True, slots=True)
class _Card:
    """Situation and cabin of a reservation that is to be generated."""

    situation: Situation
    cabin: str


class _Generator:
    def __init__(self, seed: int) -> None:
        self.chance = Random(f"airline database {seed}")
        self.taken: set[str] = set()
        self.flights: dict[str, Record] = {}
        self.users: dict[str, Record] = {}
        self.reservations: dict[str, Record] = {}
        self.departures: dict[Situation, list[_Departure]] = {}

    def tables(self) -> Tables:
        """Generate all tables: flights first, then users, each with reservations."""
        self.add_flights()
        for membership in MEMBERSHIPS:
            cards = iter(self.deck())
            for place in range(USERS_PER_MEMBERSHIP):
                user = self.add_user(membership, certificate=place % 2 == 0)
                for _ in range(RESERVATIONS_PER_USER):
                    self.add_reservation(user, next(cards))
        return canonical(
            {"flights": self.flights, "users": self.users, "reservations": self.reservations}
        )

    def deck(self) -> list[_Card]:
        """Return shuffled cards for a membership: each situation in each cabin, and more."""
        cards = [_Card(situation, cabin) for situation in _SITUATIONS for cabin in CABINS]
        further = USERS_PER_MEMBERSHIP * RESERVATIONS_PER_USER - len(cards)
        cards += self.chance.choices(cards, k=further)
        self.chance.shuffle(cards)
        return cards

    def draw_unique(self, alphabet: str, length: int) -> str:
        """Return random characters that no earlier call returned."""
        while True:
            drawn = "".join(self.chance.choices(alphabet, k=length))
            if drawn not in self.taken:
                self.taken.add(drawn)
                return drawn

    def number(self) -> str:
        """Return a new random number of eight digits, as text."""
        return self.chance.choice("123456789") + self.draw_unique("0123456789", 7)

    def add_flights(self) -> None:
        """Add two flights a day each way per route. A third of today's later ones is delayed."""
        airports = self.chance.sample(list(AIRPORTS), _AIRPORTS_SERVED)
        pairs = list(combinations(airports, 2))
        chosen = self.chance.sample(pairs, _ROUTES)
        # Some airports must lack a direct flight between them: a journey may ask for a stop.
        while len(set(chain.from_iterable(chosen))) < _AIRPORTS_SERVED:
            chosen = self.chance.sample(pairs, _ROUTES)
        routes = [pair for route in chosen for pair in (route, route[::-1])]
        numbers = iter(self.chance.sample(range(100, 1000), 2 * len(routes)))
        delayed = set(self.chance.sample(range(len(routes)), len(routes) // 3))
        for place, (origin, destination) in enumerate(routes):
            self.add_flight(f"KT{next(numbers)}", origin, destination, range(6, 13), "landed")
            status = "delayed" if place in delayed else "on time"
            self.add_flight(f"KT{next(numbers)}", origin, destination, range(16, 23), status)

    def add_flight(
        self, number: str, origin: str, destination: str, hours: range, today: str
    ) -> None:
        departure = self.chance.choice(hours) * 60 + self.chance.randrange(0, 60, 5)
        arrival = departure + self.chance.randrange(60, 330, 5)
        if today == "landed" and arrival >= _TODAYS_HOUR * 60:
            today = "flying"
        fares = {cabin: self.chance.randrange(*_FARES[cabin]) for cabin in CABINS}
        self.flights[number] = {
            "flight_number": number,
            "origin": origin,
            "destination": destination,
            "scheduled_departure_time_est": _clock(departure),
            "scheduled_arrival_time_est": _clock(arrival),
            "dates": {
                date(day): self.day(day, today, departure, arrival, fares)
                for day in range(_FIRST_DAY, LAST_DAY + 1)
            },
        }

    def day(
        self, day: int, today: str, departure: int, arrival: int, fares: Mapping[str, int]
    ) -> Record:
        """Return the record of a flight on one day: its status, and times, or seats and prices."""
        if day != TODAY and self.chance.random() < 0.06:
            return {"status": CANCELLED}
        if day > TODAY:
            return self.offer(fares)
        status = "landed" if day < TODAY else today
        late = self.chance.randrange(75, 240) if status == "delayed" else self.chance.randrange(15)
        left = "actual" if status in ("landed", "flying") else "estimated"
        arrived = "actual" if status == "landed" else "estimated"
        return {
            "status": status,
            f"{left}_departure_time_est": _moment(day, departure + late),
            f"{arrived}_arrival_time_est": _moment(day, arrival + late),
        }

    def offer(self, fares: Mapping[str, int]) -> Record:
        """Return a bookable day of a flight: seats and prices. About one cabin of eight is full."""
        return {
            "status": AVAILABLE,
            "available_seats": {
                cabin: self.chance.randrange(1, 16) if self.chance.random() < 7 / 8 else 0
                for cabin in CABINS
            },
            "prices": {cabin: self.near(fares[cabin]) for cabin in CABINS},
        }

    def near(self, fare: int) -> int:
        """Return a random price that differs from `fare` by at most a sixth."""
        return fare + self.chance.randrange(-fare // 6, fare // 6 + 1)

    def add_user(self, membership: str, certificate: bool) -> Record:
        """Add a user with a credit card, a gift card and perhaps a certificate."""
        person = self.person()
        user_id = f"{person['first_name']}_{person['last_name']}_{self.number()[:5]}".lower()
        while user_id in self.users:
            user_id = f"{user_id[:-5]}{self.number()[:5]}"
        methods = [self.credit_card(), self.balance(GIFT_CARD, 50, 2500)]
        if certificate:
            methods.append(self.balance("certificate", 50, 300))
        self.users[user_id] = {
            "user_id": user_id,
            "name": {key: person[key] for key in ("first_name", "last_name")},
            "address": self.address(),
            "email": f"{user_id.replace('_', '.')}@example.org",
            "dob": person["dob"],
            "payment_methods": {method["id"]: method for method in methods},
            "saved_passengers": [self.person() for _ in range(self.chance.randrange(2, 4))],
            "membership": membership,
            "reservations": [],
        }
        return self.users[user_id]

    def person(self) -> Record:
        return person(self.chance)

    def address(self) -> Record:
        city, state, digits = self.chance.choice(_PLACES)
        return {
            "address1": f"{self.chance.randrange(1, 300)} {self.chance.choice(_STREETS)}",
            "address2": self.chance.choice((None, f"Unit {self.chance.randrange(1, 60)}")),
            "city": city,
            "country": "USA",
            "state": state,
            "zip": f"{digits}{self.chance.randrange(100, 1000)}",
        }

    def credit_card(self) -> Record:
        return {
            "source": CREDIT_CARD,
            "id": f"{CREDIT_CARD}_{self.number()}",
            "brand": self.chance.choice(("visa", "mastercard")),
            "last_four": str(self.chance.randrange(1000, 10000)),
        }

    def balance(self, source: str, least: int, most: int) -> Record:
        """Return a payment method with a random amount in dollars, from `least` to below `most`."""
        amount = self.chance.randrange(least, most)
        return {"source": source, "id": f"{source}_{self.number()}", "amount": amount}

    def add_reservation(self, user: Record, card: _Card) -> None:
        """Add the user's reservation with the card's situation and cabin, perhaps for several
        people."""
        flights = self.itinerary(card)
        people = [{**user["name"], "dob": user["dob"]}, *user["saved_passengers"]]
        people = people[: self.chance.choice((1, 1, 2, 3))]
        insured = card.situation == "insured"
        bags, paid_bags = self.bags(user["membership"], card.cabin, len(people))
        price = sum(flight["price"] for flight in flights) * len(people)
        price += INSURANCE_PRICE * len(people) * insured + BAG_PRICE * paid_bags
        reservation_id = self.draw_unique("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", 7)
        user["reservations"].append(reservation_id)
        self.reservations[reservation_id] = {
            "reservation_id": reservation_id,
            "user_id": user["user_id"],
            "origin": flights[0]["origin"],
            "destination": flights[0]["destination"],
            "flight_type": "round_trip" if len(flights) == 2 else "one_way",
            "cabin": card.cabin,
            "flights": flights,
            "passengers": people,
            "payment_history": [{"payment_id": self.draw_payment_id(user), "amount": price}],
            "created_at": self.draw_creation_time(card.situation),
            "total_baggages": bags,
            "nonfree_baggages": paid_bags,
            "insurance": "yes" if insured else "no",
        }

    def draw_payment_id(self, user: Record) -> str:
        methods = user["payment_methods"].values()
        return str(self.chance.choice([m["id"] for m in methods if m["source"] != "certificate"]))

    def bags(self, membership: str, cabin: str, people: int) -> tuple[int, int]:
        """Return a random number of checked bags, and how many of them must be paid for."""
        bags = self.chance.randrange(0, 2 * people + 1)
        return bags, max(0, bags - people * free_bags(membership, cabin))

    def draw_creation_time(self, situation: Situation) -> str:
        """Return the time of booking: within the last day for `recent`, else days before."""
        recent = (14, self.chance.randrange(18, 24)), (TODAY, self.chance.randrange(0, 14))
        old = (self.chance.randrange(1, _FIRST_DAY), self.chance.randrange(24))
        day, hour = self.chance.choice(recent) if situation == "recent" else old
        return (
            f"{date(day)}T{hour:02}:{self.chance.randrange(60):02}:{self.chance.randrange(60):02}"
        )

    def itinerary(self, card: _Card) -> list[Record]:
        """Return the flights of a reservation, one way or there and back (if possible for
        `flown`)."""
        if card.situation not in self.departures:
            self.departures[card.situation] = self.suitable(card.situation)
        number, day = self.chance.choice(self.departures[card.situation])
        flights = [self.flown_on(number, day, card.cabin)]
        back = self.returns(number, max(day + 1, TODAY + 2))
        if back and (card.situation == "flown" or self.chance.random() < 0.5):
            flights.append(self.flown_on(*self.chance.choice(back), card.cabin))
        return flights

    def suitable(self, situation: Situation) -> list[_Departure]:
        """Return flights and days that can begin a reservation in this situation."""
        status = {"flown": "landed", "cancelled": CANCELLED, "delayed": "delayed"}
        days = {"flown": range(_FIRST_DAY, TODAY), "delayed": range(TODAY, TODAY + 1)}
        return [
            (number, day)
            for number, flight in self.flights.items()
            for day in days.get(situation, range(TODAY + 2, LAST_DAY - 4))
            if flight["dates"][date(day)]["status"] == status.get(situation, AVAILABLE)
        ]

    def returns(self, number: str, first_day: int) -> list[_Departure]:
        """Return the bookable flights back for flight `number`, with their days from `first_day`
        on."""
        there = self.flights[number]
        return [
            (other, day)
            for other, flight in self.flights.items()
            if flight["origin"] == there["destination"] and flight["destination"] == there["origin"]
            for day in range(first_day, LAST_DAY)
            if flight["dates"][date(day)]["status"] == AVAILABLE
        ]

    def flown_on(self, number: str, day: int, cabin: str) -> Record:
        """Return a flight as part of a reservation, at a random price of the time of booking."""
        flight = self.flights[number]
        return {
            "flight_number": number,
            "origin": flight["origin"],
            "destination": flight["destination"],
            "date": date(day),
            "price": self.chance.randrange(*_FARES[cabin]),
        }


def person(chance: Random) -> Record:
    """Return a random passenger: a name and a date of birth."""
    born = (chance.randrange(1950, 2004), chance.randrange(1, 13), chance.randrange(1, 29))
    return {
        "first_name": chance.choice(_FIRST_NAMES),
        "last_name": chance.choice(_LAST_NAMES),
        "dob": "{}-{:02}-{:02}".format(*born),
    }


def _moment(day: int, minutes: int) -> str:
    return (datetime(2024, 5, day) + timedelta(minutes=minutes)).isoformat()


def _clock(minutes: int) -> str:
    """Return a time of day as HH:MM:SS, with `+1` if `minutes` reach past midnight."""
    days, minute = divmod(minutes, 24 * 60)
    return f"{minute // 60:02}:{minute % 60:02}:00{'+1' if days else ''}"
