"""Both sides' tools: what they answer, what they change, and what each side learns of the other."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.database import Database
from envs.task import StateCall, TaskDefinition
from envs.telecom import phone
from envs.telecom.database import canonical, company_digest, user_digest
from envs.telecom.environment import Telecom
from envs.telecom.functions import UnknownFunction, run_setup
from envs.telecom.tools import TelecomTools
from envs.telecom.user_tools import TelecomUserTools
from envs.tools import ToolAccess

NUMBER = "217-402-1187"
WHO = {"customer_id": "C20411"}
LINE = {**WHO, "line_id": "L31071"}

COMPANY: dict[str, Any] = {
    "plans": [
        {
            "plan_id": "P10001",
            "name": "Pocket",
            "data_limit_gb": 4,
            "price_per_month": 25,
            "data_refueling_price_per_gb": 6,
        }
    ],
    "customers": [
        {
            "customer_id": "C20411",
            "full_name": "Ada Berg",
            "date_of_birth": "1980-02-03",
            "email": "ada@example.org",
            "phone_number": "217-402-0000",
            "address": {"street": "1 Mill", "city": "Bend", "state": "OR", "zip_code": "97701"},
            "line_ids": ["L31071"],
            "bill_ids": ["B44101"],
        }
    ],
    "lines": [
        {
            "line_id": "L31071",
            "phone_number": NUMBER,
            "status": "Active",
            "plan_id": "P10001",
            "data_used_gb": 1.5,
        }
    ],
    "bills": [
        {
            "bill_id": "B44101",
            "customer_id": "C20411",
            "period_start": "2025-01-01",
            "period_end": "2025-01-31",
            "issue_date": "2025-01-03",
            "total_due": 25,
            "due_date": "2025-01-17",
            "status": "Overdue",
        }
    ],
}


def state(*setup: StateCall) -> Database:
    """The small state, with the phone in the customer's hand, after some setup."""
    database = Database(canonical(COMPANY, {})).fork()
    own = StateCall(
        name="set_user_info", side="user", arguments={"name": "Ada Berg", "phone_number": NUMBER}
    )
    for call in (own, *setup):
        run_setup(database, call)
    return database


def broken(function: str, /, **arguments: Any) -> StateCall:
    """A call of a task's setup, of the user's side."""
    return StateCall(name=function, side="user", arguments=arguments)


def tools(*setup: StateCall) -> ToolAccess:
    """Both sides' tools over the small state."""
    database = state(*setup)
    return ToolAccess(TelecomTools(database), TelecomUserTools(database))


def ask(access: ToolAccess, name: str, **arguments: Any) -> str:
    """The answer to a call of the user."""
    return access.call(name, arguments, "user").content


def test_a_record_is_shown_in_the_order_of_its_fields_and_with_every_default() -> None:
    answer = tools().call("get_details_by_id", {"id": "P10001"}).content
    assert answer == (
        '{"plan_id": "P10001", "name": "Pocket", "data_limit_gb": 4.0, "price_per_month": 25.0, '
        '"data_refueling_price_per_gb": 6.0}'
    )
    line = json.loads(tools().call("get_details_by_id", {"id": "L31071"}).content)
    assert list(line)[-2:] == ["last_sim_replacement_date", "suspension_start_date"]
    assert (line["data_refueling_gb"], line["device_id"]) == (0.0, None)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("get_customer_by_phone", {"phone_number": "1"}, "Customer with phone number 1 not found"),
        ("get_customer_by_id", {"customer_id": ["C"]}, "Customer with ID ['C'] not found"),
        ("get_details_by_id", {"id": "X1"}, "Unknown ID format or type: X1"),
        ("get_details_by_id", {"id": 5}, "'int' object has no attribute 'startswith'"),
        ("resume_line", LINE, "Line must be suspended to resume"),
        ("suspend_line", {**WHO, "line_id": "L1", "reason": ""},
         "Line L1 not found for customer C20411"),
        ("refuel_data", {**LINE, "gb_amount": 0}, "Refuel amount must be positive"),
        ("refuel_data", {**LINE, "gb_amount": "2"},
         "'<=' not supported between instances of 'str' and 'int'"),
        ("resume_line", WHO,
         "TelecomTools.resume_line() missing 1 required positional argument: 'line_id'"),
        ("toggle_data", {}, "Tool 'toggle_data' not found."),
        ("calculate", {"expression": "1"}, "Tool 'calculate' not found."),
    ],
)  # fmt: skip
def test_errors_are_worded_as_the_original_words_them(
    name: str, arguments: dict[str, Any], text: str
) -> None:
    result = tools().call(name, arguments)
    assert (result.content, result.error) == (f"Error: {text}", True)


