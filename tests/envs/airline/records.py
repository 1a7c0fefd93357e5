"""An airline database that fits on a page: four flights, two customers, two reservations."""

from typing import Any

from envs.airline.database import canonical
from envs.airline.tools import AirlineTools
from envs.database import Database

Json = dict[str, Any]

USER, OTHER = "lena_falk_1", "emeka_bakke_2"
CARD, GIFT, CERTIFICATE = "credit_card_1", "gift_card_1", "certificate_1"
"""The gift card holds 250, the certificate 100."""
OUT, BACK, NIGHT, ON = "KT1", "KT2", "KT3", "KT4"
"""DEN-BOS in the morning, BOS-DEN, DEN-BOS with an arrival after midnight, BOS-MIA."""
DAY, LATER = "2024-05-20", "2024-05-21"
"""Days on which flights can be booked; there are five days more, without seats to speak of."""
ECONOMY, BASIC = "ECO0001", "BAS0001"
"""Out and back with two passengers, paid by gift card; out with one, paid by credit card."""

LENA = {"first_name": "Lena", "last_name": "Falk", "dob": "1980-02-03"}
RUNA = {"first_name": "Runa", "last_name": "Dahl", "dob": "1990-04-05"}


def offer(basic: int = 9, economy: int = 3, business: int = 1) -> Json:
    """A day with so many seats, at 50, 100 and 300 dollars."""
    return {
        "status": "available",
        "available_seats": {"basic_economy": basic, "economy": economy, "business": business},
        "prices": {"basic_economy": 50, "economy": 100, "business": 300},
    }


def flight(number: str, origin: str, destination: str, departure: str, arrival: str) -> Json:
    """A connection with a day of each kind."""
    return {
        "flight_number": number,
        "origin": origin,
        "destination": destination,
        "scheduled_departure_time_est": departure,
        "scheduled_arrival_time_est": arrival,
        "dates": {
            "2024-05-08": offer(),
            "2024-05-09": offer(),
            "2024-05-10": offer(),
            "2024-05-14": {"status": "landed"},
            "2024-05-15": {"status": "delayed"},
            "2024-05-19": {"status": "cancelled"},
            DAY: offer(),
            LATER: offer(economy=1),
        },
    }


def user(user_id: str, reservations: list[str], *methods: Json) -> Json:
    """A silver member."""
    return {
        "user_id": user_id,
        "name": {"first_name": "Lena", "last_name": "Falk"},
        "address": {
            "address1": "1 Mill Road",
            "city": "Tulsa",
            "country": "USA",
            "state": "OK",
            "zip": "74100",
        },
        "email": f"{user_id}@example.org",
        "dob": LENA["dob"],
        "payment_methods": {method["id"]: method for method in methods},
        "saved_passengers": [RUNA],
        "membership": "silver",
        "reservations": reservations,
    }


def reserved(number: str, origin: str, destination: str, price: int) -> Json:
    """A flight of a reservation."""
    return {
        "origin": origin,
        "destination": destination,
        "flight_number": number,
        "date": DAY,
        "price": price,
    }


def reservation(reservation_id: str, cabin: str, people: list[Json], *flights: Json) -> Json:
    """A reservation with one bag, which is paid for."""
    paid = sum(one["price"] for one in flights) * len(people) + 50
    return {
        "reservation_id": reservation_id,
        "user_id": USER,
        "origin": "DEN",
        "destination": "BOS",
        "flight_type": "round_trip" if len(flights) > 1 else "one_way",
        "cabin": cabin,
        "flights": list(flights),
        "passengers": people,
        "payment_history": [{"payment_id": GIFT, "amount": paid}],
        "created_at": "2024-05-02T03:10:19",
        "total_baggages": 1,
        "nonfree_baggages": 1,
        "insurance": "no",
    }


def database() -> Database:
    """The database, new."""
    flights = [
        flight(OUT, "DEN", "BOS", "06:00:00", "11:00:00"),
        flight(BACK, "BOS", "DEN", "12:00:00", "15:00:00"),
        flight(NIGHT, "DEN", "BOS", "20:00:00", "01:00:00+1"),
        flight(ON, "BOS", "MIA", "11:00:00", "14:00:00"),
    ]
    reservations = [
        reservation(
            ECONOMY,
            "economy",
            [LENA, RUNA],
            reserved(OUT, "DEN", "BOS", 80),
            reserved(BACK, "BOS", "DEN", 90),
        ),
        reservation(BASIC, "basic_economy", [LENA], reserved(OUT, "DEN", "BOS", 40)),
    ]
    users = [
        user(
            USER,
            [ECONOMY, BASIC],
            {"source": "credit_card", "id": CARD, "brand": "visa", "last_four": "1234"},
            {"source": "gift_card", "id": GIFT, "amount": 250},
            {"source": "certificate", "id": CERTIFICATE, "amount": 100},
        ),
        user(OTHER, []),
    ]
    return Database(
        canonical(
            {
                "flights": {one["flight_number"]: one for one in flights},
                "users": {one["user_id"]: one for one in users},
                "reservations": {one["reservation_id"]: one for one in reservations},
            }
        )
    )


def tools() -> AirlineTools:
    """The tools over a new database."""
    return AirlineTools(database())


def info(number: str, date: str = DAY) -> Json:
    """What names a flight on a day."""
    return {"flight_number": number, "date": date}


def booking(**other: Any) -> Json:
    """The arguments of a booking for one, at 100 dollars, with whatever is other than usual."""
    usual = {
        "user_id": USER,
        "origin": "DEN",
        "destination": "BOS",
        "flight_type": "one_way",
        "cabin": "economy",
        "flights": [info(OUT)],
        "passengers": [LENA],
        "payment_methods": [{"payment_id": CARD, "amount": 100}],
        "total_baggages": 0,
        "nonfree_baggages": 0,
        "insurance": "no",
    }
    return {**usual, **other}


def changing(flights: Any, cabin: Any = "economy", payment_id: Any = CARD) -> Json:
    """The arguments of a change of the reservation in economy."""
    return {
        "reservation_id": ECONOMY,
        "cabin": cabin,
        "flights": flights,
        "payment_id": payment_id,
    }
