"""The shapes of telecom records, as the original's models have them. A party reads names, order of
fields, defaults and pydantic's error texts. An unknown field is an error."""

from datetime import date, datetime
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Strict(BaseModel):
    """A shape that takes no other field."""

    model_config = ConfigDict(extra="forbid")


def _parse_text(kind: type[date]) -> BeforeValidator:
    return BeforeValidator(
        lambda value: kind.fromisoformat(value) if isinstance(value, str) else value
    )


Day = Annotated[date, _parse_text(date)]
Time = Annotated[datetime, _parse_text(datetime)]


class APNNames(str, Enum):  # noqa: UP042 - the text of a member is the original's
    """Access points."""

    INTERNET = "internet"
    BROKEN = "broken"


class APNSettings(Strict):
    """How the phone reaches the carrier's data network."""

    apn_name: Annotated[APNNames, Field(description="Name of the access point.")] = (
        APNNames.INTERNET
    )
    reset_at_reboot: Annotated[
        bool, Field(description="Whether the settings become the default ones at a restart.")
    ] = False
    mms_apn: Annotated[str | None, Field(description="Access point of picture messages.")] = "mms"
    mmsc_url: Annotated[str | None, Field(description="Where picture messages are sent.")] = (
        "http://mms.carrier.com/mms/wapenc"
    )
    mms_proxy: Annotated[str | None, Field(description="Proxy for picture messages.")] = None
    mms_port: Annotated[int | None, Field(description="Port of that proxy.")] = None


class Address(Strict):
    """Where a customer lives."""

    street: str
    city: str
    state: str
    zip_code: str


class Plan(Strict):
    """The price and data volume of a line."""

    plan_id: str
    name: str
    data_limit_gb: float
    price_per_month: float
    data_refueling_price_per_gb: float


class Device(Strict):
    """A device as the company knows it."""

    device_id: str
    device_type: Literal["phone", "router", "tablet", "watch", "other"]
    model: str
    imei: str | None = None
    is_esim_capable: bool
    activated: bool = False
    activation_date: Time | None = None
    last_esim_transfer_date: Time | None = None


class Line(Strict):
    """A phone number and what it may do."""

    line_id: str
    phone_number: str
    status: Literal["Active", "Suspended", "Pending Activation", "Closed"] = "Pending Activation"
    plan_id: str
    device_id: str | None = None
    data_used_gb: float = 0.0
    data_refueling_gb: float = 0.0
    roaming_enabled: bool = False
    contract_end_date: Day | None = None
    last_plan_change_date: Day | None = None
    last_sim_replacement_date: Day | None = None
    suspension_start_date: Day | None = None


class LineItem(Strict):
    """A part of a bill."""

    description: str
    amount: float
    date: Day
    item_type: str


class Bill(Strict):
    """A customer's bill for a period."""

    bill_id: str
    customer_id: str
    period_start: Day
    period_end: Day
    issue_date: Day
    total_due: float
    due_date: Day
    line_items: list[LineItem] = []
    status: Literal["Draft", "Issued", "Awaiting Payment", "Paid", "Overdue", "Disputed"] = "Draft"


class PaymentMethod(Strict):
    """A stored means of payment."""

    method_type: Literal["Credit Card", "Debit Card", "PayPal"]
    account_number_last_4: str
    expiration_date: str


class Customer(Strict):
    """A person with lines and bills."""

    customer_id: str
    full_name: str
    date_of_birth: str
    email: str
    phone_number: str
    address: Address
    account_status: Literal["Active", "Suspended", "Pending Verification", "Closed"] = (
        "Pending Verification"
    )
    payment_methods: list[PaymentMethod] = []
    line_ids: list[str] = []
    bill_ids: list[str] = []
    created_at: Time | date = date(2025, 1, 1)
    last_extension_date: Day | None = None
    goodwill_credit_used_this_year: float = 0.0


Signal = Literal["none", "poor", "fair", "good", "excellent"]
Performance = Literal["unknown", "poor", "fair", "good", "excellent"]
Technology = Literal["none", "2G", "3G", "4G", "5G"]


class VpnDetails(Strict):
    """The tunnel that a phone is connected by."""

    server_address: str | None = None
    protocol: str | None = None
    server_performance: Performance = "unknown"


class AppPermissions(Strict):
    """The permissions of an app."""

    sms: bool = False
    storage: bool = False
    phone: bool = False
    network: bool = False


class AppStatus(Strict):
    """An app on the phone."""

    app_name: str
    permissions: AppPermissions = AppPermissions()


def _default_apps() -> dict[str, AppStatus]:
    return {
        "messaging": AppStatus(
            app_name="messaging", permissions=AppPermissions(sms=True, storage=True, phone=True)
        ),
        "browser": AppStatus(
            app_name="browser", permissions=AppPermissions(network=True, storage=True)
        ),
    }


class Phone(Strict):
    """The settings of a phone, as the user sees them."""

    sim_card_status: Literal["active", "missing", "locked_pin", "locked_puk"] = "active"
    sim_card_missing: bool = False
    airplane_mode: bool = False
    network_signal_strength: Signal = "good"
    network_technology_connected: Technology = "5G"
    network_connection_status: Literal["connected", "searching", "no_service", "emergency_only"] = (
        "connected"
    )
    battery_level: int = 80
    data_enabled: bool = True
    roaming_enabled: bool = False
    network_mode_preference: Literal["4g_5g_preferred", "4g_only", "3g_only", "2g_only"] = (
        "4g_5g_preferred"
    )
    active_apn_settings: APNSettings = APNSettings()
    wifi_enabled: bool = False
    wifi_connected: bool = False
    wifi_ssid: str | None = None
    wifi_signal_strength: Signal = "none"
    wifi_calling_enabled: bool = False
    wifi_calling_mms_over_wifi: bool = False
    data_saver_mode: bool = False
    vpn_enabled_setting: bool = False
    vpn_connected: bool = False
    vpn_details: VpnDetails | None = None
    app_statuses: dict[str, AppStatus] = Field(default_factory=_default_apps)


class PaymentRequest(Strict):
    """A request of the company to pay."""

    bill_id: str
    amount_due: float
    paid: bool = False


def _default_signals() -> dict[Technology, Signal]:
    return {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"}


class Surroundings(Strict):
    """Where the user is, and what the company lets the phone do."""

    name: str | None = None
    phone_number: str | None = None
    is_abroad: bool = False
    roaming_allowed: bool = False
    signal_strength: dict[Technology, Signal] = Field(default_factory=_default_signals)
    mobile_data_usage_exceeded: bool = False
    line_active: bool = True
    payment_request: PaymentRequest | None = None
