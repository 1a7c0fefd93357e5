"""Extract values from the call to which a milestone refers, for filling into a target. Each
extractor returns all possible values by name, because a number has several precisions. It returns
none for a call of another tool."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from envs.milestones.graph import Extractor
from envs.toolsandbox.snapshots import Trace

Values = list[dict[str, Any]]


def extract(name: Extractor, trace: Trace | None) -> Values:
    """Return the values in a trace; none if there is no trace, or no such value in it."""
    if trace is None:
        return []
    try:
        return _EXTRACTORS[name](trace.result)
    except (KeyError, IndexError, TypeError, ValueError):
        return []


def _precisions(name: str, value: float) -> Values:
    return [{name: f"{value:.{digits}f}"} for digits in range(4)]


_EXTRACTORS: Final[Mapping[Extractor, Callable[[Any], Values]]] = {
    "search_weather_around_lat_lon_temperature_extractor": lambda result: _precisions(
        "temperature", float(result["current_temperature"])
    ),
    "result_to_timestamp0_extractor": lambda result: [{"timestamp_0": float(result)}],
    "result_to_timestamp1_extractor": lambda result: [{"timestamp_1": float(result)}],
    "days_extractor": lambda result: [{"days": int(result["days"])}],
    "lat_lon_dict_extractor": lambda result: [
        {"latitude": result["latitude"], "longitude": result["longitude"]}
    ],
    "current_temperature_extractor": lambda result: [
        {"amount": float(result["current_temperature"])}
    ],
    "result_to_temperature_extractor": lambda result: _precisions("temperature", float(result)),
    "result_to_reminder_timestamp_lowerbound_extractor": lambda result: [
        {"reminder_timestamp_lowerbound": float(result)}
    ],
    "min_temperature_amount_extractor": lambda result: [
        {"amount": float(result["min_temperature"])}
    ],
    "min_temperature_extractor": lambda result: _precisions("min_temperature", float(result)),
}
