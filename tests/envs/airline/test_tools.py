"""Airline's tools: every answer, every refusal and which comes first, and what a change leaves."""

import json
import re
from typing import Any

import pytest

from envs.airline.tools import NEW_CERTIFICATES, NEW_RESERVATIONS, AirlineTools
from tests.envs.airline.records import (
    BACK,
    BASIC,
    CARD,
    CERTIFICATE,
    DAY,
    ECONOMY,
    GIFT,
    LATER,
    LENA,
    NIGHT,
    ON,
    OTHER,
    OUT,
    RUNA,
    USER,
    Json,
    booking,
    changing,
    info,
    tools,
)

BOOK, CHANGE = "book_reservation", "update_reservation_flights"
BAGS, PEOPLE = "update_reservation_baggages", "update_reservation_passengers"
LINK = re.compile(r"/[0-9.]+/v/")


def done(airline: AirlineTools, name: str, arguments: Json) -> Any:
    """What a call answers with, which must succeed."""
    result = airline.call(name, arguments)
    assert not result.error, result.content
    return json.loads(result.content)


def refused(airline: AirlineTools, name: str, arguments: Json) -> str:
    """Why a call is refused, without the version of pydantic."""
    result = airline.call(name, arguments)
    assert result.error
    assert not result.malformed
    return LINK.sub("/", result.content.removeprefix("Error: "))


def balance(airline: AirlineTools) -> float:
    """What the gift card holds."""
    return float(airline.database["users"][USER]["payment_methods"][GIFT]["amount"])


def seats(airline: AirlineTools, number: str = OUT, cabin: str = "economy") -> int:
    """The seats of a flight."""
    return int(airline.database["flights"][number]["dates"][DAY]["available_seats"][cabin])


def bags(total: Any, paid: Any, payment_id: Any = CARD) -> Json:
    """The arguments of a change of bags."""
    return {
        "reservation_id": ECONOMY,
        "total_baggages": total,
        "nonfree_baggages": paid,
        "payment_id": payment_id,
    }


def pays(payment_id: str, amount: Any) -> list[Json]:
    """One payment."""
    return [{"payment_id": payment_id, "amount": amount}]


def test_records_are_shown_with_all_their_fields_in_order() -> None:
    user = done(tools(), "get_user_details", {"user_id": USER})
    assert user["address"]["address2"] is None
    assert user["payment_methods"][GIFT] == {"source": "gift_card", "id": GIFT, "amount": 250.0}
    reservation = done(tools(), "get_reservation_details", {"reservation_id": ECONOMY})
    assert list(reservation["flights"][0]) == [
        "flight_number",
        "origin",
        "destination",
        "date",
        "price",
    ]
    assert list(reservation)[-2:] == ["insurance", "status"]


@pytest.mark.parametrize(
    ("date", "status"), [("2024-05-14", "landed"), (DAY, "available"), ("2024-05-15", "delayed")]
)
def test_a_status_is_told_as_a_word(date: str, status: str) -> None:
    assert tools().call("get_flight_status", info(OUT, date)).content == status


def test_a_search_finds_what_can_be_booked() -> None:
    query = {"origin": "DEN", "destination": "BOS", "date": DAY}
    found = done(tools(), "search_direct_flight", query)
    assert [one["flight_number"] for one in found] == [OUT, NIGHT]
    assert list(found[0])[-3:] == ["date", "available_seats", "prices"]
    assert found[0]["date"] is None
    for date in ("2024-05-14", "2024-05-15", "2024-05-19", "2024-06-01", None):
        assert done(tools(), "search_direct_flight", {**query, "date": date}) == []


def connections(date: str) -> list[list[tuple[str, str]]]:
    """The connections from Denver to Miami."""
    query = {"origin": "DEN", "destination": "MIA", "date": date}
    found = done(tools(), "search_onestop_flight", query)
    return [[(one["flight_number"], one["date"]) for one in legs] for legs in found]


def test_a_second_flight_may_leave_when_the_first_arrives_and_the_next_day_after_a_night() -> None:
    by_day, by_night = [(OUT, DAY), (ON, DAY)], [(NIGHT, DAY), (ON, LATER)]
    assert connections(DAY) == [by_day, by_night]


