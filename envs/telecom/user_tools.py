"""The thirty tools of a user with a phone, with tau2-bench's names, arguments and answers. Most
tools that change a setting return the status bar too. Guarantee: that of the agent's tools
(tools.py)."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from envs.telecom import phone
from envs.telecom.records import APNSettings
from envs.telecom.tools import TelecomToolset
from envs.tools import read, write

AppName = Annotated[str, Field(description="Name of the app, such as 'messaging'.")]

_ADVICE: Final = {
    "Very Poor": "Connection is very slow. Basic web browsing might be difficult.",
    "Poor": "Connection is slow. Web browsing may be sluggish, streaming difficult.",
    "Fair": "Connection is okay for web browsing and some standard definition streaming.",
    "Good": "Connection is good for most activities, including HD streaming.",
    "Excellent": "Connection is very fast.",
}
_SIM: Final = {
    "active": "Your SIM card is active and working.",
    "missing": "No SIM card detected in the phone.",
    "locked_pin": "The SIM card is locked with a PIN code.",
    "locked_puk": "The SIM card is locked with a PUK code.",
}
_MODES: Final = ", ".join(phone.MODES)


class TelecomUserTools(TelecomToolset):
    """The user's tools, which act on the user's phone."""

    @read
    def check_status_bar(self) -> str:
        """Look at the symbols at the top of the screen: signal, mobile data, Wi-Fi, battery."""
        return self._bar()

    @read
    def check_network_status(self) -> str:
        """Look at airplane mode, SIM, mobile network, mobile data, data roaming and Wi-Fi."""
        state = self._device()
        lines = [
            f"Airplane Mode: {_on(state['airplane_mode'])}",
            f"SIM Card Status: {phone.sim_status(state)}",
            f"Cellular Connection: {state['network_connection_status']}",
            f"Cellular Signal: {state['network_signal_strength']}",
            f"Cellular Network Type: {state['network_technology_connected']}",
            f"Mobile Data Enabled: {_yes(state['data_enabled'])}",
            f"Data Roaming Enabled: {_yes(state['roaming_enabled'])}",
            f"Wi-Fi Radio: {_on(state['wifi_enabled'])}",
            f"Wi-Fi Connected: {_yes(state['wifi_connected'])}",
        ]
        if state["wifi_connected"]:
            lines.append(f"Connected Wi-Fi Network: {state['wifi_ssid']}")
        return "\n".join(lines)

    @read
    def check_network_mode_preference(self) -> str:
        """Look at which kind of network the phone prefers."""
        return f"Network Mode Preference: {self._device()['network_mode_preference']}"

    @write
    def set_network_mode_preference(
        self,
        mode: Annotated[
            Literal["4g_5g_preferred", "4g_only", "3g_only", "2g_only"],
            Field(description="The kind of network."),
        ],
    ) -> str:
        """Choose which kind of network the phone prefers."""
        if not isinstance(mode, str | None):
            return str(mode.value)  # raises, in the original's words
        if mode not in phone.MODES:
            return (
                f"Failed to set network mode: '{mode}' is not a valid option. "
                f"Please use one of: {_MODES}\n{self._bar()}"
            )
        self._edit()["network_mode_preference"] = mode
        phone.search_network(self.database)
        return self._with_bar(f"Preferred Network Mode set to: {mode}")

    @read
    def run_speed_test(self) -> str:
        """Measure how fast the mobile internet is."""
        speed, rating = phone.measure_speed(self.database)
        if speed is None:
            return f"Speed test failed: {rating}."
        return f"Speed Test Result: {speed:.2f} Mbps ({rating}). {_ADVICE[rating]}"

    @write
    def toggle_airplane_mode(self) -> str:
        """Switch airplane mode, which cuts every connection while it is on."""
        phone.set_airplane_mode(self.database, not self._device()["airplane_mode"])
        return self._with_bar(f"Airplane Mode is now {_on(self._device()['airplane_mode'])}.")

    @read
    def check_sim_status(self) -> str:
        """Look whether the SIM card works, is missing or is locked."""
        return _SIM[phone.sim_status(self._device())]

    @write
    def reseat_sim_card(self) -> str:
        """Take the SIM card out and put it in again."""
        self._edit()["sim_card_missing"] = False
        phone.search_network(self.database)
        return self._with_bar("SIM card re-seated successfully.")

    @write
    def toggle_data(self) -> str:
        """Switch mobile data."""
        on = self._switch("data_enabled")
        phone.search_network(self.database)
        return self._with_bar(f"Mobile Data is now {_on(on)}.")

    @write
    def toggle_roaming(self) -> str:
        """Switch data roaming, which allows mobile data abroad."""
        on = self._switch("roaming_enabled")
        phone.search_network(self.database)
        return self._with_bar(f"Data Roaming is now {_on(on)}.")

    @read
    def check_data_restriction_status(self) -> str:
        """Look whether data saver is on."""
        if self._device()["data_saver_mode"]:
            return "Data Saver mode is ON (limits data usage)."
        return "Data Saver mode is OFF."

    @write
    def toggle_data_saver_mode(self) -> str:
        """Switch data saver, which slows mobile data down while it is on."""
        return self._with_bar(f"Data Saver Mode is now {_on(self._switch('data_saver_mode'))}.")

    @read
    def check_apn_settings(self) -> str:
        """Look at the access point: its name, and where picture messages are sent."""
        settings = self._device()["active_apn_settings"]
        return (
            f"Current APN Name: {settings['apn_name'] or 'Not Set'}\n"
            f"MMSC URL (for picture messages): {settings['mmsc_url'] or 'Not Set'}\n"
            "(These are technical settings, usually best left unchanged.)"
        )

    @write
    def set_apn_settings(
        self, apn_settings: Annotated[APNSettings, Field(description="All of the settings.")]
    ) -> str:
        """Set the access point by hand."""
        # For another value the missing attribute raises the original's error.
        settings = APNSettings(**apn_settings) if isinstance(apn_settings, dict) else apn_settings
        name = settings.apn_name.value
        self._edit()["active_apn_settings"] = settings.model_dump(mode="json")
        phone.search_network(self.database)
        return self._with_bar(f"APN settings set to: {name}")

    @write
    def reset_apn_settings(self) -> str:
        """Have the access point set to the carrier's own at the next restart."""
        self._edit()["active_apn_settings"]["reset_at_reboot"] = True
        phone.search_network(self.database)
        return self._with_bar("APN settings will reset at reboot.")

    @read
    def check_wifi_status(self) -> str:
        """Look whether Wi-Fi is on and connected."""
        state = self._device()
        if not state["wifi_enabled"]:
            return "Wi-Fi is turned OFF."
        if not state["wifi_connected"]:
            return "Wi-Fi is ON but not connected to any network."
        return (
            f"Wi-Fi is ON and connected to '{state['wifi_ssid']}'. "
            f"Signal strength: {state['wifi_signal_strength']}."
        )

    @write
    def toggle_wifi(self) -> str:
        """Switch Wi-Fi; not while airplane mode is on."""
        if self._device()["airplane_mode"]:
            return self._with_bar("Cannot change Wi-Fi settings while Airplane Mode is ON.")
        on = self._switch("wifi_enabled")
        if not on:
            phone.disconnect_wifi(self._edit())
        return self._with_bar(f"Wi-Fi is now {_on(on)}.")

    @read
    def check_wifi_calling_status(self) -> str:
        """Look whether calls go over Wi-Fi."""
        return f"Wi-Fi Calling is currently turned {_on(self._device()['wifi_calling_enabled'])}."

    @write
    def toggle_wifi_calling(self) -> str:
        """Switch whether calls go over Wi-Fi."""
        return self._with_bar(f"Wi-Fi Calling is now {_on(self._switch('wifi_calling_enabled'))}.")

    @read
    def check_vpn_status(self) -> str:
        """Look whether the internet goes through a VPN."""
        state = self._device()
        if state["vpn_connected"]:
            details = state["vpn_details"]
            if details:
                return f"VPN is ON and connected. Details: {_describe_vpn(details)}"
            return "VPN is ON and connected (no specific details available)."
        if state["vpn_enabled_setting"]:
            return "VPN is turned ON in settings, but currently not connected."
        return "VPN is turned OFF."

    @write
    def connect_vpn(self) -> str:
        """Connect to the VPN."""
        if not phone.connect_vpn(self.database):
            return "VPN already connected."
        return self._with_bar("VPN connected successfully.")

    @write
    def disconnect_vpn(self) -> str:
        """Disconnect from the VPN."""
        if not self._device()["vpn_connected"]:
            return self._with_bar("No active VPN connection to disconnect.")
        phone.disconnect_vpn(self._edit())
        return self._with_bar("VPN disconnected successfully.")

    @read
    def check_installed_apps(self) -> str:
        """List the apps."""
        return f"The following apps are installed on the phone: {', '.join(self._apps())}"

    @read
    def check_app_status(self, app_name: AppName) -> str:
        """Look at an app."""
        app = self._apps().get(app_name)
        if app is None:
            return f"App '{app_name}' not found on this phone."
        granted = _list_permissions(app)
        lines = [f"Status for App: {app_name}"]
        lines.append(" - Permissions Granted:" if granted else " - Permissions: None granted.")
        return "\n".join([*lines, *(f"   - {name}" for name in granted)])

    @read
    def check_app_permissions(self, app_name: AppName) -> str:
        """Look at what an app may do."""
        app = self._apps().get(app_name)
        if app is None:
            return f"App '{app_name}' not found on this phone."
        granted = _list_permissions(app)
        if not granted:
            return f"App '{app_name}' currently has no permissions granted."
        return f"App '{app_name}' has permission for: {', '.join(granted)}."

    @write
    def grant_app_permission(
        self,
        app_name: AppName,
        permission: Annotated[
            str, Field(description="What it may do: sms, storage, phone or network.")
        ],
    ) -> str:
        """Allow an app something."""
        return self._with_bar(self._grant(app_name, permission))

    @read
    def can_send_mms(self) -> str:
        """Try whether the messaging app can send pictures."""
        can = "can" if phone.can_send_mms(self.database) else "cannot"
        return f"Your messaging app {can} send MMS messages."

    @write
    def reboot_device(self) -> str:
        """Restart the phone."""
        lines = ["Restarting network services..."]
        if self._device()["active_apn_settings"]["reset_at_reboot"]:
            lines.insert(0, "Resetting APN settings...")
            self._edit()["active_apn_settings"] = phone.default_apn_settings()
        phone.search_network(self.database)
        return self._with_bar("\n".join(lines))

    @read
    def check_payment_request(self) -> str:
        """Look whether the company asks for a payment."""
        request = phone.surroundings(self.database)["payment_request"]
        if request is None:
            return "No payment request has been made."
        return (
            f"You have a payment request for bill {request['bill_id']} "
            f"of {request['amount_due']} USD."
        )

    @write
    def make_payment(self) -> str:
        """Pay what the company asks for."""
        if phone.surroundings(self.database)["payment_request"] is None:
            return "You do not have a payment request."
        request = phone.edit_surroundings(self.database)["payment_request"]
        request["paid"] = True
        return (
            f"Payment of {request['amount_due']} USD has been made for bill {request['bill_id']}."
        )

    def _device(self) -> Any:
        return phone.device(self.database)

    def _edit(self) -> Any:
        return phone.edit_device(self.database)

    def _apps(self) -> Any:
        return self._device()["app_statuses"]

    def _bar(self) -> str:
        return f"Status Bar: {phone.status_bar(self._device())}"

    def _with_bar(self, text: str) -> str:
        return f"{text}\n{self._bar()}"

    def _switch(self, setting: str) -> bool:
        """Invert a setting and return its new value."""
        state = self._edit()
        state[setting] = not state[setting]
        return bool(state[setting])

    def _grant(self, app_name: str, permission: str) -> str:
        app = self._apps().get(app_name)
        permission = permission.lower()
        if app is None:
            return f"Error. App '{app_name}' not found. Cannot grant permission."
        names = list(app["permissions"])
        if permission not in names:
            return (
                f"Error. Permission '{permission}' not tracked for app '{app_name}', "
                f"available permissions: {names}"
            )
        self._edit()["app_statuses"][app_name]["permissions"][permission] = True
        return f"Success. Permission '{permission}' granted to app '{app_name}'."


def _list_permissions(app: Any) -> list[str]:
    return [name for name, granted in app["permissions"].items() if granted]


def _describe_vpn(details: Any) -> str:
    """Return the VPN's details as the original prints them, with a member of an enum."""
    performance = str(details["server_performance"])
    member = f"<PerformanceLevel.{performance.upper()}: {performance!r}>"
    shown = [f"{name!r}: {value!r}" for name, value in details.items() if name != _PERFORMANCE]
    return f"{{{', '.join([*shown, f'{_PERFORMANCE!r}: {member}'])}}}"


_PERFORMANCE: Final = "server_performance"


def _on(value: Any) -> str:
    return "ON" if value else "OFF"


def _yes(value: Any) -> str:
    return "Yes" if value else "No"
