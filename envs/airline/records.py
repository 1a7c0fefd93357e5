"""The shapes of airline records, as the original's models have them. An agent reads names, order of
fields and pydantic's error texts. Unknown fields are dropped, and "5" is an integer where one is
due."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

Cabin = Literal["business", "economy", "basic_economy"]
FlightType = Literal["round_trip", "one_way"]
Insurance = Literal["yes", "no"]


class FlightInfo(BaseModel):
    """A flight on a day."""

    flight_number: Annotated[str, Field(description="The flight's number, such as 'KT104'.")]
    date: Annotated[str, Field(description="The day, as YYYY-MM-DD.")]


class Passenger(BaseModel):
    """Somebody who flies."""

    first_name: Annotated[str, Field(description="Given name.")]
    last_name: Annotated[str, Field(description="Family name.")]
    dob: Annotated[str, Field(description="Date of birth, as YYYY-MM-DD.")]


class Payment(BaseModel):
    """What one payment method pays; a refund is negative."""

    payment_id: Annotated[str, Field(description="A payment method of the user's.")]
    amount: Annotated[int, Field(description="Whole dollars.")]


class ReservationFlight(BaseModel):
    """A flight of a reservation, at the price of the day it was booked."""

    flight_number: str
    origin: str
    destination: str
    date: str
    price: int


class Reservation(BaseModel):
    """Flights, who is on them, what was paid for them."""

    reservation_id: str
    user_id: str
    origin: str
    destination: str
    flight_type: FlightType
    cabin: Cabin
    flights: list[ReservationFlight]
    passengers: list[Passenger]
    payment_history: list[Payment]
    created_at: str
    total_baggages: int
    nonfree_baggages: int
    insurance: Insurance
    status: Literal["cancelled"] | None = None


class Name(BaseModel):
    """A user's name."""

    first_name: str
    last_name: str


class Address(BaseModel):
    """Where a user lives."""

    address1: str
    address2: str | None = None
    city: str
    country: str
    state: str
    zip: str


class CreditCard(BaseModel):
    """It pays any amount."""

    source: Literal["credit_card"]
    id: str
    brand: str
    last_four: str


class GiftCard(BaseModel):
    """It pays until it is empty."""

    source: Literal["gift_card"]
    id: str
    amount: float


class Certificate(BaseModel):
    """It pays for one booking; what is left of it is lost."""

    source: Literal["certificate"]
    id: str
    amount: float


class User(BaseModel):
    """A customer."""

    user_id: str
    name: Name
    address: Address
    email: str
    dob: str
    payment_methods: dict[
        str, Annotated[CreditCard | GiftCard | Certificate, Field(discriminator="source")]
    ]
    saved_passengers: list[Passenger]
    membership: Literal["gold", "silver", "regular"]
    reservations: list[str]


class Flight(BaseModel):
    """A connection that is flown daily; what is known of a day depends on its status."""

    flight_number: str
    origin: str
    destination: str
    scheduled_departure_time_est: str
    scheduled_arrival_time_est: str
    dates: dict[str, dict[str, Any]]