def test_a_phone_in_airplane_mode_shows_no_network_and_finds_it_again() -> None:
    access = tools(broken("turn_airplane_mode_on"))
    assert ask(access, "check_status_bar") == "Status Bar: ✈️ Airplane Mode | 🔋 80%"
    assert ask(access, "run_speed_test") == "Speed test failed: No Connection."
    assert ask(access, "toggle_airplane_mode") == (
        "Airplane Mode is now OFF.\nStatus Bar: 📶⁴ Excellent | 5G | 📱 Data Enabled | 🔋 80%"
    )
    assert ask(access, "run_speed_test").startswith("Speed Test Result: 275.00 Mbps (Excellent).")


@pytest.mark.parametrize(
    ("fault", "speed"),
    [
        (broken("turn_data_saver_mode_on"), "44.00 Mbps (Good)"),
        (broken("break_vpn"), "22.00 Mbps (Fair)"),
        (broken("set_network_mode_preference", mode="2g_only"), "0.05 Mbps (Very Poor)"),
        (broken("set_network_mode_preference", mode="3g_only"), "1.50 Mbps (Poor)"),
        (broken("set_network_mode_preference", mode="4g_only"), "44.00 Mbps (Good)"),
    ],
)
def test_what_slows_a_phone_down_shows_in_its_speed(fault: StateCall, speed: str) -> None:
    assert speed in ask(tools(fault), "run_speed_test")


def test_a_vpn_that_was_slow_is_slow_again_after_a_new_connection() -> None:
    access = tools(broken("break_vpn"))
    assert "<PerformanceLevel.POOR: 'poor'>" in ask(access, "check_vpn_status")
    ask(access, "disconnect_vpn")
    assert "220.00" in ask(access, "run_speed_test")
    ask(access, "connect_vpn")
    assert "22.00" in ask(access, "run_speed_test")
    healthy = tools()
    ask(healthy, "connect_vpn")
    assert "220.00" in ask(healthy, "run_speed_test")


def test_access_point_settings_change_at_the_restart() -> None:
    access = tools(broken("break_apn_settings"))
    assert "No Signal" in ask(access, "reset_apn_settings")
    assert ask(access, "reboot_device").startswith(
        "Resetting APN settings...\nRestarting network services...\nStatus Bar: 📶⁴"
    )


@pytest.mark.parametrize(
    "fault",
    [
        broken("remove_app_permission", app_name="messaging", permission="sms"),
        broken("remove_app_permission", app_name="messaging", permission="storage"),
        broken("break_apn_mms_setting"),
        broken("set_wifi_calling", enabled=True, mms_over_wifi=True),
        broken("set_network_mode_preference", mode="2g_only"),
        broken("turn_data_off"),
        broken("unseat_sim_card"),
    ],
)
def test_whatever_stops_picture_messages_shows(fault: StateCall) -> None:
    assert "can send" in ask(tools(), "can_send_mms")
    assert "cannot send" in ask(tools(fault), "can_send_mms")


def test_the_phone_learns_what_the_company_does_and_the_company_what_was_paid() -> None:
    access = tools()
    assert ask(access, "make_payment") == "You do not have a payment request."
    access.call("send_payment_request", {**WHO, "bill_id": "B44101"})
    assert "bill B44101 of 25.0 USD" in ask(access, "check_payment_request")
    refused = access.call("send_payment_request", {**WHO, "bill_id": "B44101"})
    assert refused.content == "Error: A bill is already awaiting payment for this customer"
    ask(access, "make_payment")
    assert access.database["bills"]["B44101"]["status"] == "Paid"
    assert ask(access, "check_payment_request") == "No payment request has been made."


def test_a_suspended_line_has_service_again_after_the_restart() -> None:
    access = tools()
    answer = json.loads(access.call("suspend_line", {**LINE, "reason": "asked for"}).content)
    assert answer["line"]["suspension_start_date"] == "2025-02-25"
    assert "No Signal" in ask(access, "reboot_device")
    access.call("resume_line", LINE)
    assert "No Signal" in ask(access, "check_status_bar")
    assert "Excellent" in ask(access, "reboot_device")


