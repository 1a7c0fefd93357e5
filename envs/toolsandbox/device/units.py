"""Conversion of units by their common English names."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from envs.tools import ToolError


class Unit(NamedTuple):
    """A unit. A value in it is worth value · factor + offset in its dimension's base unit."""

    dimension: str
    factor: float
    offset: float = 0.0


_UNITS: Final[Mapping[Unit, str]] = {
    Unit("length", 1.0): "meter metre m",
    Unit("length", 1000.0): "kilometer kilometre km",
    Unit("length", 0.01): "centimeter centimetre cm",
    Unit("length", 0.001): "millimeter millimetre mm",
    Unit("length", 0.0254): "inch in inches",
    Unit("length", 0.3048): "foot ft feet",
    Unit("length", 0.9144): "yard yd",
    Unit("length", 1609.344): "mile mi",
    Unit("length", 1852.0): "nautical_mile nmi",
    Unit("mass", 1.0): "kilogram kg kilo",
    Unit("mass", 0.001): "gram g",
    Unit("mass", 1e-6): "milligram mg",
    Unit("mass", 1000.0): "tonne metric_ton",
    Unit("mass", 0.45359237): "pound lb lbs",
    Unit("mass", 0.028349523125): "ounce oz",
    Unit("mass", 6.35029318): "stone",
    Unit("time", 1.0): "second s sec",
    Unit("time", 0.001): "millisecond ms",
    Unit("time", 60.0): "minute min",
    Unit("time", 3600.0): "hour h hr",
    Unit("time", 86400.0): "day d",
    Unit("time", 604800.0): "week",
    Unit("temperature", 1.0): "kelvin k",
    Unit("temperature", 1.0, 273.15): "celsius c degc degree_celsius degrees_celsius",
    Unit("temperature", 5 / 9, 459.67 * 5 / 9): (
        "fahrenheit f degf degree_fahrenheit degrees_fahrenheit"
    ),
    Unit("volume", 1.0): "liter litre l",
    Unit("volume", 0.001): "milliliter millilitre ml",
    Unit("volume", 3.785411784): "gallon gal",
    Unit("volume", 0.946352946): "quart qt",
    Unit("volume", 0.473176473): "pint pt",
    Unit("volume", 0.2365882365): "cup",
    Unit("volume", 0.0295735295625): "fluid_ounce fl_oz floz",
    Unit("volume", 0.01478676478125): "tablespoon tbsp",
    Unit("volume", 0.00492892159375): "teaspoon tsp",
    Unit("area", 1.0): "square_meter square_metre m2 m^2",
    Unit("area", 1e6): "square_kilometer square_kilometre km2",
    Unit("area", 0.09290304): "square_foot square_feet sqft ft2",
    Unit("area", 4046.8564224): "acre",
    Unit("area", 10000.0): "hectare ha",
    Unit("area", 2589988.110336): "square_mile",
    Unit("speed", 1.0): "meter_per_second m/s mps",
    Unit("speed", 1 / 3.6): "kilometer_per_hour kilometre_per_hour km/h kph kmh",
    Unit("speed", 0.44704): "mile_per_hour mi/h mph",
    Unit("speed", 1852 / 3600): "knot kn kt",
    Unit("energy", 1.0): "joule j",
    Unit("energy", 1000.0): "kilojoule kj",
    Unit("energy", 4.184): "calorie cal",
    Unit("energy", 4184.0): "kilocalorie kcal",
    Unit("energy", 3.6e6): "kilowatt_hour kwh",
    Unit("pressure", 1.0): "pascal pa",
    Unit("pressure", 1e5): "bar",
    Unit("pressure", 101325.0): "atmosphere atm",
    Unit("pressure", 6894.757293168): "psi",
    Unit("data", 1.0): "byte",
    Unit("data", 0.125): "bit",
    Unit("data", 1e3): "kilobyte kb",
    Unit("data", 1e6): "megabyte mb",
    Unit("data", 1e9): "gigabyte gb",
    Unit("data", 1e12): "terabyte tb",
}

UNITS: Final[Mapping[str, Unit]] = {
    name: unit for unit, names in _UNITS.items() for name in names.split()
}
"""Name -> unit. The first name of each unit is its English one, which may have a plural s."""


def convert(amount: float, from_unit: str, to_unit: str) -> float:
    """Convert an amount: (amount · factor + offset - offset') / factor'. Raise ToolError for an
    unknown unit, or for units of different dimensions."""
    source, target = _find_unit(from_unit), _find_unit(to_unit)
    if source.dimension != target.dimension:
        raise ToolError(
            f"{from_unit!r} is a {source.dimension} and {to_unit!r} a {target.dimension}: one "
            "cannot be converted to the other"
        )
    base = amount * source.factor + source.offset
    return round((base - target.offset) / target.factor, 10)


_PLURAL: Final = re.compile(r"(?<=[a-z])s(?=_|$)")
_PLURALS_IN_ES: Final = {"inche": "inch"}
"""Plural in -es without its s -> the singular."""


def _find_unit(name: str) -> Unit:
    plain = "_".join(name.lower().replace("°", "degrees ").split())
    singular = _PLURAL.sub("", plain)
    for spelling in (plain, singular, _PLURALS_IN_ES.get(singular, singular)):
        unit = UNITS.get(spelling)
        if unit is not None:
            return unit
    raise ToolError(f"there is no unit {name[:40]!r}; give its English name, such as celsius")