def test_the_next_day_has_no_leading_zero_and_is_not_found_before_the_tenth() -> None:
    assert connections("2024-05-08") == [[(OUT, "2024-05-08"), (ON, "2024-05-08")]]
    assert connections("2024-05-09")[1] == [(NIGHT, "2024-05-09"), (ON, "2024-05-10")]


REFUSALS = [
    ("get_user_details", {"user_id": "nobody"}, "User nobody not found"),
    ("get_user_details", {"user_id": None}, "User None not found"),
    ("get_user_details", {"user_id": []}, "unhashable type: 'list'"),
    ("get_reservation_details", {"reservation_id": "eco0001"}, "Reservation eco0001 not found"),
    ("get_flight_status", info("KT9"), "Flight KT9 not found"),
    ("get_flight_status", info(OUT, "May"), f"Flight {OUT} not found on date May"),
    ("cancel_reservation", {"reservation_id": "X"}, "Reservation X not found"),
    ("send_certificate", {"user_id": "x", "amount": "much"}, "User x not found"),
    # A booking looks at the user, then the flights, each for status and seats, then the payments.
    (BOOK, booking(user_id="x", cabin="first"), "User x not found"),
    (BOOK, booking(flights=[info("KT9")]), "Flight KT9 not found"),
    (BOOK, booking(flights=[info(OUT, "x")]), f"Flight {OUT} not found on date x"),
    (
        BOOK,
        booking(flights=[info(OUT, "2024-05-15")]),
        f"Flight {OUT} not available on date 2024-05-15",
    ),
    (BOOK, booking(passengers=[LENA] * 4, payment_methods=[]), f"Not enough seats on flight {OUT}"),
    (BOOK, booking(payment_methods=pays("x", 1)), "Payment method x not found"),
    (
        BOOK,
        booking(payment_methods=pays(CERTIFICATE, 101)),
        f"Not enough balance in payment method {CERTIFICATE}",
    ),
    (
        BOOK,
        booking(payment_methods=pays(GIFT, 251)),
        f"Not enough balance in payment method {GIFT}",
    ),
    (
        BOOK,
        booking(insurance="yes", nonfree_baggages=2),
        "Payment amount does not add up, total price is 230, but paid 100",
    ),
    (
        BOOK,
        booking(nonfree_baggages=1.0, total_baggages=1.0),
        "Payment amount does not add up, total price is 150.0, but paid 100",
    ),
    (
        BOOK,
        booking(nonfree_baggages="1"),
        "unsupported operand type(s) for +=: 'int' and 'str'",
    ),
    (BOOK, booking(flights=None), "'NoneType' object is not iterable"),
    (BOOK, booking(flights="KT1"), "'str' object has no attribute 'flight_number'"),
    (BOOK, booking(flights=[info(OUT), 1]), "'dict' object has no attribute 'flight_number'"),
    (BAGS, {**bags(1, 1), "reservation_id": "X"}, "Reservation X not found"),
    (BAGS, bags(1, 1, "x"), "Payment method not found"),
    (BAGS, bags(1, 1, CERTIFICATE), "Certificate cannot be used to update reservation"),
    (BAGS, bags(9, 7, GIFT), "Gift card balance is not enough"),
    (BAGS, bags(2, "2"), "unsupported operand type(s) for -: 'str' and 'int'"),
    (CHANGE, {**changing([]), "reservation_id": "X"}, "Reservation X not found"),
    (CHANGE, changing([info("KT9")], payment_id="x"), "Flight KT9 not found"),
    (CHANGE, changing([info(OUT, "2024-05-19")]), f"Flight {OUT} not available on date 2024-05-19"),
    (CHANGE, changing([info(OUT, LATER)]), f"Not enough seats on flight {OUT}"),
    (CHANGE, changing([info(OUT)], cabin="first"), "'first'"),
    (CHANGE, changing([info(OUT)], cabin=[]), "unhashable type: 'list'"),
    (CHANGE, changing([], payment_id="x"), "Payment method not found"),
    (
        CHANGE,
        changing([info(OUT)], payment_id=CERTIFICATE),
        "Certificate cannot be used to update reservation",
    ),
    (
        CHANGE,
        changing([info(OUT), info(BACK), info(NIGHT), info(ON)], payment_id=GIFT),
        "Gift card balance is not enough",
    ),
    (PEOPLE, {"reservation_id": "X", "passengers": [LENA]}, "Reservation X not found"),
    (PEOPLE, {"reservation_id": ECONOMY, "passengers": []}, "Number of passengers does not match"),
    (PEOPLE, {"reservation_id": ECONOMY, "passengers": 2}, "'int' object is not iterable"),
]


