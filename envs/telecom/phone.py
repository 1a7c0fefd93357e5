"""The phone: its displays, its search for a network, and the exchange with the company's records.

The table `phone` has two records: `device` holds its settings, `surroundings` its place and the
company's permissions.

Guarantee: the state after each change is tau2-bench's. Not covered: settings of a wrong type, which
the original stores although nothing can read them; no tool of ours can set them.
"""

from collections.abc import Mapping
from typing import Any, Final

from envs.database import Database, Record
from envs.telecom.records import APNSettings

PHONE: Final = "phone"
DEVICE: Final = "device"
SURROUNDINGS: Final = "surroundings"
VPN: Final = "vpn"
"""Table with the details of the VPN to which the phone connects."""
VPN_DEFAULT: Final = "default"

NONE: Final = "none"
MODES: Final = ("4g_5g_preferred", "4g_only", "3g_only", "2g_only")

_TECHNOLOGIES: Final = {"4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}
_SPEEDS: Final = {"2G": (0.1, 0.4), "3G": (1.0, 5.0), "4G": (10.0, 100.0), "5G": (50.0, 500.0)}
"""Technology -> least and largest speed in megabits per second."""
_SIGNAL_FACTORS: Final = {"poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
_BARS: Final = {
    NONE: "📵 No Signal",
    "poor": "📶¹ Poor",
    "fair": "📶² Fair",
    "good": "📶³ Good",
    "excellent": "📶⁴ Excellent",
}
_RATINGS: Final = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"))
"""Speed in megabits per second below which a connection has this rating."""


def device(database: Database) -> Record:
    """Return the phone's settings for reading."""
    return database[PHONE][DEVICE]


def surroundings(database: Database) -> Record:
    """Return the phone's surroundings for reading."""
    return database[PHONE][SURROUNDINGS]


def edit_device(database: Database) -> Record:
    """Return the phone's settings for changing in place."""
    return database.edit(PHONE, DEVICE)


def edit_surroundings(database: Database) -> Record:
    """Return the phone's surroundings for changing in place."""
    return database.edit(PHONE, SURROUNDINGS)


def sim_status(phone: Mapping[str, Any]) -> str:
    """Return the status of the phone's SIM card, `missing` if there is none."""
    return "missing" if phone["sim_card_missing"] else str(phone["sim_card_status"])


def search_network(database: Database) -> None:
    """Connect the phone to the network that its settings and surroundings allow, or to none."""
    phone, place = edit_device(database), surroundings(database)
    is_off = (
        sim_status(phone) != "active"
        or phone["airplane_mode"]
        or phone["active_apn_settings"]["apn_name"] == "broken"
        or not place["line_active"]
    )
    if is_off:
        status, technology, signal = "no_service", NONE, NONE
    else:
        status = "connected"
        technology, signal = _choose_network(phone, place["signal_strength"])
    phone["network_connection_status"] = status
    phone["network_technology_connected"] = technology
    phone["network_signal_strength"] = signal


def _choose_network(phone: Record, signals: Mapping[str, str]) -> tuple[str, str]:
    mode = phone["network_mode_preference"]
    technology = _TECHNOLOGIES.get(mode, "4G")
    if mode == MODES[0] and signals.get("5G", NONE) != NONE:
        technology = "5G"
    return technology, signals.get(technology, NONE)


def has_mobile_data(database: Database) -> bool:
    """Return whether the phone has internet over the mobile network."""
    phone, place = device(database), surroundings(database)
    if phone["airplane_mode"] or phone["network_signal_strength"] == NONE:
        return False
    if phone["network_connection_status"] == "no_service":
        return False
    if place["is_abroad"] and not (phone["roaming_enabled"] and place["roaming_allowed"]):
        return False
    return bool(phone["data_enabled"]) and not place["mobile_data_usage_exceeded"]


def measure_speed(database: Database) -> tuple[float | None, str]:
    """Return the speed in megabits per second (None without a connection), and its rating."""
    if not has_mobile_data(database):
        return None, "No Connection"
    phone = device(database)
    factor = 1.0
    details = phone["vpn_details"]
    if phone["vpn_connected"] and details and details["server_performance"] == "poor":
        factor = 0.1
    if phone["data_saver_mode"]:
        factor *= 0.2
    least, most = _SPEEDS.get(phone["network_technology_connected"], (0.0, 0.0))
    signal = _SIGNAL_FACTORS.get(phone["network_signal_strength"], 0.0)
    speed = round((least + most) / 2.0 * signal * factor, 2)
    return speed, next((name for limit, name in _RATINGS if speed < limit), "Excellent")


def can_send_mms(database: Database) -> bool:
    """Return whether the messaging app can send pictures."""
    phone = device(database)
    if not has_mobile_data(database) or phone["network_technology_connected"] == "2G":
        return False
    if phone["wifi_calling_enabled"] and phone["wifi_calling_mms_over_wifi"]:
        return False
    if phone["active_apn_settings"]["mmsc_url"] is None:
        return False
    app = phone["app_statuses"].get("messaging")
    return app is not None and bool(app["permissions"]["storage"] and app["permissions"]["sms"])


def status_bar(phone: Mapping[str, Any]) -> str:
    """Return the text of the status bar at the top of the screen."""
    symbols = ["✈️ Airplane Mode"] if phone["airplane_mode"] else _network_symbols(phone)
    if phone["wifi_enabled"] and phone["wifi_connected"]:
        ssid = phone["wifi_ssid"]
        symbols.append(f"📡 Connected to {ssid}" if ssid else "📡 Enabled")
    if phone["vpn_connected"]:
        symbols.append("🔒 VPN Connected")
    symbols.append(f"🔋 {phone['battery_level']}%")
    return " | ".join(symbols)


def _network_symbols(phone: Mapping[str, Any]) -> list[str]:
    technology = phone["network_technology_connected"]
    symbols = [_BARS.get(phone["network_signal_strength"], _BARS[NONE])]
    if technology != NONE:
        symbols.append(technology)
    if not phone["data_enabled"] or technology == NONE:
        return [*symbols, "📵 Data Disabled"]
    symbols.append("📱 Data Enabled")
    return [*symbols, "🔽 Data Saver"] if phone["data_saver_mode"] else symbols


def set_airplane_mode(database: Database, on: bool) -> None:
    """Set airplane mode. Wi-Fi disconnects in both directions, the VPN only when it goes on."""
    phone = edit_device(database)
    phone["airplane_mode"] = on
    if on or phone["wifi_enabled"]:
        disconnect_wifi(phone)
    if on and phone["vpn_connected"]:
        disconnect_vpn(phone)
    search_network(database)


def disconnect_wifi(phone: Record) -> None:
    """Disconnect the phone from Wi-Fi."""
    phone["wifi_connected"] = False
    phone["wifi_ssid"] = None
    phone["wifi_signal_strength"] = NONE


def connect_vpn(database: Database) -> bool:
    """Connect to the VPN. Return False if the phone is already connected."""
    if device(database)["vpn_connected"]:
        return False
    phone = edit_device(database)
    phone["vpn_connected"] = True
    phone["vpn_details"] = dict(database[VPN][VPN_DEFAULT])
    return True


def disconnect_vpn(phone: Record) -> None:
    """Disconnect the phone from the VPN."""
    phone["vpn_connected"] = False
    phone["vpn_details"] = None


def default_apn_settings() -> Record:
    """Return the default settings of the access point."""
    return APNSettings().model_dump(mode="json")


def synchronize(database: Database) -> None:
    """Copy the line's permissions to the phone, and payments to the company's bills. Raise
    ValueError if no line has the phone's number."""
    place = surroundings(database)
    number = place["phone_number"]
    if number is None:
        return
    line = find_line(database, number)
    plan = find_record(database, "plans", line["plan_id"], "Plan")
    is_exceeded = line["data_used_gb"] >= plan["data_limit_gb"] + line["data_refueling_gb"]
    request = _settle_payment(database, place["payment_request"])
    if request is None:
        request = _find_request(database, number)
    now = {
        "line_active": line["status"] == "Active",
        "roaming_allowed": bool(line["roaming_enabled"]),
        "mobile_data_usage_exceeded": is_exceeded,
        "payment_request": request,
    }
    if any(place[name] != value for name, value in now.items()):
        edit_surroundings(database).update(now)


def _settle_payment(database: Database, request: Record | None) -> Record | None:
    """Mark the bill of a paid request as paid. Return the request if it is still open."""
    if request is None or not request["paid"]:
        return request
    find_record(database, "bills", request["bill_id"], "Bill")
    database.edit("bills", request["bill_id"])["status"] = "Paid"
    return None


def _find_request(database: Database, number: str) -> Record | None:
    if not any(bill["status"] == "Awaiting Payment" for bill in database["bills"].values()):
        return None
    bills = awaiting_payment(database, find_customer(database, number))
    if not bills:
        return None
    return {"bill_id": bills[0]["bill_id"], "amount_due": bills[0]["total_due"], "paid": False}


def find_record(database: Database, table: str, key: Any, kind: str) -> Record:
    """Return a record by its id. Raise ValueError with the original's text."""
    record = database[table].get(key) if isinstance(key, str) else None
    if record is None:
        raise ValueError(f"{kind} with ID {key} not found")
    return record


def find_owned_line(database: Database, customer_id: Any, line_id: Any) -> Record:
    """Return a line of a customer. Raise ValueError with the original's text."""
    customer = find_record(database, "customers", customer_id, "Customer")
    if line_id not in customer["line_ids"]:
        raise ValueError(f"Line {line_id} not found for customer {customer_id}")
    return find_record(database, "lines", line_id, "Line")


def find_line(database: Database, number: str) -> Record:
    """Return the first line with a phone number. Raise ValueError."""
    for line in database["lines"].values():
        if line["phone_number"] == number:
            return line
    raise ValueError(f"Line with phone number {number} not found")


def find_customer(database: Database, number: Any) -> Record:
    """Return the first customer with this phone number, their own or a line's. Raise ValueError."""
    for customer in database["customers"].values():
        if customer["phone_number"] == number:
            return customer
        for line_id in customer["line_ids"]:
            if find_record(database, "lines", line_id, "Line")["phone_number"] == number:
                return customer
    raise ValueError(f"Customer with phone number {number} not found")


def awaiting_payment(database: Database, customer: Record) -> list[Record]:
    """Return the customer's bills for which a payment was requested. Raise ValueError."""
    bills = (find_record(database, "bills", key, "Bill") for key in customer["bill_ids"])
    return [bill for bill in bills if bill["status"] == "Awaiting Payment"]
