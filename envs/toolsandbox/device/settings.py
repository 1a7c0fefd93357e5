"""Tools for the device's switches. Services that use the network or the location need them on."""

from typing import Any

from envs.tools import ToolError, Toolset, read, write
from envs.toolsandbox.device.state import edit_setting, read_setting

_SERVICES = ("cellular", "wifi", "location_service")
"""Services that low battery mode switches off and keeps off."""

_NAMES = {
    "cellular": "cellular service",
    "wifi": "wifi",
    "location_service": "location service",
    "low_battery_mode": "low battery mode",
}


class SettingTools(Toolset):
    """Tools for the switches, and for the device's location."""

    @read
    def get_cellular_service_status(self) -> bool:
        """Tell whether the cellular service is on."""
        return self.is_on("cellular")

    @read
    def get_current_location(self) -> dict[str, float]:
        """Tell where the device is, as latitude and longitude; needs the location service."""
        return self.locate()

    @read
    def get_location_service_status(self) -> bool:
        """Tell whether the location service is on."""
        return self.is_on("location_service")

    @read
    def get_low_battery_mode_status(self) -> bool:
        """Tell whether low battery mode is on."""
        return self.is_on("low_battery_mode")

    @read
    def get_wifi_status(self) -> bool:
        """Tell whether wifi is on."""
        return self.is_on("wifi")

    @write
    def set_cellular_service_status(self, on: bool) -> None:
        """Switch the cellular service on or off; on is refused in low battery mode."""
        self._switch_service("cellular", on)

    @write
    def set_location_service_status(self, on: bool) -> None:
        """Switch the location service on or off; on is refused in low battery mode."""
        self._switch_service("location_service", on)

    @write
    def set_low_battery_mode_status(self, on: bool) -> None:
        """Switch low battery mode on or off; on switches cellular, wifi and location off."""
        self._switch("low_battery_mode", on)
        if on:
            edit_setting(self.database).update(dict.fromkeys(_SERVICES, False))

    @write
    def set_wifi_status(self, on: bool) -> None:
        """Switch wifi on or off; on is refused in low battery mode."""
        self._switch_service("wifi", on)

    def is_on(self, name: str) -> bool:
        """Return whether a switch is on."""
        state: bool = read_setting(self.database)[name]
        return state

    def locate(self) -> dict[str, float]:
        """Return latitude and longitude. Raise ToolError if the location service is off."""
        self.require("location_service")
        row = read_setting(self.database)
        return {"latitude": row["latitude"], "longitude": row["longitude"]}

    def require(self, name: str) -> None:
        """Raise ToolError if a service is off."""
        if not self.is_on(name):
            raise ToolError(f"{_NAMES[name]} is off")

    def _switch_service(self, name: str, on: bool) -> None:
        if on and self.is_on("low_battery_mode"):
            raise ToolError(f"{_NAMES[name]} cannot be switched on while low battery mode is on")
        self._switch(name, on)

    def _switch(self, name: str, on: bool) -> None:
        if self.is_on(name) == on:
            raise ToolError(f"{_NAMES[name]} is {'on' if on else 'off'} already")
        row: dict[str, Any] = edit_setting(self.database)
        row[name] = on