def test_used_up_data_comes_back_when_it_is_refuelled() -> None:
    access = tools(StateCall(name="set_data_usage", arguments={**LINE, "data_used_gb": 4.1}))
    assert "failed" in ask(access, "run_speed_test")
    answer = access.call("refuel_data", {**LINE, "gb_amount": 2.0})
    assert json.loads(answer.content) == {
        "message": "Successfully added 2.0 GB of data for line L31071 for $12.00",
        "new_data_refueling_gb": "2.0",
        "charge": "12.0",
    }
    assert "Excellent" in ask(access, "run_speed_test")
    drafts = [b for b in access.database["bills"].values() if b["status"] == "Draft"]
    assert [bill["total_due"] for bill in drafts] == [12.0]


def test_abroad_both_line_and_phone_must_allow_roaming() -> None:
    access = tools(broken("set_user_location", abroad=True))
    assert "failed" in ask(access, "run_speed_test")
    ask(access, "toggle_roaming")
    assert "failed" in ask(access, "run_speed_test")
    access.call("enable_roaming", LINE)
    assert "Excellent" in ask(access, "run_speed_test")


@pytest.mark.parametrize(
    "call",
    [
        broken("no_such_thing"),
        broken("lock_sim_card"),
        broken("set_user_location", far=True),
        StateCall(name="unseat_sim_card"),
        StateCall(name="set_data_usage", arguments={**LINE, "line_id": "L0", "data_used_gb": 1}),
    ],
)
def test_a_setup_that_cannot_run_names_the_call(call: StateCall) -> None:
    with pytest.raises(UnknownFunction, match=call.name):
        state(call)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
VALUES = JSON | st.sampled_from(
    ["C20411", "L31071", "B44101", "P10001", "4g_only", "messaging", "sms", "x" * 70_000]
)
BOTH = {**TelecomTools.tools(), **TelecomUserTools.tools()}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any, str]:
    """A call of either party: of a tool of either, with arguments of any kind."""
    name = draw(st.sampled_from([*BOTH, "nothing", ""]))
    names = BOTH[name].parameters if name in BOTH else ("a",)
    fitting = st.fixed_dictionaries(dict.fromkeys(names, VALUES))
    arguments = draw(fitting | st.dictionaries(st.text(max_size=8), VALUES) | st.text())
    return name, arguments, draw(st.sampled_from(["assistant", "user"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(calls(), max_size=12), st.booleans())
def test_no_call_of_either_party_ends_in_an_exception(
    made: list[tuple[str, Any, Any]], solo: bool
) -> None:
    database = state()
    access = ToolAccess(TelecomTools(database), TelecomUserTools(database), solo=solo)
    for name, arguments, requestor in made:
        result = access.call(name, arguments, requestor)
        assert isinstance(result.content, str)
        assert result.error == result.content.startswith("Error: ")
    assert len(company_digest(database)) == len(user_digest(database)) == 64
    phone.status_bar(phone.device(database))


def parameters(schema: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of a tool's arguments, and of those that must be there."""
    own = schema["function"]["parameters"]
    return sorted(own["properties"]), sorted(own.get("required", []))


@pytest.mark.benchmarks
def test_the_tools_of_both_sides_are_those_of_the_original(benchmarks: Path) -> None:
    file = json.loads((benchmarks / "tau2" / "telecom" / "tools.json").read_text())
    telecom = Telecom()
    task = TaskDefinition.model_validate(telecom.generate("no_service", 0))
    for side, own in (
        ("assistant", telecom.schemas(task)),
        ("user", telecom.user_schemas(task)),
    ):
        names = [schema["function"]["name"] for schema in file[side]]
        assert sorted(names) == sorted(schema["function"]["name"] for schema in own)
        by_name = {schema["function"]["name"]: schema for schema in own}
        for schema in file[side]:
            assert parameters(schema) == parameters(by_name[schema["function"]["name"]])
    kinds = {name: tool.kind for name, tool in BOTH.items()}
    assert kinds == file["tool_types"]
    declared = telecom.catalog
    assert (declared.writes, declared.user_writes) == (telecom.writes, telecom.user_writes)
    assert declared.tools == frozenset(kinds)


@pytest.mark.benchmarks
def test_the_real_state_has_the_hashes_of_the_original(benchmarks: Path) -> None:
    telecom = Telecom(benchmarks)
    file = json.loads((benchmarks / "tau2" / "telecom" / "tools.json").read_text())
    assert telecom.digests(telecom.benchmark.database) == {
        "db_hash": file["initial_db_hash"],
        "user_db_hash": file["initial_user_db_hash"],
    }