@pytest.mark.parametrize(("name", "arguments", "text"), REFUSALS)
def test_a_refusal_has_its_text_and_changes_nothing(name: str, arguments: Json, text: str) -> None:
    airline = tools()
    before = airline.database.digest()
    assert refused(airline, name, arguments) == text
    assert airline.database.digest() == before


FOUND_WRONG = [
    (
        BOOK,
        booking(flights=[{"flight_number": OUT}], user_id="x"),
        (
            "1 validation error for FlightInfo\ndate\n  Field required [type=missing, "
            "input_value={'flight_number': 'KT1'}, input_type=dict]\n"
            "    For further information visit https://errors.pydantic.dev/missing"
        ),
    ),
    (BOOK, booking(passengers=[{**LENA, "dob": 1980}]), "1 validation error for Passenger\ndob\n"),
    (BOOK, booking(payment_methods=pays(CARD, 99.5)), "1 validation error for Payment\namount\n"),
    (BOOK, booking(cabin="first"), "1 validation error for Reservation\ncabin\n"),
    (
        BOOK,
        booking(passengers=[LENA, "x"], payment_methods="x", insurance=True),
        "3 validation errors for Reservation\npassengers.1\n",
    ),
    (BOOK, booking(nonfree_baggages=None), "1 validation error for Reservation\nnonfree_baggages"),
    (CHANGE, changing([{"date": DAY}]), "1 validation error for FlightInfo\nflight_number\n"),
    (
        PEOPLE,
        {"reservation_id": "X", "passengers": [{}]},
        "3 validation errors for Passenger\nfirst_name\n",
    ),
    (
        "send_certificate",
        {"user_id": USER, "amount": "much"},
        (
            "1 validation error for Certificate\namount\n  Input should be a valid number, unable "
            "to parse string as a number [type=float_parsing, input_value='much', input_type=str]"
        ),
    ),
]


@pytest.mark.parametrize(("name", "arguments", "text"), FOUND_WRONG)
def test_a_wrong_object_has_pydantics_text(name: str, arguments: Json, text: str) -> None:
    airline = tools()
    before = airline.database.digest()
    assert refused(airline, name, arguments).startswith(text)
    assert airline.database.digest() == before


def test_a_booking_takes_seats_and_money_and_is_the_users() -> None:
    airline = tools()
    made = done(airline, BOOK, booking(payment_methods=pays(GIFT, 100)))
    assert made["reservation_id"] == NEW_RESERVATIONS[0]
    assert made["flights"] == [{**info(OUT), "origin": "DEN", "destination": "BOS", "price": 100}]
    assert (made["created_at"], made["status"]) == ("2024-05-15T15:00:00", None)
    assert (seats(airline), balance(airline)) == (2, 150.0)
    assert airline.database["users"][USER]["reservations"][-1] == made["reservation_id"]
    shown = done(airline, "get_reservation_details", {"reservation_id": made["reservation_id"]})
    assert shown == made


def test_a_booking_reads_numbers_from_text_and_drops_what_it_does_not_know() -> None:
    arguments = booking(
        flights=[{**info(OUT), "seat": "1A"}],
        passengers=[{**LENA, "meal": "none"}],
        payment_methods=[{"payment_id": CARD, "amount": "100", "note": 1}],
        total_baggages="1",
    )
    made = done(tools(), BOOK, arguments)
    assert made["passengers"] == [LENA]
    assert made["payment_history"] == pays(CARD, 100)
    assert made["total_baggages"] == 1


