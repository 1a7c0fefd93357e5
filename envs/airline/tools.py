"""The fourteen tools of airline customer service, with tau2-bench's names, arguments and answers.

Guarantee: outputs, errors, their order and the resulting state are the original's. This includes
its quirks; a comment marks each quirk that looks like a mistake. Types of arguments are not
checked, except the objects in `flights`, `passengers` and `payment_methods` (records.py). No tool
enforces the policy (policy.py).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import BaseModel, Field

from envs.airline.records import (
    Cabin,
    Certificate,
    FlightInfo,
    FlightType,
    Insurance,
    Passenger,
    Payment,
    Reservation,
    ReservationFlight,
)
from envs.database import Record
from envs.tau2.toolset import Tau2Toolset
from envs.tools import read, write

M = TypeVar("M", bound=BaseModel)

NOW: Final = "2024-05-15T15:00:00"
"""The time of every call, in the zone EST."""
AVAILABLE: Final = "available"
CANCELLED: Final = "cancelled"
CREDIT_CARD: Final = "credit_card"
GIFT_CARD: Final = "gift_card"
CERTIFICATE: Final = "certificate"

NEW_RESERVATIONS: Final = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES: Final = tuple(f"certificate_{number}" for number in (3221322, 3221323, 3221324))
"""The ids that the tools give to new certificates of a user, in this order; there are no more."""

INSURANCE_PRICE: Final = 30
"""Dollars per passenger."""
BAG_PRICE: Final = 50
"""Dollars per bag that is not free."""

AIRPORTS: Final = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}
"""Code -> city."""

UserId = Annotated[str, Field(description="The user's id, such as 'lena_okafor_81234'.")]
ReservationId = Annotated[str, Field(description="The reservation's id, such as 'K7QX2MA'.")]
Origin = Annotated[str, Field(description="Code of the airport of departure, such as 'DEN'.")]
Destination = Annotated[str, Field(description="Code of the airport of arrival, such as 'BOS'.")]
Day = Annotated[str, Field(description="The day, as YYYY-MM-DD.")]
PaymentId = Annotated[
    str,
    Field(
        description="The credit card or gift card that pays or is refunded: its id, as in the "
        "user's record, such as 'gift_card_81234567'."
    ),
]
CabinClass = Annotated[Cabin, Field(description="The cabin, the same on every flight.")]
Passengers = Annotated[
    list[Passenger | dict[str, Any]], Field(description="Everybody who flies, one object each.")
]
TotalBags = Annotated[int, Field(description="All checked bags of the reservation.")]
PaidBags = Annotated[int, Field(description="How many of them are not free.")]


class AirlineTools(Tau2Toolset):
    """Tools over flights, users and reservations."""

    @write
    def book_reservation(
        self,
        user_id: UserId,
        origin: Origin,
        destination: Destination,
        flight_type: Annotated[FlightType, Field(description="There alone, or there and back.")],
        cabin: CabinClass,
        flights: Annotated[
            list[FlightInfo | dict[str, Any]],
            Field(description="Every flight in the order it is flown, one object each."),
        ],
        passengers: Passengers,
        payment_methods: Annotated[
            list[Payment | dict[str, Any]],
            Field(description="Who pays how much, one object each; together the whole price."),
        ],
        total_baggages: TotalBags,
        nonfree_baggages: PaidBags,
        insurance: Annotated[
            Insurance, Field(description="Whether every passenger is insured, for 30 dollars each.")
        ],
    ) -> Record:
        """Book flights for a user.

        The payments must add up to seats, insurance and bags. Name all of it to the user and get a
        yes first.
        """
        chosen = _objects(FlightInfo, flights)
        people = _objects(Passenger, passengers)
        payments = _objects(Payment, payment_methods)
        self._user(user_id)
        reservation = Reservation(
            reservation_id=self._new_reservation_id(),
            user_id=user_id,
            origin=origin,
            destination=destination,
            flight_type=flight_type,
            cabin=cabin,
            flights=[],
            passengers=people,
            payment_history=payments,
            created_at=NOW,
            total_baggages=total_baggages,
            nonfree_baggages=nonfree_baggages,
            insurance=insurance,
        )
        reservation.flights = [self._seats(info, cabin, len(people)) for info in chosen]
        price: Any = sum(flight.price * len(people) for flight in reservation.flights)
        price += INSURANCE_PRICE * len(people) if insurance == "yes" else 0
        # The argument as the model sent it: a reservation reads "1" as 1, the price does not.
        price += BAG_PRICE * nonfree_baggages
        self._check_payments(user_id, payments, price)
        self._pay(user_id, payments)
        for flight in reservation.flights:
            self._take_seats(flight, cabin, len(people))
        record = reservation.model_dump()
        self.database.put("reservations", reservation.reservation_id, record)
        self.database.edit("users", user_id)["reservations"].append(reservation.reservation_id)
        return record

    @write
    def cancel_reservation(self, reservation_id: ReservationId) -> Record:
        """Cancel all flights of a reservation, and pay everything back.

        The rules for cancelling are not checked here. Name the reservation to the user and get a
        yes first.
        """
        self._reservation(reservation_id)
        reservation = self.database.edit("reservations", reservation_id)
        # The original gives no seats back. It accepts a second cancellation and refunds again.
        reservation["payment_history"] += [
            {**payment, "amount": -payment["amount"]} for payment in reservation["payment_history"]
        ]
        reservation["status"] = CANCELLED
        return reservation

    @read
    def get_reservation_details(self, reservation_id: ReservationId) -> Record:
        """Show a reservation: flights, passengers, payments, bags and insurance."""
        return self._reservation(reservation_id)

    @read
    def get_user_details(self, user_id: UserId) -> Record:
        """Show a user: membership, payment methods, saved passengers and reservation ids."""
        return self._user(user_id)

    @read
    def list_all_airports(self) -> list[Record]:
        """List every airport's code and city."""
        return [{"iata": code, "city": city} for code, city in AIRPORTS.items()]

    @read
    def search_direct_flight(
        self, origin: Origin, destination: Destination, date: Day
    ) -> list[Record]:
        """Find flights between two airports that can be booked for a day, with seats and prices."""
        return self._offers(date, origin, destination)

    @read
    def search_onestop_flight(
        self, origin: Origin, destination: Destination, date: Day
    ) -> list[list[Record]]:
        """Find pairs of flights between two airports, with one change of planes.

        The second flight leaves after the first arrives.
        """
        connections = []
        for first in self._offers(date, origin, None, shown=date):
            arrival = first["scheduled_arrival_time_est"]
            # The day has no leading zero, so a next day before the tenth is never found.
            next_day = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
            for second in self._offers(next_day, first["destination"], destination, next_day):
                # The original compares texts, so "+1" in an arrival excludes earlier hours.
                if second["scheduled_departure_time_est"] >= arrival:
                    connections.append([first, second])
        return connections

    @write
    def send_certificate(
        self, user_id: UserId, amount: Annotated[int, Field(description="Whole dollars.")]
    ) -> str:
        """Give a user a travel certificate as compensation, where the policy allows one."""
        held = self._user(user_id)["payment_methods"]
        for certificate_id in NEW_CERTIFICATES:
            if certificate_id not in held:
                certificate = Certificate(id=certificate_id, amount=amount, source=CERTIFICATE)
                user = self.database.edit("users", user_id)
                user["payment_methods"][certificate_id] = certificate.model_dump()
                return f"Certificate {certificate_id} added to user {user_id} with amount {amount}."
        raise ValueError("Too many certificates")

    @write
    def update_reservation_baggages(
        self,
        reservation_id: ReservationId,
        total_baggages: TotalBags,
        nonfree_baggages: PaidBags,
        payment_id: PaymentId,
    ) -> Record:
        """Set the checked bags of a reservation; additional ones that are not free are paid.

        Name all of it to the user and get a yes first.
        """
        reservation = self._reservation(reservation_id)
        user_id = reservation["user_id"]
        self._user(user_id)
        price = BAG_PRICE * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        payments = self._pay_update(user_id, payment_id, price)
        reservation = self.database.edit("reservations", reservation_id)
        reservation["payment_history"] += payments
        reservation["total_baggages"] = total_baggages
        reservation["nonfree_baggages"] = nonfree_baggages
        return reservation

    @write
    def update_reservation_flights(
        self,
        reservation_id: ReservationId,
        cabin: CabinClass,
        flights: Annotated[
            list[FlightInfo | dict[str, Any]],
            Field(
                description="Every flight of the new reservation, kept ones too, in the order "
                "they are flown."
            ),
        ],
        payment_id: PaymentId,
    ) -> Record:
        """Change flights or cabin of a reservation; the difference is paid or refunded.

        A flight that is kept in its cabin keeps its price. The rules for changes are not checked
        here. Name all of it to the user and get a yes first.
        """
        chosen = _objects(FlightInfo, flights)
        reservation = self._reservation(reservation_id)
        user_id, people = reservation["user_id"], len(reservation["passengers"])
        self._user(user_id)
        changed = [
            _find_same_flight(reservation, info, cabin)
            or self._seats(info, cabin, people).model_dump()
            for info in chosen
        ]
        price = _fares(changed) * people - _fares(reservation["flights"]) * people
        payments = self._pay_update(user_id, payment_id, price)
        reservation = self.database.edit("reservations", reservation_id)
        reservation["payment_history"] += payments
        # Seats are neither taken nor given back.
        reservation["flights"] = changed
        reservation["cabin"] = cabin
        return reservation

    @write
    def update_reservation_passengers(
        self, reservation_id: ReservationId, passengers: Passengers
    ) -> Record:
        """Replace the passengers of a reservation by as many others, or correct their data.

        Name all of it to the user and get a yes first.
        """
        people = _objects(Passenger, passengers)
        if len(people) != len(self._reservation(reservation_id)["passengers"]):
            raise ValueError("Number of passengers does not match")
        reservation = self.database.edit("reservations", reservation_id)
        reservation["passengers"] = _plain(people)
        return reservation

    @read
    def get_flight_status(
        self,
        flight_number: Annotated[str, Field(description="The flight's number, such as 'KT104'.")],
        date: Day,
    ) -> str:
        """Tell whether a flight is available, on time, delayed, flying, landed or cancelled."""
        return str(self._on_day(flight_number, date)["status"])

    def _user(self, user_id: str) -> Record:
        return self._find("users", user_id, f"User {user_id} not found")

    def _reservation(self, reservation_id: str) -> Record:
        return self._find("reservations", reservation_id, f"Reservation {reservation_id} not found")

    def _flight(self, flight_number: str) -> Record:
        return self._find("flights", flight_number, f"Flight {flight_number} not found")

    def _on_day(self, flight_number: str, date: str) -> Record:
        days = self._flight(flight_number)["dates"]
        if date not in days:
            raise ValueError(f"Flight {flight_number} not found on date {date}")
        return days[date]

    def _new_reservation_id(self) -> str:
        for reservation_id in NEW_RESERVATIONS:
            if reservation_id not in self.database["reservations"]:
                return reservation_id
        raise ValueError("Too many reservations")

    def _offers(
        self, date: str, origin: str | None, destination: str | None, shown: str | None = None
    ) -> list[Record]:
        """Return the bookable flights on `date`. None as an airport matches every airport."""
        return [
            _offer(flight, flight["dates"][date], shown)
            for flight in self.database["flights"].values()
            if (origin is None or flight["origin"] == origin)
            and (destination is None or flight["destination"] == destination)
            and date in flight["dates"]
            and flight["dates"][date]["status"] == AVAILABLE
        ]

    def _seats(self, info: FlightInfo, cabin: str, count: int) -> ReservationFlight:
        number, day = info.flight_number, self._on_day(info.flight_number, info.date)
        if day["status"] != AVAILABLE:
            raise ValueError(f"Flight {number} not available on date {info.date}")
        if day["available_seats"][cabin] < count:
            raise ValueError(f"Not enough seats on flight {number}")
        flight = self._flight(number)
        return ReservationFlight(
            flight_number=number,
            origin=flight["origin"],
            destination=flight["destination"],
            date=info.date,
            price=day["prices"][cabin],
        )

    def _take_seats(self, flight: ReservationFlight, cabin: str, count: int) -> None:
        days = self.database.edit("flights", flight.flight_number)["dates"]
        days[flight.date]["available_seats"][cabin] -= count

    def _check_payments(self, user_id: str, payments: Sequence[Payment], price: Any) -> None:
        """Raise ValueError unless the methods are the user's, hold enough, and sum to the price."""
        held = self._user(user_id)["payment_methods"]
        for payment in payments:
            if payment.payment_id not in held:
                raise ValueError(f"Payment method {payment.payment_id} not found")
            method = held[payment.payment_id]
            if method["source"] != CREDIT_CARD and method["amount"] < payment.amount:
                raise ValueError(f"Not enough balance in payment method {payment.payment_id}")
        paid = sum(payment.amount for payment in payments)
        if paid != price:
            raise ValueError(
                f"Payment amount does not add up, total price is {price}, but paid {paid}"
            )

    def _pay(self, user_id: str, payments: Sequence[Payment]) -> None:
        """Charge gift cards and delete used certificates, so naming one twice raises KeyError."""
        held = self.database.edit("users", user_id)["payment_methods"]
        for payment in payments:
            method = held[payment.payment_id]
            if method["source"] == GIFT_CARD:
                method["amount"] -= payment.amount
            elif method["source"] == CERTIFICATE:
                del held[payment.payment_id]

    def _pay_update(self, user_id: str, payment_id: str, price: Any) -> list[Record]:
        """Charge or refund a gift card. Return the payment to record, or none for 0 dollars."""
        held = self._user(user_id)["payment_methods"]
        if payment_id not in held:
            raise ValueError("Payment method not found")
        source = held[payment_id]["source"]
        if source == CERTIFICATE:
            raise ValueError("Certificate cannot be used to update reservation")
        if source == GIFT_CARD:
            if held[payment_id]["amount"] < price:
                raise ValueError("Gift card balance is not enough")
            user = self.database.edit("users", user_id)
            user["payment_methods"][payment_id]["amount"] -= price
        # A fraction of a dollar is refused here, after the gift card was charged.
        return [Payment(payment_id=payment_id, amount=price).model_dump()] if price != 0 else []


