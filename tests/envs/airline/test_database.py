"""Our own airline databases: the original's shapes, none of its records."""

from typing import Any

import pytest

from envs.airline.database import USERS_PER_MEMBERSHIP, build_database, canonical
from envs.airline.policy import CABINS, MEMBERSHIPS, count_extra_bags
from envs.database import Database


def tables(database: Database) -> dict[str, dict[str, Any]]:
    """The tables as a file holds them."""
    return {name: dict(database[name]) for name in database.names}


def statuses(database: Database, reservation: Any) -> list[str]:
    """The statuses of a reservation's flights."""
    days = [
        database["flights"][one["flight_number"]]["dates"][one["date"]]
        for one in reservation["flights"]
    ]
    return [str(day["status"]) for day in days]


def test_another_shape_is_refused_with_the_field() -> None:
    with pytest.raises(KeyError, match="flights"):
        canonical({})
    broken = tables(build_database(0))
    broken["users"] = {"x": {"user_id": "x"}}
    with pytest.raises(ValueError, match="membership"):
        canonical(broken)


@pytest.mark.parametrize("seed", range(5))
def test_users_reservations_and_flights_fit_together(seed: int) -> None:
    database = build_database(seed)
    users, reservations = database["users"], database["reservations"]
    assert len(users) == USERS_PER_MEMBERSHIP * len(MEMBERSHIPS)
    assert [one for user in users.values() for one in user["reservations"]] == list(reservations)
    for one in reservations.values():
        user, people = users[one["user_id"]], len(one["passengers"])
        (payment,) = one["payment_history"]
        price = sum(flight["price"] for flight in one["flights"]) * people
        price += 30 * people * (one["insurance"] == "yes") + 50 * one["nonfree_baggages"]
        assert payment["amount"] == price
        assert payment["payment_id"] in user["payment_methods"]
        bags = count_extra_bags(user["membership"], one["cabin"], people, one["total_baggages"])
        assert one["nonfree_baggages"] == bags
        days = [flight["date"] for flight in one["flights"]]
        assert days == sorted(days)
        assert one["created_at"] < "2024-05-15T15:00:00"
        for flight in one["flights"]:
            scheduled = database["flights"][flight["flight_number"]]
            assert flight["origin"] == scheduled["origin"]
            assert flight["destination"] == scheduled["destination"]


def test_what_has_left_depends_on_the_clock() -> None:
    for flight in build_database(0)["flights"].values():
        late = flight["scheduled_departure_time_est"] >= "15:00:00"
        today = {"on time", "delayed"} if late else {"landed", "flying"}
        for date, day in flight["dates"].items():
            past = date < "2024-05-15"
            fitting = {"landed", "cancelled"} if past else {"available", "cancelled"}
            assert day["status"] in (today if date == "2024-05-15" else fitting)


@pytest.mark.parametrize("seed", range(5))
def test_every_membership_has_reservations_of_every_situation_in_every_cabin(seed: int) -> None:
    database = build_database(seed)
    found = set()
    for one in database["reservations"].values():
        first, insured = statuses(database, one)[0], one["insurance"] == "yes"
        recent = one["created_at"] > "2024-05-14T15:00:00"
        membership = database["users"][one["user_id"]]["membership"]
        found.add((membership, one["cabin"], first, insured, recent))
    situations = (
        ("available", False, True),
        ("available", False, False),
        ("available", True, False),
        ("landed", False, False),
        ("cancelled", False, False),
        ("delayed", False, False),
    )
    assert found == {
        (membership, cabin, *situation)
        for membership in MEMBERSHIPS
        for cabin in CABINS
        for situation in situations
    }