def test_a_certificate_that_pays_twice_is_used_up_though_nothing_is_booked() -> None:
    airline = tools()
    twice = [*pays(GIFT, 20), *pays(CERTIFICATE, 40), *pays(CERTIFICATE, 40)]
    assert refused(airline, BOOK, booking(payment_methods=twice)) == f"'{CERTIFICATE}'"
    assert CERTIFICATE not in airline.database["users"][USER]["payment_methods"]
    assert (balance(airline), seats(airline)) == (230.0, 3)
    assert NEW_RESERVATIONS[0] not in airline.database["reservations"]


def test_there_are_three_new_reservations() -> None:
    airline = tools()
    for expected in NEW_RESERVATIONS:
        assert done(airline, BOOK, booking())["reservation_id"] == expected
    assert refused(airline, BOOK, booking(cabin="first")) == "Too many reservations"


def test_a_cancellation_pays_back_every_time_and_gives_no_seat_back() -> None:
    airline = tools()
    for amounts in ([390, -390], [390, -390, -390, 390]):
        made = done(airline, "cancel_reservation", {"reservation_id": ECONOMY})
        assert [payment["amount"] for payment in made["payment_history"]] == amounts
        assert made["status"] == "cancelled"
    assert (balance(airline), seats(airline)) == (250.0, 3)


def test_there_are_three_certificates_and_their_amounts_are_floats() -> None:
    airline = tools()
    for expected, amount in zip(NEW_CERTIFICATES, (50, "60", True), strict=True):
        text = f"Certificate {expected} added to user {OTHER} with amount {amount}."
        arguments = {"user_id": OTHER, "amount": amount}
        assert airline.call("send_certificate", arguments).content == text
    held = airline.database["users"][OTHER]["payment_methods"]
    assert [method["amount"] for method in held.values()] == [50.0, 60.0, 1.0]
    arguments = {"user_id": OTHER, "amount": "much"}
    assert refused(airline, "send_certificate", arguments) == "Too many certificates"


def test_bags_that_are_not_free_are_paid_at_once() -> None:
    airline = tools()
    made = done(airline, BAGS, bags(4, 3, GIFT))
    assert (made["total_baggages"], made["nonfree_baggages"]) == (4, 3)
    assert made["payment_history"][1:] == pays(GIFT, 100)
    assert balance(airline) == 150.0


def test_fewer_bags_give_nothing_back_and_are_no_payment() -> None:
    airline = tools()
    made = done(airline, BAGS, bags(0, 0, GIFT))
    assert (made["nonfree_baggages"], len(made["payment_history"])) == (0, 1)
    assert balance(airline) == 250.0


def test_part_of_a_dollar_is_refused_after_the_gift_card_was_charged() -> None:
    airline = tools()
    text = refused(airline, BAGS, bags(2, 1.25, GIFT))
    assert text.startswith("1 validation error for Payment\namount\n")
    assert balance(airline) == 237.5
    assert airline.database["reservations"][ECONOMY]["nonfree_baggages"] == 1


def test_a_flight_that_is_kept_keeps_its_price() -> None:
    airline = tools()
    made = done(airline, CHANGE, changing([info(NIGHT), info(BACK)], payment_id=GIFT))
    assert [one["price"] for one in made["flights"]] == [100, 90]
    assert made["payment_history"][1:] == pays(GIFT, 40)
    assert (balance(airline), seats(airline, NIGHT)) == (210.0, 3)


def test_another_cabin_has_todays_prices_and_may_give_money_back() -> None:
    airline = tools()
    flights = [info(OUT), info(BACK)]
    made = done(airline, CHANGE, changing(flights, "basic_economy", GIFT))
    assert [one["price"] for one in made["flights"]] == [50, 50]
    assert made["payment_history"][1:] == pays(GIFT, -140)
    assert (made["cabin"], balance(airline)) == ("basic_economy", 390.0)


def test_a_change_to_no_flights_pays_everything_back_in_any_cabin() -> None:
    made = done(tools(), CHANGE, changing([], "first", GIFT))
    assert (made["flights"], made["cabin"]) == ([], "first")
    assert made["payment_history"][1:] == pays(GIFT, -340)


def test_passengers_are_replaced_by_as_many() -> None:
    arguments = {"reservation_id": BASIC, "passengers": [{**RUNA, "seat": 1}]}
    assert done(tools(), PEOPLE, arguments)["passengers"] == [RUNA]
