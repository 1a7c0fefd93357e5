"""All tools of the device: ToolSandbox's names, arguments and dependencies, in our own code. A task
allows some of them; its agent cannot call the others. Results have the form in which Python prints
them.
Schemas have the names, types and required arguments of the published ones, with our descriptions.

Differences from the original: the clock stands still, in UTC. Ids follow from the order in which
rows are added. Network services answer from tables (world.py, holidays.py). Calls of one message
run only in their given order.
"""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final

from geographiclib.geodesic import Geodesic
from rapidfuzz import fuzz, utils

from envs.database import copy_json
from envs.tools import ToolError, ToolResult, generic, read
from envs.toolsandbox.device.arguments import (
    Day,
    Hour,
    Latitude,
    Longitude,
    Minute,
    Month,
    Second,
    Shift,
    Timestamp,
    Year,
)
from envs.toolsandbox.device.holidays import list_holidays
from envs.toolsandbox.device.reminders import ReminderTools
from envs.toolsandbox.device.search import measure_likeness
from envs.toolsandbox.device.state import DEVICE, read_time
from envs.toolsandbox.device.units import convert
from envs.toolsandbox.device.world import PLACES, RATES, STOCKS, TOWNS, Place, forecast

_NEAR: Final = 4
"""Largest number of places that a search returns."""
_FAR: Final = 100.0
"""Distance in kilometres up to which a point has the address and weather of a place."""
_LIKE: Final = 80.0
"""Smallest likeness, out of 100, for a match of names of places and companies."""
_HOLIDAY: Final = 90.0
_FORECAST_DAYS: Final = 14
_LONGEST: Final = 200
"""Number of characters of a holiday's name that are compared: the first ones."""


class NetworkTools(ReminderTools):
    """Tools for network services. All of them need wifi."""

    @read
    def convert_currency(
        self, amount: float, from_currency_code: str, to_currency_code: str
    ) -> float:
        """Convert an amount of money; currencies are codes of ISO 4217, such as USD."""
        source, target = (_find_rate(code) for code in (from_currency_code, to_currency_code))
        self.require("wifi")
        return round(amount / source * target, 2)

    @read
    def search_holiday(self, holiday_name: str, year: Year | None = None) -> float | None:
        """Tell when a holiday of the United States begins, as POSIX seconds; by default this
        year's."""
        self.require("wifi")
        this_year = _as_datetime(read_time(self.database)).year
        matches = [
            (_measure_part(holiday_name[:_LONGEST], name), day)
            for day, name in list_holidays(this_year if year is None else year)
        ]
        score, day = max(matches)
        return _as_timestamp(day) if score > _HOLIDAY else None

    @read
    def search_lat_lon(self, latitude: Latitude, longitude: Longitude) -> str | None:
        """Tell the address at a point."""
        self.require("wifi")
        place = _find_nearest(latitude, longitude)
        return None if place is None else place.address

    @read
    def search_location_around_lat_lon(
        self, location: str, latitude: Latitude | None = None, longitude: Longitude | None = None
    ) -> list[dict[str, Any]]:
        """Find places by name, kind, city or address, the nearest to a point first; by default to
        where the device is."""
        point = self._point(latitude, longitude)
        self.require("wifi")
        alike = [place for place in PLACES if _fits(location, place)]
        alike.sort(key=lambda place: _estimate_distance(*point, place))
        return [_describe_place(place) for place in alike[:_NEAR]]

    @read
    def search_stock(self, query: str) -> dict[str, Any] | None:
        """Tell name, symbol, exchange, price and change of a share, by company or symbol."""
        self.require("wifi")
        for stock in STOCKS:
            if query.upper().strip() == stock.symbol:
                best = stock
                break
        else:
            best = max(STOCKS, key=lambda stock: measure_likeness(query, stock.name))
            if measure_likeness(query, best.name) < _LIKE:
                return None
        return {
            "name": best.name,
            "symbol": best.symbol,
            "exchange": best.exchange,
            "price": best.price,
            "change": best.change,
            "percent_change": round(100 * best.change / (best.price - best.change), 2),
            "currency": "USD",
        }

    @read
    def search_weather_around_lat_lon(
        self, days: Shift = 0, latitude: Latitude | None = None, longitude: Longitude | None = None
    ) -> dict[str, Any] | None:
        """Tell the weather at a point so many days from now, by default here and today.
        Temperatures are in degrees Celsius."""
        point = self._point(latitude, longitude)
        if days < 0:
            raise ToolError(f"days is {days}; the weather of days that are over is not known")
        self.require("wifi")
        place = _find_nearest(*point)
        if place is None or days > _FORECAST_DAYS:
            return None
        today = _as_datetime(read_time(self.database)).date()
        return _describe_weather(place, today + timedelta(days=days), is_today=not days)

    def _point(self, latitude: float | None, longitude: float | None) -> tuple[float, float]:
        if latitude is not None and longitude is not None:
            return latitude, longitude
        if latitude is not None or longitude is not None:
            raise ToolError("give latitude and longitude both, or neither")
        here = self.locate()
        return here["latitude"], here["longitude"]


