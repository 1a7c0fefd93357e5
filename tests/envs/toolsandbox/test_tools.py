"""The device's tools: what must be on first, what is canonical, and that every call is answered."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.database import Database
from envs.tools import ToolError
from envs.toolsandbox.device.holidays import list_holidays
from envs.toolsandbox.device.state import build_tables, read_rows, read_setting
from envs.toolsandbox.device.tools import ToolSandboxTools
from envs.toolsandbox.device.units import convert
from tests.envs.toolsandbox.files import NOW, PEOPLE, SETTING

ALL = sorted(ToolSandboxTools.tools())
TOMORROW = NOW + 86_400


def device(**switches: bool) -> ToolSandboxTools:
    rows = {
        "SETTING": [{**SETTING, "cellular": True, **switches}],
        "CONTACT": PEOPLE,
        "MESSAGING": [],
        "REMINDER": [],
    }
    return ToolSandboxTools(Database(build_tables(rows, NOW, ALL)))


def answer(tools: ToolSandboxTools, tool: str, /, **arguments: Any) -> Any:
    result = tools.call(tool, arguments)
    assert not result.error, result
    assert result.content == repr(tools.value)
    return tools.value


def refusal(tools: ToolSandboxTools, tool: str, /, **arguments: Any) -> str:
    result = tools.call(tool, arguments)
    assert result.error
    assert result.defect is None
    return result.content


@pytest.mark.parametrize("service", ["cellular_service", "wifi", "location_service"])
def test_no_service_can_be_switched_on_in_low_battery_mode(service: str) -> None:
    tools = device()
    answer(tools, "set_low_battery_mode_status", on=True)
    assert answer(tools, f"get_{service}_status") is False
    assert "low battery mode" in refusal(tools, f"set_{service}_status", on=True)
    answer(tools, "set_low_battery_mode_status", on=False)
    answer(tools, f"set_{service}_status", on=True)
    assert answer(tools, f"get_{service}_status") is True
    assert "already" in refusal(tools, f"set_{service}_status", on=True)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_stock", {"query": "Apple"}),
        ("search_holiday", {"holiday_name": "Christmas Day"}),
        ("search_lat_lon", {"latitude": 37.3, "longitude": -122.0}),
        ("convert_currency", {"amount": 1, "from_currency_code": "USD", "to_currency_code": "EUR"}),
        ("search_weather_around_lat_lon", {"latitude": 37.3, "longitude": -122.0}),
        ("search_location_around_lat_lon", {"location": "Apple Park"}),
    ],
)
def test_the_network_needs_wifi_and_answers_the_same_every_time(
    name: str, arguments: dict[str, Any]
) -> None:
    assert "wifi is off" in refusal(device(wifi=False), name, **arguments)
    assert answer(device(), name, **arguments) == answer(device(), name, **arguments) is not None


def test_the_location_needs_its_service_and_is_the_default_of_searches() -> None:
    assert "location service is off" in refusal(
        device(location_service=False), "get_current_location"
    )
    assert "is off" in refusal(
        device(location_service=False), "search_location_around_lat_lon", location="Apple Park"
    )
    here = answer(device(), "get_current_location")
    assert answer(device(), "search_lat_lon", **here).startswith("One Apple Park Way, Cupertino")
    nearest = answer(device(), "search_location_around_lat_lon", location="Whole Foods")[0]
    assert nearest["city"] == "Cupertino"


def test_a_message_needs_the_cellular_service_and_finds_its_recipient() -> None:
    arguments = {"phone_number": "+12065550101", "content": "Hello"}
    assert "cellular" in refusal(
        device(cellular=False), "send_message_with_phone_number", **arguments
    )
    tools = device()
    message = answer(tools, "send_message_with_phone_number", **arguments)
    (row,) = answer(tools, "search_messages", content="hello")
    assert (row["message_id"], row["recipient_person_id"]) == (message, "p1")
    assert row["creation_timestamp"] == NOW
    answer(tools, "send_message_with_phone_number", phone_number="+12065550199", content="Hi")
    assert read_rows(tools.database, "MESSAGING")[-1]["recipient_person_id"] is None


def test_people_are_found_by_nearly_their_name_and_exactly_their_number() -> None:
    tools = device()
    assert [r["person_id"] for r in answer(tools, "search_contacts", name="hugo novack")] == ["p1"]
    assert answer(tools, "search_contacts", phone_number="+12065550109") == []
    assert "international" in refusal(tools, "search_contacts", phone_number="206 555 0101")
    assert "at least one" in refusal(tools, "search_contacts")


def test_a_changed_row_is_the_last_and_nothing_to_change_is_refused() -> None:
    tools = device()
    answer(tools, "modify_contact", person_id="p0", name="Ada Quinn")
    assert [row["name"] for row in read_rows(tools.database, "CONTACT")] == [
        "Hugo Novak",
        "Ada Quinn",
    ]
    assert "nothing to change" in refusal(tools, "modify_contact", person_id="p0")
    assert "0 entries" in refusal(tools, "modify_contact", person_id="nobody", name="X")
    assert "second one" in refusal(tools, "modify_contact", person_id="p1", is_self=True)
    answer(tools, "remove_contact", person_id="p0")
    assert "no entry" in refusal(tools, "remove_contact", person_id="p0")


def test_ids_follow_from_the_calls_before_and_are_never_used_again() -> None:
    first, second = device(), device()
    arguments = {"content": "feed the cat", "reminder_timestamp": TOMORROW}
    assert answer(first, "add_reminder", **arguments) == answer(second, "add_reminder", **arguments)
    (row,) = answer(first, "search_reminder", content="the cat")
    answer(first, "remove_reminder", reminder_id=row["reminder_id"])
    assert answer(first, "add_reminder", **arguments) != row["reminder_id"]


def test_times_are_converted_in_utc() -> None:
    tools = device()
    info = answer(tools, "timestamp_to_datetime_info", timestamp=NOW)
    assert info.pop("isoweekday") == datetime.fromtimestamp(NOW, UTC).isoweekday()
    assert answer(tools, "datetime_info_to_timestamp", **info) == NOW
    assert answer(tools, "shift_timestamp", timestamp=NOW, weeks=1, days=-6) == TOMORROW
    difference = answer(tools, "timestamp_diff", timestamp_0=NOW, timestamp_1=TOMORROW + 5)
    assert difference == {"days": 1, "seconds": 5}
    clock = answer(tools, "seconds_to_hours_minutes_seconds", seconds=3_725)
    assert clock == {"hour": 1, "minute": 2, "second": 5}
    assert "no date" in refusal(
        tools, "datetime_info_to_timestamp", year=2025, month=2, day=30, hour=0, minute=0, second=0
    )


@pytest.mark.parametrize(
    ("amount", "source", "target", "expected"),
    [
        (100, "celsius", "fahrenheit", 212),
        (32, "Fahrenheit", "Celsius", 0),
        (1, "mile", "kilometers", 1.609344),
        (2, "hours", "minutes", 120),
        (36, "km/h", "meters per second", 10),
        (1, "pound", "grams", 453.59237),
    ],
)
def test_units_are_converted_by_their_names(
    amount: float, source: str, target: str, expected: float
) -> None:
    assert convert(amount, source, target) == pytest.approx(expected)


@pytest.mark.parametrize(("source", "target"), [("furlong", "meter"), ("meter", "second")])
def test_unknown_and_unlike_units_are_refused(source: str, target: str) -> None:
    with pytest.raises(ToolError, match=r"furlong|cannot be converted"):
        convert(1, source, target)


def test_the_holidays_of_a_year_follow_their_rules() -> None:
    days = {name: day for day, name in list_holidays(2026)}
    assert days["Thanksgiving"] == date(2026, 11, 26)
    assert days["Memorial Day"] == date(2026, 5, 25)
    assert days["Martin Luther King Jr. Day"] == date(2026, 1, 19)
    assert days["Independence Day (observed)"] == date(2026, 7, 3)
    assert len(days) == 12
    christmas = answer(device(), "search_holiday", holiday_name="christmas day", year=2026)
    assert christmas == datetime(2026, 12, 25, tzinfo=UTC).timestamp()
    assert answer(device(), "search_holiday", holiday_name="the day of the lemming") is None


def test_the_distance_is_that_on_the_ellipsoid() -> None:
    golden_gate = {"latitude_0": 37.8199, "longitude_0": -122.4786}
    park = {"latitude_1": 37.334606, "longitude_1": -122.009102}
    kilometres = answer(device(), "calculate_lat_lon_distance", **golden_gate, **park)
    assert kilometres == pytest.approx(67.97851, abs=1e-5)


def test_a_tool_that_the_task_does_not_allow_does_not_exist() -> None:
    rows = {"SETTING": [SETTING]}
    tools = ToolSandboxTools(Database(build_tables(rows, NOW, ["get_wifi_status"])))
    assert answer(tools, "get_wifi_status") is True
    result = tools.call("get_current_timestamp", {})
    assert (result.error, result.malformed) == (True, True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
likely = st.sampled_from(
    ["", "+12065550101", "p1", "USD", "celsius", NOW, 0, -1, 1e308, 37.3, -122.0, True, None]
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_is_called_there_is_an_answer_and_no_defect(data: st.DataObject) -> None:
    tools = device(wifi=data.draw(st.booleans()), location_service=data.draw(st.booleans()))
    for _ in range(3):
        name = data.draw(st.sampled_from([*ALL, "end_conversation", "x"]))
        known = ToolSandboxTools.tools().get(name)
        parameters = known.parameters if known else ("a",)
        arguments = data.draw(
            st.dictionaries(
                st.sampled_from([*parameters, "made_up"]), likely | json_values, max_size=6
            )
            | st.text(max_size=20)
        )
        result = tools.call(name, arguments)
        assert isinstance(result.content, str)
        assert result.defect is None, (name, arguments, result)
    assert set(read_setting(tools.database)) == set(SETTING)
