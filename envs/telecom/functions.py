"""Functions that only tasks call: they set up faults before a task begins and check its last state.
Guarantee: names, arguments and effects are tau2-bench's. A call that fits no function raises
`UnknownFunction`. No party of an episode can call these functions."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from envs.database import Database
from envs.environment import UnknownTask
from envs.task import Assertion, StateCall
from envs.telecom import phone
from envs.telecom.tools import ACTIVE, SUSPENDED, TODAY, TelecomTools
from envs.telecom.user_tools import TelecomUserTools


class UnknownFunction(UnknownTask):
    """A task calls a function that does not exist, or with arguments that do not fit."""


def run_setup(database: Database, call: StateCall) -> None:
    """Run one setup call, then synchronise company and phone. Raise UnknownFunction."""
    _run(database, call)
    phone.synchronize(database)


def holds(database: Database, assertion: Assertion) -> bool:
    """Return whether an assertion holds in a state. Raise UnknownFunction."""
    return bool(_run(database, assertion)) == assertion.expected


def _run(database: Database, call: StateCall) -> Any:
    function = _FUNCTIONS[call.side].get(call.name)
    try:
        if function is not None:
            return function(database, **call.arguments)
        tools = TelecomUserTools if call.side == "user" else TelecomTools
        if call.name in tools.tools():
            return getattr(tools(database), call.name)(**call.arguments)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnknownFunction(
            f"{call.name} of the {call.side}'s side cannot be called with "
            f"{call.arguments}: {error}; correct the task"
        ) from error
    raise UnknownFunction(
        f"there is no function {call.name!r} of the {call.side}'s side; correct the task"
    )


def _set_user_info(database: Database, name: str, phone_number: str) -> None:
    phone.edit_surroundings(database).update(name=name, phone_number=phone_number)


def _set_user_location(database: Database, abroad: bool) -> None:
    phone.edit_surroundings(database)["is_abroad"] = abroad


def _airplane_mode(on: bool) -> Callable[[Database], None]:
    def switch(database: Database) -> None:
        if phone.device(database)["airplane_mode"] == on:
            # The original switches to the other mode and back, and loses connections both times.
            phone.set_airplane_mode(database, not on)
        phone.set_airplane_mode(database, on)

    return switch


def _setting(name: str, value: bool, search: bool = True) -> Callable[[Database], None]:
    def switch(database: Database) -> None:
        phone.edit_device(database)[name] = value
        if search:
            phone.search_network(database)

    return switch


def _lock_sim_card(database: Database, mode: str) -> None:
    if mode in ("pin", "puk"):
        phone.edit_device(database)["sim_card_status"] = f"locked_{mode}"
    phone.search_network(database)


def _break_apn_settings(database: Database) -> None:
    phone.edit_device(database)["active_apn_settings"]["apn_name"] = "broken"
    phone.search_network(database)


def _break_apn_mms_setting(database: Database) -> None:
    phone.edit_device(database)["active_apn_settings"]["mmsc_url"] = None


def _set_wifi_calling(database: Database, enabled: bool, mms_over_wifi: bool | None = None) -> None:
    state = phone.edit_device(database)
    state["wifi_calling_enabled"] = enabled
    if mms_over_wifi is not None:
        state["wifi_calling_mms_over_wifi"] = mms_over_wifi


def _break_vpn(database: Database) -> None:
    if phone.connect_vpn(database):
        # The original's default is one shared object, so later connections are slow too.
        database.edit(phone.VPN, phone.VPN_DEFAULT)["server_performance"] = "poor"
    phone.edit_device(database)["vpn_details"]["server_performance"] = "poor"


def _remove_app_permission(database: Database, app_name: str, permission: str) -> None:
    app = phone.edit_device(database)["app_statuses"].get(app_name)
    if app is not None and permission.lower() in app["permissions"]:
        app["permissions"][permission.lower()] = False


def _set_data_usage(
    database: Database, customer_id: str, line_id: str, data_used_gb: float
) -> None:
    phone.find_owned_line(database, customer_id, line_id)
    database.edit("lines", line_id)["data_used_gb"] = data_used_gb


def _suspend_line_for_overdue_bill(
    database: Database, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
) -> None:
    line = phone.find_record(database, "lines", line_id, "Line")
    if line["status"] != ACTIVE:
        raise ValueError("Line must be active to suspend for unpaid bill")
    price = phone.find_record(database, "plans", line["plan_id"], "Plan")["price_per_month"]
    customer = phone.find_record(database, "customers", customer_id, "Customer")
    bills = (phone.find_record(database, "bills", key, "Bill") for key in customer["bill_ids"])
    if any(bill["status"] == "Overdue" for bill in bills):
        raise ValueError("Customer already has an overdue bill")
    item = {"description": f"Charge for line {line_id}", "amount": price, "date": TODAY}
    bill = {
        "bill_id": new_bill_id,
        "customer_id": customer_id,
        **_LAST_BILL,
        "total_due": price,
        "due_date": "2025-01-15",
        "line_items": [{**item, "item_type": "Charge"}],
        "status": "Overdue",
    }
    database.put("bills", new_bill_id, bill)
    database.edit("customers", customer_id)["bill_ids"].append(new_bill_id)
    line = database.edit("lines", line_id)
    line["status"] = SUSPENDED
    line["suspension_start_date"] = TODAY
    if contract_ended:
        line["contract_end_date"] = _LAST_BILL["period_end"]


_LAST_BILL: Final = {
    "period_start": "2025-01-01",
    "period_end": "2025-01-31",
    "issue_date": "2025-01-01",
}


def _line_status(database: Database, customer_id: str, line_id: str, expected_status: str) -> bool:
    return bool(phone.find_owned_line(database, customer_id, line_id)["status"] == expected_status)


def _data_refueling_amount(
    database: Database, customer_id: str, line_id: str, expected_amount: float
) -> bool:
    line = phone.find_owned_line(database, customer_id, line_id)
    return bool(abs(line["data_refueling_gb"] - expected_amount) < 1e-6)


def _overdue_bill_exists(database: Database, customer_id: str, overdue_bill_id: str) -> bool:
    customer = phone.find_record(database, "customers", customer_id, "Customer")
    if overdue_bill_id not in customer["bill_ids"]:
        return False
    return bool(database["bills"][overdue_bill_id]["status"] == "Overdue")


def _no_overdue_bill(database: Database, overdue_bill_id: str) -> bool:
    bill = database["bills"].get(overdue_bill_id)
    return bill is None or bill["status"] == "Paid"


def _internet_speed(
    database: Database, expected_speed: float, expected_desc: str | None = None
) -> bool:
    speed, rating = phone.measure_speed(database)
    is_called_so = expected_desc is None or rating.lower() == expected_desc.lower()
    return (speed or 0.0) >= expected_speed and is_called_so


def _setting_is(name: str) -> Callable[[Database, Any], bool]:
    def check(database: Database, expected_status: Any) -> bool:
        return bool(phone.device(database)[name] == expected_status)

    return check


_FUNCTIONS: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = {
    "assistant": {
        "set_data_usage": _set_data_usage,
        "suspend_line_for_overdue_bill": _suspend_line_for_overdue_bill,
        "assert_data_refueling_amount": _data_refueling_amount,
        "assert_line_status": _line_status,
        "assert_no_overdue_bill": _no_overdue_bill,
        "assert_overdue_bill_exists": _overdue_bill_exists,
    },
    "user": {
        "set_user_info": _set_user_info,
        "set_user_location": _set_user_location,
        "simulate_network_search": phone.search_network,
        "turn_airplane_mode_on": _airplane_mode(True),
        "turn_airplane_mode_off": _airplane_mode(False),
        "unseat_sim_card": _setting("sim_card_missing", True),
        "lock_sim_card": _lock_sim_card,
        "turn_data_on": _setting("data_enabled", True, search=False),
        "turn_data_off": _setting("data_enabled", False),
        "turn_roaming_on": _setting("roaming_enabled", True),
        "turn_roaming_off": _setting("roaming_enabled", False),
        "turn_data_saver_mode_on": _setting("data_saver_mode", True, search=False),
        "turn_data_saver_mode_off": _setting("data_saver_mode", False, search=False),
        "break_apn_settings": _break_apn_settings,
        "break_apn_mms_setting": _break_apn_mms_setting,
        "set_wifi_calling": _set_wifi_calling,
        "break_vpn": _break_vpn,
        "remove_app_permission": _remove_app_permission,
        "assert_airplane_mode_status": _setting_is("airplane_mode"),
        "assert_service_status": _setting_is("network_connection_status"),
        "assert_mobile_roaming_status": _setting_is("roaming_enabled"),
        "assert_mobile_data_saver_mode_status": _setting_is("data_saver_mode"),
        "assert_mobile_data_status": lambda database, expected_status: (
            phone.has_mobile_data(database) == expected_status
        ),
        "assert_internet_speed": _internet_speed,
        "assert_internet_not_excellent": lambda database: (
            phone.measure_speed(database)[1] != "Excellent"
        ),
        "assert_can_send_mms": lambda database, expected_status: (
            phone.can_send_mms(database) == expected_status
        ),
        "assert_mobile_data_usage_exceeded": lambda database, expected_status: (
            phone.surroundings(database)["mobile_data_usage_exceeded"] == expected_status
        ),
    },
}
"""Side -> name -> function, for functions that are no tools. Tasks may also call tools."""