class ToolSandboxTools(NetworkTools):
    """All tools of the device. `call` runs only those that the task allows."""

    value: Any = None
    """The last tool's return value, before it was converted to text."""

    @generic
    def calculate_lat_lon_distance(
        self,
        latitude_0: Latitude,
        longitude_0: Longitude,
        latitude_1: Latitude,
        longitude_1: Longitude,
    ) -> float:
        """Tell the distance of two points in kilometres, on the ellipsoid WGS 84."""
        inverse = Geodesic.WGS84.Inverse(
            latitude_0, longitude_0, latitude_1, longitude_1, Geodesic.DISTANCE
        )
        metres: float = inverse["s12"]
        return metres / 1000

    @generic
    def datetime_info_to_timestamp(
        self, year: Year, month: Month, day: Day, hour: Hour, minute: Minute, second: Second
    ) -> float:
        """Convert a date and a time of 24 hours to POSIX seconds."""
        try:
            moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError as error:
            raise ToolError(f"{year}-{month:02}-{day:02} is no date: {error}") from error
        return moment.timestamp()

    @read
    def get_current_timestamp(self) -> float:
        """Tell the time as POSIX seconds."""
        return read_time(self.database)

    @generic
    def seconds_to_hours_minutes_seconds(self, seconds: float) -> dict[str, int]:
        """Convert seconds past 0:00 to hours of the day, minutes and seconds."""
        of_day = int(seconds % 86_400)
        return {"hour": of_day // 3600, "minute": of_day // 60 % 60, "second": of_day % 60}

    @generic
    def shift_timestamp(
        self,
        timestamp: Timestamp,
        weeks: Shift = 0,
        days: Shift = 0,
        hours: Shift = 0,
        minutes: Shift = 0,
        seconds: Shift = 0,
    ) -> float:
        """Move a time in POSIX seconds; negative numbers move it back."""
        shift = (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds
        return timestamp + shift

    @generic
    def timestamp_diff(self, timestamp_0: Timestamp, timestamp_1: Timestamp) -> dict[str, int]:
        """Tell the time from timestamp_0 to timestamp_1 as whole days and seconds."""
        difference = timedelta(seconds=timestamp_1) - timedelta(seconds=timestamp_0)
        return {"days": difference.days, "seconds": difference.seconds}

    @generic
    def timestamp_to_datetime_info(self, timestamp: Timestamp) -> dict[str, int]:
        """Convert POSIX seconds to year, month, day, hour, minute, second and isoweekday (1 is
        Monday)."""
        moment = _as_datetime(timestamp)
        return {
            "year": moment.year,
            "month": moment.month,
            "day": moment.day,
            "hour": moment.hour,
            "minute": moment.minute,
            "second": moment.second,
            "isoweekday": moment.isoweekday(),
        }

    @generic
    def unit_conversion(self, amount: float, from_unit: str, to_unit: str) -> float:
        """Convert an amount between units, given by their English names."""
        return convert(amount, from_unit, to_unit)

    @classmethod
    def schemas(cls) -> list[dict[str, Any]]:
        """Return all tools in OpenAI's format, with the types of the published schemas."""
        return [_publish(schema) for schema in super().schemas()]

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Run one tool if the task allows it."""
        self.value = None
        if name not in self.database[DEVICE]["tools"] and name in self.tools():
            return ToolResult(f"Error: Tool '{name}' not found.", error=True, malformed=True)
        return super().call(name, arguments)

    def render(self, value: Any) -> str:
        """Return the value as Python prints it, which the agent reads."""
        self.value = value
        return repr(value)

    @classmethod
    def complete(cls, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments as a trace stores them, with defaults for those left out."""
        return {**copy_json(_read_defaults(name)), **arguments}


@cache
def _read_defaults(name: str) -> dict[str, Any]:
    properties = ToolSandboxTools.tools()[name].schema["function"]["parameters"]["properties"]
    return {
        argument: schema["default"]
        for argument, schema in properties.items()
        # An argument that may be left out but not be null has no default (arguments.OMITTED).
        if "default" in schema and (schema["default"] is not None or "anyOf" in schema)
    }


def _publish(schema: Mapping[str, Any]) -> dict[str, Any]:
    function = schema["function"]
    parameters = function["parameters"]
    properties = {
        name: {"type": _find_type(value)} for name, value in parameters["properties"].items()
    }
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function["description"],
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(parameters.get("required", ())),
            },
        },
    }


