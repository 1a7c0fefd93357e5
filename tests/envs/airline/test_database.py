"""Our own airline databases: the original's shapes, none of its records."""

import re
from pathlib import Path
from typing import Any

import pytest

from envs.airline.database import USERS_PER_MEMBERSHIP, build_database, canonical
from envs.airline.environment import Airline
from envs.airline.kinds import KINDS
from envs.airline.policy import CABINS, MEMBERSHIPS, count_extra_bags
from envs.database import Database


def ids(database: Database) -> set[str]:
    """Every id of flights, users, reservations and payment methods."""
    methods = {method for one in database["users"].values() for method in one["payment_methods"]}
    return {key for name in database.names for key in database[name]} | methods


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


def test_a_database_is_a_function_of_its_seed() -> None:
    assert build_database(3).digest() == build_database.__wrapped__(3).digest()
    assert build_database(3).digest() != build_database(4).digest()


def test_a_generated_database_is_canonical() -> None:
    database = build_database(0)
    assert Database(canonical(tables(database))).digest() == database.digest()


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


def test_ids_have_another_shape_than_the_originals() -> None:
    theirs = r"HAT\d+|[a-z]+_[a-z]+_\d{4}|[A-Z0-9]{6}|(gift_card|credit_card|certificate)_\d{7}"
    assert not [one for one in ids(build_database(0)) if re.fullmatch(theirs, one)]


@pytest.mark.benchmarks
def test_no_generated_record_is_one_of_the_originals(benchmarks: Path) -> None:
    real = Airline(benchmarks).benchmark.database
    emails = {user["email"] for user in real["users"].values()}
    for seed in range(20):
        database = build_database(seed)
        assert ids(database).isdisjoint(ids(real))
        assert emails.isdisjoint(one["email"] for one in database["users"].values())


@pytest.mark.benchmarks
def test_records_have_the_originals_fields(benchmarks: Path) -> None:
    real, own = Airline(benchmarks).benchmark.database, build_database(0)
    for name in real.names:
        fields = {tuple(record) for record in real[name].values()}
        assert {tuple(record) for record in own[name].values()} == fields
    days = {frozenset(day) for one in real["flights"].values() for day in one["dates"].values()}
    for flight in own["flights"].values():
        assert {frozenset(day) for day in flight["dates"].values()} <= days


@pytest.mark.benchmarks
def test_no_generated_request_names_a_real_record(benchmarks: Path) -> None:
    airline = Airline(benchmarks)
    real = ids(airline.benchmark.database)
    for capability in KINDS:
        task = airline.generate(capability, 0)
        assert real.isdisjoint(re.findall(r"\w+", task.model_dump_json()))