def _objects(model: type[M], values: Sequence[M | dict[str, Any]]) -> list[M]:
    """Return `values` as objects of the model. If one is no dict, return `values` unchanged, which
    causes an error later."""
    if all(isinstance(item, dict) for item in values):
        return [model(**item) for item in values if isinstance(item, dict)]
    return cast("list[M]", values)


def _plain(people: Any) -> Any:
    """Return passengers as JSON objects, and other values unchanged."""
    if isinstance(people, list):
        return [
            person.model_dump() if isinstance(person, Passenger) else person for person in people
        ]
    return people


def _find_same_flight(reservation: Record, info: FlightInfo, cabin: str) -> Record | None:
    for flight in reservation["flights"]:
        same = flight["flight_number"] == info.flight_number and flight["date"] == info.date
        if same and cabin == reservation["cabin"]:
            return flight
    return None


def _fares(flights: Sequence[Record]) -> int:
    return sum(int(flight["price"]) for flight in flights)


def _offer(flight: Record, day: Record, date: str | None) -> Record:
    """Return a bookable flight as search tools show it. Only one-stop searches show `date`."""
    return {
        "flight_number": flight["flight_number"],
        "origin": flight["origin"],
        "destination": flight["destination"],
        "status": AVAILABLE,
        "scheduled_departure_time_est": flight["scheduled_departure_time_est"],
        "scheduled_arrival_time_est": flight["scheduled_arrival_time_est"],
        "date": date,
        "available_seats": day["available_seats"],
        "prices": day["prices"],
    }