def _find_type(schema: Mapping[str, Any]) -> str:
    kind: str = schema["type"] if "type" in schema else schema["anyOf"][0]["type"]
    return kind


def _find_rate(code: str) -> float:
    if code.upper() not in RATES:
        raise ToolError(f"{code[:20]!r} is no known currency; give its code of ISO 4217")
    return RATES[code.upper()]


@lru_cache(maxsize=4096)
def _measure_part(query: str, text: str) -> float:
    return fuzz.partial_ratio(query, text, processor=utils.default_process)


def _fits(query: str, place: Place) -> bool:
    texts = (place.name, place.kind, place.city, place.state, place.address)
    return any(measure_likeness(query, text) >= _LIKE for text in texts)


@lru_cache(maxsize=4096)
def _find_nearest(latitude: float, longitude: float) -> Place | None:
    distance, _, place = min(
        (_estimate_distance(latitude, longitude, place), number, place)
        for number, place in enumerate((*PLACES, *TOWNS))
    )
    return place if distance <= _FAR else None


def _estimate_distance(latitude: float, longitude: float, place: Place) -> float:
    """Return the kilometres from a point to a place, on a sphere (haversine formula)."""
    north, other = math.radians(latitude), math.radians(place.latitude)
    east = math.radians(longitude - place.longitude)
    half = math.sin((north - other) / 2) ** 2
    half += math.cos(north) * math.cos(other) * math.sin(east / 2) ** 2
    return 2 * 6371.0 * math.asin(math.sqrt(min(1.0, half)))


def _describe_place(place: Place) -> dict[str, Any]:
    return {
        "name": place.name,
        "full_address": place.address,
        "city": place.city,
        "state": place.state,
        "types": [place.kind],
        "phone_number": place.phone_number,
        "latitude": place.latitude,
        "longitude": place.longitude,
    }


def _describe_weather(place: Place, day: date, is_today: bool) -> dict[str, Any]:
    weather = forecast(place, day)
    current = {"current_temperature": weather.current} if is_today else {}
    return {
        **current,
        "min_temperature": weather.low,
        "max_temperature": weather.high,
        "average_temperature": round((weather.low + weather.high) / 2, 1),
        "temperature_unit": "Celsius",
        "condition": weather.condition,
        "average_humidity": weather.humidity,
        "wind_speed": weather.wind,
        "distance_unit": "Kilometer",
        "name": place.city,
        "region": place.state,
        "country": "United States of America",
        "date": day.isoformat(),
    }


def _as_datetime(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)


def _as_timestamp(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
